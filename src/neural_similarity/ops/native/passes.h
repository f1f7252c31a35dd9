/* The passes of an operator for the element type T, forward and backward. See element.h. */

/* Whether the kernel needs no border; pairs are read as words, which start at even elements. */
INLINE int NAME(fits)(const struct frame *f) {
    return f->group ||
           (!PAIRED && f->width == f->filters && f->depth == f->taps * f->channels);
}

/* The kernel (filters, taps, channels), padded with zeros to depth and width. */
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

/* W M x at some positions for a diagonal M: the matrix unit multiplies the input of one tap while
   that of the next is gathered. */
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
                    NAME(look)(f, lines[l], t, x + i, m ? m + (at + from + done) * f->m : 0,
                               seen[next] + done * TILE, TILE, taps, TILE, blocks);
                if (t + i == 0) continue;
                matrix_unit_add((uint32_t *)seen[!next], row, kernel, TILE);
                kernel += step;
            }
        matrix_unit_add((uint32_t *)seen[!next], row, kernel, TILE);
        matrix_unit_store(sum, TILE);
    }
}

/* The kernel as `forward` reads it: panels of filters, or the layout of `grouped.h`. */
static void NAME(lay_out)(const struct frame *f, const T *weight, T *bordered, uint32_t *packed) {
    const int64_t words_deep = f->depth / (1 + PAIRED);
    if (f->group) {
        NAME(pack)(f, weight, (float *)packed, 0);
        return;
    }
    const uint32_t *kernel = (uint32_t *)NAME(border)(f, weight, bordered);
    for (int64_t panel = 0; panel < f->width; panel += TILE)
        turn(packed + panel * words_deep, TILE, kernel + panel * words_deep, words_deep, TILE,
             words_deep);
}

/* sum = W M x at some positions. */
INLINE void NAME(sum_chunk)(const struct frame *f, const T *x, const float *m, int64_t at,
                            int64_t count, const uint32_t *packed, T *columns, T *patches,
                            float *sum) {
    const int64_t words_deep = f->depth / (1 + PAIRED);
    const struct matrix a = {(uint32_t *)columns, words_deep, 1};
    const struct matrix b = {packed, TILE * words_deep, TILE};
    const struct target c = {sum, f->width, TILE};
    if (NAME(flows)(f)) {
        SPECIALISED(NAME(flow), f, x, m, at, count, packed, sum);
        return;
    }
    if (needs_no_columns(f)) {
        SPECIALISED(NAME(depthwise), f, x, m, at, count, (float *)packed, sum);
        return;
    }
    SPECIALISED(NAME(columns), f, x, m, at, count, columns, patches);
    if (f->group) BY_EACH(NAME(grouped_join), f, (float *)packed, columns, sum, count);
    else multiply(PAIRED, a, b, c, rows_for(PAIRED, count), f->filters, words_deep, 0);
}

/* y = W M x + bias; M is I where `m` is null. Returns 0, or 1 if memory ran out and y is not
   written. */
int NAME(forward)(const struct frame *f, const T *x, const float *m, const T *weight, T *y,
                  const T *bias) {
    const int64_t most = needs_no_columns(f) ? POSITIONS : positions_for(f);
    const int64_t positions = f->images * outputs(f), chunks = pieces(positions, most);
    const int64_t columns_size = needs_no_columns(f) ? LANES : most * f->depth + LANES;
    int failed = 0;
    T *bordered = NAME(fits)(f) ? 0 : room(f->width * f->depth * sizeof(T), &failed);
    uint32_t *packed = room(kernel_size(f) * 4, &failed);
    if (!failed) NAME(lay_out)(f, weight, bordered, packed);
    #pragma omp parallel num_threads(f->threads)
    {
        const int64_t bytes = (1 + f->full) * columns_size * sizeof(T);
        T *columns = room(bytes, &failed), *patches = columns + f->full * columns_size;
        float *sum = room(most * f->width * sizeof(float), &failed);
        const struct tiles before = take_matrix_unit();
        if (columns) memset(columns, 0, bytes);
        #pragma omp barrier
        const int64_t all = failed ? 0 : chunks;
        #pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < all; chunk++) {
            const int64_t at = chunk * most, count = least(positions - at, most);
            NAME(sum_chunk)(f, x, m, at, count, packed, columns, patches, sum);
            T *to = y + at * f->y_pixel;
            for (int64_t j = 0; j < count; j++, to += f->y_pixel)
                for (int64_t i = 0; i < f->filters; i += LANES) {
                    vector v = load_float32(sum + j * f->width + i);
                    if (bias) v += NAME(load_some)(bias + i, f->filters - i);
                    NAME(store_some)(to + i, v, f->filters - i);
                }
        }
        release_matrix_unit(before);
        free(columns);
        free(sum);
    }
    free(packed);
    free(bordered);
    return failed;
}

