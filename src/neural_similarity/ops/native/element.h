/* The operators for the element type T; NAME(f) is f's form for it, PAIRED whether T is half a
   word. Maps are channels-last. P positions at a time; their patches and columns are rows of taps
   of channels, padded with zeros to `depth` elements. */

#ifndef MASKED
INLINE vector NAME(load_part)(const T *from, int64_t lanes) {
    vector v = {0};
    for (int lane = 0; lane < lanes; lane++) v[lane] = NAME(wide)(from[lane]);
    return v;
}

INLINE void NAME(store_part)(T *to, vector v, int64_t lanes) {
    for (int lane = 0; lane < lanes; lane++) to[lane] = NAME(narrow)(v[lane]);
}
#endif

INLINE vector NAME(load_some)(const T *from, int64_t lanes) {
    return lanes >= LANES ? NAME(load)(from) : NAME(load_part)(from, lanes);
}

INLINE void NAME(store_some)(T *to, vector v, int64_t lanes) {
    if (lanes >= LANES) NAME(store)(to, v);
    else NAME(store_part)(to, v, lanes);
}

/* Channels of an input at one tap, times m's number for their block. */
INLINE void NAME(take)(T *to, const T *from, const float *m, int64_t n, int64_t blocks,
                       int64_t taps) {
    const int64_t size = n / blocks;
    for (int64_t block = 0; block < blocks; block++, m += taps, to += size, from += size) {
        int64_t i = 0;
        for (; i + 2 * LANES <= size; i += 2 * LANES) NAME(times)(to + i, from + i, *m);
        for (; i < size; i += LANES)
            NAME(store_some)(to + i, *m * NAME(load_some)(from + i, size - i), size - i);
    }
}

/* `take` for positions of a line, of one block of whole pairs of vectors. Not to be inlined: there
   are not enough registers in the loops that call it. */
static __attribute__((noinline)) void NAME(take_row)(T *to, const T *from, const float *m,
                                                     int64_t count, int64_t n, int64_t to_step,
                                                     int64_t from_step, int64_t m_step) {
    for (int64_t j = 0; j < count; j++, to += to_step, from += from_step, m += m_step)
        for (int64_t i = 0; i < n; i += 2 * LANES) NAME(times)(to + i, from + i, *m);
}

/* What a tap sees from a line of positions, n channels of each, into rows so far apart; where `m`
   is there, times the diagonal M. */
INLINE void NAME(look)(const struct frame *f, struct line line, int64_t t, const T *x,
                       const float *m, T *to, int64_t to_step, int64_t taps, int64_t n,
                       int64_t blocks) {
    const struct reach reach = reach_of(f, line, t);
    const int64_t step = reach.step * f->x_pixel, m_step = f->m;
    const T *in = x + reach.offset * f->x_pixel;
    int64_t j = 0;
    for (; j < reach.first; j++) memset(to + j * to_step, 0, n * sizeof(T));
    if (m && j < reach.last && blocks == 1 && n % (2 * LANES) == 0) {
        NAME(take_row)(to + j * to_step, in + j * step, m + t + j * m_step, reach.last - j, n,
                       to_step, step, m_step);
        j = reach.last;
    }
    for (; m && j < reach.last; j++)
        NAME(take)(to + j * to_step, in + j * step, m + t + j * m_step, n, blocks, taps);
    for (; j < reach.last; j++) memcpy(to + j * to_step, in + j * step, n * sizeof(T));
    for (; j < line.run; j++) memset(to + j * to_step, 0, n * sizeof(T));
}

/* The patches of positions `at` and following; where `m` is there, times the diagonal M. */
INLINE void NAME(gather)(const struct frame *f, const T *x, const float *m, int64_t at,
                         int64_t count, T *to, int64_t taps, int64_t n, int64_t blocks) {
    for (int64_t done = 0, run; done < count; done += run) {
        const struct line line = line_of(f, at + done, count - done);
        run = line.run;
        for (int64_t t = 0; t < taps; t++)
            NAME(look)(f, line, t, x, m ? m + (at + done) * f->m : 0,
                       to + done * f->depth + t * n, f->depth, taps, n, blocks);
    }
}