/* The work space of one thread of backward. */
struct NAME(workspace) {
    T *columns, *patches, *outgoing;
    uint32_t *woven, *turned, *woven_columns;
    float *g, *images;
    vector *products;
};

/* The product of outgoing and columns of some positions, in panels; added to `grad_weight` if `more`. */
INLINE void NAME(correlate)(const struct frame *f, const struct NAME(workspace) *d, int64_t rows,
                            float *grad_weight, int more) {
    const int64_t tall = rows / (1 + PAIRED), most = positions_for(f) / (1 + PAIRED);
    struct matrix outgoing = {(uint32_t *)d->outgoing, TILE, f->width};
    struct matrix columns = {(uint32_t *)d->columns, TILE, f->depth};
    if (PAIRED) outgoing = panels(PAIRED, d->woven, d->outgoing, rows, f->width);
    if (PAIRED || f->width > NEAR)
        columns = panels(PAIRED, d->woven_columns, d->columns, rows, f->depth);
    for (int64_t o = 0; o < f->width; o += TILE)
        turn(d->turned + o * most, most, outgoing.at + o / TILE * outgoing.row, outgoing.step,
             tall, TILE);
    multiply(PAIRED, (struct matrix){d->turned, most, 1}, columns,
             (struct target){grad_weight, TILE, f->width * TILE}, rows_for(PAIRED, f->filters),
             f->taps * f->channels, tall, more);
}

/* Add the gradients of a chunk of images to `images` and, if `more`, `grad_weight`, and write grad_m's. */
INLINE void NAME(derive_chunk)(const struct frame *f, const struct NAME(workspace) *d, const T *x,
                               const float *m, const T *grad, struct matrix kernel,
                               float *grad_m, float *grad_weight, int more, int64_t at,
                               int64_t count) {
    if (needs_no_columns(f)) {
        NAME(depthwise_derive)(f, x, m, grad, (float *)kernel.at, d->images, grad_m, grad_weight, at,
                               count);
        return;
    }
    const int64_t rows = rows_of(f, PAIRED, count);
    memset(d->outgoing, 0, rows * f->width * sizeof(T));
    for (int64_t j = 0; j < count; j++)
        memcpy(d->outgoing + j * f->width, grad + (at + j) * f->y_pixel, f->filters * sizeof(T));
    if (grad_weight) {
        SPECIALISED(NAME(columns), f, x, m, at, count, d->columns, d->patches);
        memset(d->columns + count * f->depth, 0, (rows - count) * f->depth * sizeof(T));
        if (f->group)
            BY_EACH(NAME(grouped_correlate), f, d->outgoing, d->columns, grad_weight, count);
        else NAME(correlate)(f, d, rows, grad_weight, more);
    }
    if (!d->images && !grad_m) return;
    const struct matrix outgoing = {(uint32_t *)d->outgoing, f->width / (1 + PAIRED), 1};
    if (f->group)
        BY_EACH(NAME(grouped_expand), f, (float *)kernel.at, d->outgoing, d->g, count);
    else multiply(PAIRED, outgoing, kernel, (struct target){d->g, f->depth, TILE}, rows,
                  f->taps * f->channels, words_of(PAIRED, f->filters, f->width), 0);
    if (grad_m && !(f->full && grad_weight))
        SPECIALISED(NAME(gather), f, x, 0, at, count, d->patches);
    if (grad_m || f->full)
        SPECIALISED(NAME(derive), f, d->g, d->patches, m, grad_m, at, count, d->products);
    if (d->images) SPECIALISED(scatter, f, d->images, f->full ? 0 : m, at, count, d->g);
}

/* The gradient (filters, taps, channels) of the kernel as the sum of every thread's.

   Theirs are in panels: TILE entries of filter 0, TILE of filter 1, ..., then the next TILE of 0;
   or in the layout of `grouped.h`: entry 0 of LANES filters, entry 1 of these, ..., then the next
   filters. */
static void NAME(sum_kernels)(const struct frame *f, int64_t threads, const float *from, T *to) {
    const int64_t row = f->taps * (f->group ? f->group : f->channels), size = kernel_size(f);
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int64_t o = 0; o < f->filters; o++)
        for (int64_t k = 0; k < row; k += LANES) {
            vector sum = {0};
            for (int64_t thread = 0; thread < threads; thread++) {
                const float *own = from + thread * size;
                if (!f->group) sum += load_float32(own + k / TILE * TILE * f->width + o * TILE + k % TILE);
                else for (int64_t i = 0; i < least(LANES, row - k); i++)
                    sum[i] += own[(o / LANES * row + k + i) * LANES + o % LANES];
            }
            NAME(store_some)(to + o * row + k, sum, row - k);
        }
}

/* Pixels `from` to `to` of grad_x as the sums of `parts` images that are `apart` floats apart. */
static void NAME(write_images)(const struct frame *f, const float *images, int64_t apart,
                               int64_t parts, T *grad_x, int64_t from, int64_t to) {
    for (int64_t at = from; at < to; at++)
        for (int64_t i = 0; i < f->channels; i += LANES) {
            const float *own = images + at * f->channels + i;
            vector sum = load_some_float32(own, f->channels - i);
            for (int64_t part = 1; part < parts; part++)
                sum += load_some_float32(own + part * apart, f->channels - i);
            NAME(store_some)(grad_x + at * f->x_pixel + i, sum, f->channels - i);
        }
}

/* The gradients that are not null; grad_weight is (filters, taps, channels). Positions of an image
   add to the same input, so threads divide the images among them, or the positions of each image if
   there are more threads; each thread sums images and a grad_weight of its own. Returns what
   `forward` does. */
int NAME(backward)(const struct frame *f, const T *x, const float *m, const T *weight,
                   const T *grad, T *grad_x, float *grad_m, T *grad_weight) {
    const int64_t size = kernel_size(f), most = together(f), rows = positions_for(f);
    const int64_t pixels = inputs(f), image_size = most * pixels * f->channels;
    int64_t team = 1; /* actual threads: the system may give fewer than requested */
    int failed = 0;
    T *bordered = NAME(fits)(f) ? 0 : room(f->width * f->depth * sizeof(T), &failed);
    uint32_t *woven = room(size * 4, &failed);
    float *weights = grad_weight ? room(f->threads * size * sizeof(float), &failed) : 0;
    float *images = grad_x ? room(f->threads * image_size * sizeof(float), &failed) : 0;
    struct matrix kernel = {woven, 0, 0};
    if (!failed && f->group) NAME(pack)(f, weight, (float *)woven, 1);
    else if (!failed)
        kernel = panels(PAIRED, woven, NAME(border)(f, weight, bordered), f->width, f->depth);
    #pragma omp parallel num_threads(f->threads)
    {
        const int64_t tall = f->group ? 0 : rows / (1 + PAIRED), columns_size = rows * f->depth + LANES;
        const int64_t thread = omp_get_thread_num();
        struct NAME(workspace) d = {
            .columns = grad_weight ? room(columns_size * sizeof(T), &failed) : 0,
            .patches = grad_m || f->full ? room(columns_size * sizeof(T), &failed) : 0,
            .outgoing = room(rows * f->width * sizeof(T), &failed),
            .woven = room(tall * f->width * 4, &failed),
            .turned = room(tall * f->width * 4, &failed),
            .woven_columns = room(tall * f->depth * 4, &failed),
            .products = room((f->taps * f->taps + LANES) * sizeof(vector), &failed),
            .g = room(rows * f->depth * sizeof(float), &failed),
            .images = images ? images + thread * image_size : 0,
        };
        if (d.columns) memset(d.columns, 0, columns_size * sizeof(T));
        if (d.patches) memset(d.patches, 0, columns_size * sizeof(T));
        float *to_weight = weights ? weights + thread * size : 0;
        int more = f->group != 0; /* whether to_weight has numbers already */
        if (to_weight && more) memset(to_weight, 0, size * sizeof(float));
        if (thread == 0) team = omp_get_num_threads();
        const struct tiles before = take_matrix_unit();
        #pragma omp barrier
        const int64_t parts = parts_of(f, team);
        const struct share share = share_of(f, thread, team);
        for (int64_t image = share.first; !failed && image < share.last; image += most) {
            const int64_t some = least(share.last - image, most), positions = some * outputs(f);
            const int64_t done = image * outputs(f);
            if (d.images) memset(d.images, 0, some * pixels * f->channels * sizeof(float));
            const int64_t end = positions * (share.part + 1) / parts;
            for (int64_t at = positions * share.part / parts; at < end; at += rows, more = 1)
                NAME(derive_chunk)(f, &d, x + image * f->image, m ? m + done * f->m : 0,
                                   grad + done * f->y_pixel, kernel,
                                   grad_m ? grad_m + done * f->m : 0, to_weight, more, at,
                                   least(end - at, rows));
            if (d.images && parts == 1)
                NAME(write_images)(f, d.images, 0, 1, grad_x + image * f->image, 0, some * pixels);
        }
        if (to_weight && !more) memset(to_weight, 0, size * sizeof(float));
        #pragma omp barrier
        if (d.images && !failed && parts > 1 && share.first < share.last)
            NAME(write_images)(f, d.images - share.part * image_size, image_size, parts,
                               grad_x + share.first * f->image, pixels * share.part / parts,
                               pixels * (share.part + 1) / parts);
        release_matrix_unit(before);
        free(d.columns); free(d.patches); free(d.outgoing); free(d.woven); free(d.turned);
        free(d.woven_columns); free(d.g);
        free(d.products);
    }
    if (weights && !failed) NAME(sum_kernels)(f, team, weights, grad_weight);
    free(weights);
    free(images);
    free(woven);
    free(bordered);
    return failed;
}