/* Full M at one position: columns = M patch, for n channels. */
INLINE void NAME(mix)(T *columns, const T *patch, const float *m, int64_t taps, int64_t n,
                      int64_t step) {
    vector tap[MOST_TAPS];
    for (int64_t i = 0; i < n; i += LANES) {
        for (int64_t t = 0; t < taps; t++) tap[t] = NAME(load_some)(patch + t * step + i, n - i);
        for (int64_t s = 0; s < taps; s++) {
            vector sum = {0};
            for (int64_t t = 0; t < taps; t++) sum += m[s * taps + t] * tap[t];
            NAME(store_some)(columns + s * step + i, sum, n - i);
        }
    }
}

/* Diagonal M at one position: grad_m = <g, x>. */
INLINE void NAME(agree)(float *grad_m, const float *g, const T *x, int64_t taps, int64_t n,
                        int64_t step, int more) {
    for (int64_t base = 0; base < taps; base += LANES) {
        vector product[LANES] = {0};
        for (int64_t t = base; t < base + LANES && t < taps; t++)
            for (int64_t i = 0; i < n; i += LANES) {
                const vector v = NAME(load_some)(x + t * step + i, n - i);
                product[t - base] += v * load_some_float32(g + t * step + i, n - i);
            }
        vector sum = sums(product);
        if (more) sum += load_some_float32(grad_m + base, taps - base);
        store_some_float32(grad_m + base, sum, taps - base);
    }
}

/* Whether the matrix unit multiplies taps x taps numbers of n channels. */
INLINE int NAME(squares)(const struct frame *f, int64_t taps, int64_t n) {
    return PAIRED && f->full && taps <= LANES && n % TILE == 0 && has_matrix_unit();
}

/* Full M at one position: grad_m = g xᵀ by the matrix unit. */
INLINE void NAME(outer)(float *grad_m, const float *g, const T *x, int64_t taps, int64_t n,
                        int64_t step, int more) {
    float square[LANES * LANES] __attribute__((aligned(64)));
    matrix_unit_outer(square, g, (const bfloat16 *)x, taps, n, step);
    for (int64_t s = 0; s < taps; s++, grad_m += taps) {
        vector sum = load_float32(square + s * LANES);
        if (more) sum += load_some_float32(grad_m, taps);
        store_some_float32(grad_m, sum, taps);
    }
}

/* Full M at one position: grad_m = g xᵀ, where it is wanted, and then g = Mᵀ g. */
INLINE void NAME(unmix)(float *grad_m, float *g, const T *x, const float *m, vector *products,
                        int64_t taps, int64_t n, int64_t step, int more) {
    vector patch[MOST_TAPS], outgoing[MOST_TAPS];
    for (int64_t i = 0; i < n; i += LANES) {
        for (int64_t t = 0; t < taps; t++) {
            patch[t] = NAME(load_some)(x + t * step + i, n - i);
            outgoing[t] = load_some_float32(g + t * step + i, n - i);
        }
        for (int64_t s = 0; grad_m && s < taps; s++)
            for (int64_t t = 0; t < taps; t++) {
                const vector product = outgoing[s] * patch[t];
                products[s * taps + t] = i ? products[s * taps + t] + product : product;
            }
        for (int64_t t = 0; t < taps; t++) {
            vector sum = {0};
            for (int64_t s = 0; s < taps; s++) sum += m[s * taps + t] * outgoing[s];
            store_some_float32(g + t * step + i, sum, n - i);
        }
    }
    for (int64_t j = 0; grad_m && j < taps * taps; j += LANES) {
        const int64_t some = least(taps * taps - j, LANES);
        vector sum = sums(products + j);
        if (more) sum += load_some_float32(grad_m + j, some);
        store_some_float32(grad_m + j, sum, some);
    }
}

/* The columns of some positions, M times their patches; `patches` is used by a full M. */
INLINE void NAME(columns)(const struct frame *f, const T *x, const float *m, int64_t at,
                          int64_t count, T *columns, T *patches, int64_t taps, int64_t n,
                          int64_t blocks) {
    if (!f->full) {
        NAME(gather)(f, x, m, at, count, columns, taps, n, blocks);
        return;
    }
    NAME(gather)(f, x, 0, at, count, patches, taps, n, blocks);
    for (int64_t j = 0; j < count; j++)
        for (int64_t block = 0, b = n / blocks; block < blocks; block++)
            NAME(mix)(columns + j * f->depth + block * b, patches + j * f->depth + block * b,
                      m + (at + j) * f->m + block * taps * taps, taps, b, n);
}

/* From the gradient g of the columns those of M and of the patches; g becomes the latter but for
   a diagonal M's factors. */
INLINE void NAME(derive)(const struct frame *f, float *g, const T *patches, const float *m,
                         float *grad_m, int64_t at, int64_t count, vector *products,
                         int64_t taps, int64_t n,
                         int64_t blocks) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t block = 0, b = n / blocks; block < blocks; block++) {
            const int64_t of_m = (at + j) * f->m + block * (f->full ? taps * taps : taps);
            float *gradient = grad_m ? grad_m + of_m : 0, *outgoing = g + j * f->depth + block * b;
            const T *patch = patches + j * f->depth + block * b;
            if (NAME(squares)(f, taps, b) && gradient) {
                NAME(outer)(gradient, outgoing, patch, taps, b, n, f->more);
                gradient = 0;
            }
            if (f->full)
                NAME(unmix)(gradient, outgoing, patch, m + of_m, products, taps, b, n, f->more);
            else if (gradient)
                NAME(agree)(gradient, outgoing, patch, taps, b, n, f->more);
        }
}

/* Whether the kernel has no need of a border; pairs are taken as words, which lie at even places. */
INLINE int NAME(fits)(const struct frame *f) {
    return !PAIRED && f->width == f->filters && f->depth == f->taps * f->channels;
}

/* The kernel (filters, taps, channels) in a zero border, as depth and width ask. */
static const T *NAME(border)(const struct frame *f, const T *weight, T *to) {
    const int64_t row = f->taps * f->channels;
    if (NAME(fits)(f)) return weight;
    memset(to, 0, f->width * f->depth * sizeof(T));
    for (int64_t o = 0; o < f->filters; o++)
        memcpy(to + o * f->depth, weight + o * row, row * sizeof(T));
    return to;
}

/* Whether the matrix unit's tiles hold the sums of all filters. */
INLINE int NAME(flows)(const struct frame *f) {
    return PAIRED && !f->full && f->blocks == 1 && f->channels % TILE == 0 && f->width == TILE &&
           has_matrix_unit();
}

/* Of some positions W M x for a diagonal M: the matrix unit multiplies what a tap sees while the
   next one is gathered. */
INLINE void NAME(flow)(const struct frame *f, const T *x, const float *m, int64_t at,
                       int64_t count, const uint32_t *packed, float *sum, int64_t taps, int64_t n,
                       int64_t blocks) {
    T seen[2][TILE * TILE] __attribute__((aligned(64)));
    const int64_t row = TILE / 2, step = row * TILE;
    for (int64_t from = 0; from < count; from += TILE, sum += TILE * TILE) {
        const int64_t some = least(count - from, TILE);
        const uint32_t *kernel = packed;
        struct line lines[TILE];
        for (int64_t done = 0, l = 0; done < some; done += lines[l++].run)
            lines[l] = line_of(f, at + from + done, some - done);
        int next = 0;
        matrix_unit_zero();
        for (int64_t t = 0; t < taps; t++)
            for (int64_t i = 0; i < n; i += TILE, next = !next) {
                for (int64_t done = 0, l = 0; done < some; done += lines[l++].run)
                    NAME(look)(f, lines[l], t, x + i, m + (at + from + done) * f->m,
                               seen[next] + done * TILE, TILE, taps, TILE, blocks);
                if (t + i == 0) continue;
                matrix_unit_add((uint32_t *)seen[!next], row, kernel, TILE);
                kernel += step;
            }
        matrix_unit_add((uint32_t *)seen[!next], row, kernel, TILE);
        matrix_unit_store(sum, TILE);
    }
}

/* y = W M x. Not 0: there was no memory for it, and y is not written. */
int NAME(forward)(const struct frame *f, const T *x, const float *m, const T *weight, T *y) {
    const int64_t positions = f->images * outputs(f), chunks = pieces(positions, POSITIONS);
    const int64_t words_deep = f->depth / (1 + PAIRED);
    int full = 0;
    T *bordered = NAME(fits)(f) ? 0 : room(f->width * f->depth * sizeof(T), &full);
    uint32_t *packed = room(f->width * words_deep * 4, &full);
    const uint32_t *kernel = full ? 0 : (uint32_t *)NAME(border)(f, weight, bordered);
    for (int64_t panel = 0; !full && panel < f->width; panel += TILE)
        turn(packed + panel * words_deep, TILE, kernel + panel * words_deep, words_deep, TILE,
             words_deep);
    #pragma omp parallel num_threads(f->threads)
    {
        T *columns = room(2 * POSITIONS * f->depth * sizeof(T), &full);
        T *patches = columns + POSITIONS * f->depth;
        float *sum = room(POSITIONS * f->width * sizeof(float), &full);
        const struct tiles before = take_matrix_unit();
        if (columns) memset(columns, 0, 2 * POSITIONS * f->depth * sizeof(T));
        #pragma omp barrier
        const int64_t all = full ? 0 : chunks;
        #pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < all; chunk++) {
            const int64_t at = chunk * POSITIONS, count = least(positions - at, POSITIONS);
            const struct matrix a = {(uint32_t *)columns, words_deep, 1};
            const struct matrix b = {packed, TILE * words_deep, TILE};
            const struct target c = {sum, f->width, TILE};
            if (NAME(flows)(f)) {
                SPECIALISED(NAME(flow), f, x, m, at, count, packed, sum);
            } else {
                SPECIALISED(NAME(columns), f, x, m, at, count, columns, patches);
                multiply(PAIRED, a, b, c, rows_for(PAIRED, count), f->width, words_deep, 0);
            }
            T *to = y + at * f->y_pixel;
            for (int64_t j = 0; j < count; j++, to += f->y_pixel)
                for (int64_t i = 0; i < f->filters; i += LANES)
                    NAME(store_some)(to + i, load_float32(sum + j * f->width + i), f->filters - i);
        }
        release_matrix_unit(before);
        free(columns);
        free(sum);
    }
    free(packed);
    free(bordered);
    return full;
}

/* What one thread of backward works with. */
struct NAME(desk) {
    T *columns, *patches, *outgoing;
    uint32_t *woven, *turned, *woven_columns;
    float *g, *images;
    vector *products;
};

/* Add to `grad_weight`, in panels, the product of outgoing and columns of some positions. */
INLINE void NAME(correlate)(const struct frame *f, const struct NAME(desk) *d, int64_t rows,
                            float *grad_weight) {
    const int64_t tall = rows / (1 + PAIRED), most = POSITIONS / (1 + PAIRED);
    struct matrix outgoing = {(uint32_t *)d->outgoing, TILE, f->width};
    struct matrix columns = {(uint32_t *)d->columns, TILE, f->depth};
    if (PAIRED) outgoing = panels(PAIRED, d->woven, d->outgoing, rows, f->width);
    if (PAIRED || f->width > NEAR)
        columns = panels(PAIRED, d->woven_columns, d->columns, rows, f->depth);
    for (int64_t o = 0; o < f->width; o += TILE)
        turn(d->turned + o * most, most, outgoing.at + o / TILE * outgoing.row, outgoing.step,
             tall, TILE);
    multiply(PAIRED, (struct matrix){d->turned, most, 1}, columns,
             (struct target){grad_weight, TILE, f->width * TILE}, f->width, f->depth, tall, 1);
}

/* Add the gradients of a chunk of images to `images` and `grad_weight`, and write grad_m's. */
INLINE void NAME(derive_chunk)(const struct frame *f, const struct NAME(desk) *d, const T *x,
                               const float *m, const T *grad, struct matrix kernel,
                               float *grad_m, float *grad_weight, int64_t at, int64_t count) {
    const int64_t rows = rows_for(PAIRED, count);
    memset(d->outgoing, 0, rows * f->width * sizeof(T));
    for (int64_t j = 0; j < count; j++)
        memcpy(d->outgoing + j * f->width, grad + (at + j) * f->y_pixel, f->filters * sizeof(T));
    if (grad_weight) {
        SPECIALISED(NAME(columns), f, x, m, at, count, d->columns, d->patches);
        memset(d->columns + count * f->depth, 0, (rows - count) * f->depth * sizeof(T));
        NAME(correlate)(f, d, rows, grad_weight);
    }
    if (!d->images && !grad_m) return;
    multiply(PAIRED, (struct matrix){(uint32_t *)d->outgoing, f->width / (1 + PAIRED), 1}, kernel,
             (struct target){d->g, f->depth, TILE}, rows, f->depth, f->width / (1 + PAIRED), 0);
    if (grad_m && !(f->full && grad_weight))
        SPECIALISED(NAME(gather), f, x, 0, at, count, d->patches);
    if (grad_m || f->full)
        SPECIALISED(NAME(derive), f, d->g, d->patches, m, grad_m, at, count, d->products);
    if (d->images) SPECIALISED(scatter, f, d->images, f->full ? 0 : m, at, count, d->g);
}

/* From panels a gradient (filters, taps, channels), or more of it. */
static void NAME(sum_kernel)(const struct frame *f, const float *from, float *to, int more) {
    const int64_t row = f->taps * f->channels;
    for (int64_t k = 0; k < row; k += TILE)
        for (int64_t o = 0; o < f->width; o++, from += TILE)
            for (int64_t i = k; o < f->filters && i < least(row, k + TILE); i++)
                to[o * row + i] = from[i - k] + (more ? to[o * row + i] : 0);
}

/* Gradients, those that are not null: grad_weight (filters, taps, channels) in float. Rows of an
   image add to the same input, so threads share out images; each sums a grad_weight of its own.
   Not 0: as of `forward`. */
int NAME(backward)(const struct frame *f, const T *x, const float *m, const T *weight,
                   const T *grad, T *grad_x, float *grad_m, float *grad_weight) {
    const int64_t size = f->width * f->depth, most = together(f);
    int full = 0;
    T *bordered = NAME(fits)(f) ? 0 : room(size * sizeof(T), &full);
    uint32_t *woven = room(size * 4, &full);
    float *weights = grad_weight ? room(f->threads * size * sizeof(float), &full) : 0;
    struct matrix kernel = {0};
    if (!full) {
        const T *rows = NAME(border)(f, weight, bordered);
        kernel = panels(PAIRED, woven, rows, f->width, f->depth);
    }
    if (weights) memset(weights, 0, f->threads * size * sizeof(float));
    #pragma omp parallel num_threads(f->threads)
    {
        const int64_t tall = POSITIONS / (1 + PAIRED), pixels = inputs(f);
        struct NAME(desk) d = {
            .columns = room(POSITIONS * f->depth * sizeof(T), &full),
            .patches = room(POSITIONS * f->depth * sizeof(T), &full),
            .outgoing = room(POSITIONS * f->width * sizeof(T), &full),
            .woven = room(tall * f->width * 4, &full),
            .turned = room(tall * f->width * 4, &full),
            .woven_columns = room(tall * f->depth * 4, &full),
            .products = room((f->taps * f->taps + LANES) * sizeof(vector), &full),
            .g = room(POSITIONS * f->depth * sizeof(float), &full),
            .images = grad_x ? room(most * pixels * f->channels * sizeof(float), &full) : 0,
        };
        if (d.columns) memset(d.columns, 0, POSITIONS * f->depth * sizeof(T));
        if (d.patches) memset(d.patches, 0, POSITIONS * f->depth * sizeof(T));
        const struct tiles before = take_matrix_unit();
        #pragma omp barrier
        const int64_t all = full ? 0 : f->images, thread = omp_get_thread_num();
        const int64_t first = all * thread / omp_get_num_threads();
        const int64_t last = all * (thread + 1) / omp_get_num_threads();
        for (int64_t image = first; image < last; image += most) {
            const int64_t images = least(last - image, most);
            const int64_t positions = images * outputs(f), done = image * outputs(f);
            const T *from = x + image * f->image, *of_y = grad + done * f->y_pixel;
            const float *of_m = m + done * f->m;
            float *to_m = grad_m ? grad_m + done * f->m : 0;
            float *to_weight = weights ? weights + thread * size : 0;
            if (grad_x) memset(d.images, 0, images * pixels * f->channels * sizeof(float));
            for (int64_t at = 0; at < positions; at += POSITIONS) {
                const int64_t count = least(positions - at, POSITIONS);
                NAME(derive_chunk)(f, &d, from, of_m, of_y, kernel, to_m, to_weight, at, count);
            }
            for (int64_t at = 0; grad_x && at < images * pixels; at++)
                for (int64_t i = 0; i < f->channels; i += LANES)
                    NAME(store_some)(grad_x + image * f->image + at * f->x_pixel + i,
                                     load_some_float32(d.images + at * f->channels + i,
                                                       f->channels - i), f->channels - i);
        }
        release_matrix_unit(before);
        free(d.columns); free(d.patches); free(d.outgoing); free(d.woven); free(d.turned);
        free(d.woven_columns); free(d.g); free(d.images);
        free(d.products);
    }
    for (int64_t thread = 0; weights && !full && thread < f->threads; thread++)
        NAME(sum_kernel)(f, weights + thread * size, grad_weight, thread > 0);
    free(weights);
    free(woven);
    free(bordered);
    return full;
}
