/* The operators for the element type T; NAME(f) is f for this type, PAIRED whether T is half a
   word. Maps are channels-last. Several positions are taken at a time; their patches and columns
   are rows of taps x channels, padded with zeros to `depth` elements. */

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

/* Channels of an input at one tap, times the entry of m for their block. */
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

/* `take` for positions of a line, with one block and whole pairs of vectors. Not to be inlined: the
   loops that call it do not have enough registers. */
static __attribute__((noinline)) void NAME(take_row)(T *to, const T *from, const float *m,
                                                     int64_t count, int64_t n, int64_t to_step,
                                                     int64_t from_step, int64_t m_step) {
    for (int64_t j = 0; j < count; j++, to += to_step, from += from_step, m += m_step)
        for (int64_t i = 0; i < n; i += 2 * LANES) NAME(times)(to + i, from + i, *m);
}

/* Copy the n channels that a tap sees from each position of a line into rows `to_step` apart; times
   the diagonal M if `m` is given. */
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

/* `look` for the taps of a kernel row from t on, which see adjacent pixels: `row_taps` times n numbers,
   each times the entry of m for its tap. Not to be inlined for every number of taps. */
static __attribute__((noinline)) void NAME(look_along)(const struct frame *f, struct line line,
                                                       int64_t t, const T *x, const float *m,
                                                       T *to, int64_t n) {
    const struct reach reach = reach_of(f, line, t);
    const int64_t size = f->row_taps * n, width = f->in[2], from = line.first[2] + f->tap[t][2];
    words tap_of[FEW_CHANNELS]; /* the tap of every lane */
    for (int64_t i = 0; i < size; i += LANES) tap_of[i / LANES] = (LANE + (uint32_t)i) / (uint32_t)n;
    for (int64_t j = 0; j < line.run; j++, to += f->depth, m += m ? f->m : 0) {
        const int64_t left = from + j * reach.step;
        const int64_t skip = reach.last ? (left < 0 ? least(-left, f->row_taps) : 0) * n : size;
        const int64_t end = reach.last ? (left < width ? least(width - left, f->row_taps) : 0) * n : 0;
        const T *in = x + (reach.offset + j * reach.step) * n;
        const vector factors = m ? load_some_float32(m + t, f->row_taps) : (vector){0};
        for (int64_t i = 0; i < size; i += LANES) {
            vector v = {0};
            if (skip <= i && i + least(size - i, LANES) <= end) v = NAME(load_some)(in + i, size - i);
            else for (int64_t k = i; k < least(size, i + LANES); k++)
                v[k - i] = k < skip || k >= end ? 0 : NAME(wide)(in[k]);
            if (m) v *= __builtin_shuffle(factors, tap_of[i / LANES]);
            NAME(store_some)(to + i, v, size - i);
        }
    }
}

/* Gather the patches of positions from `at` on; times the diagonal M if `m` is given. */
INLINE void NAME(gather)(const struct frame *f, const T *x, const float *m, int64_t at,
                         int64_t count, T *to, int64_t taps, int64_t n, int64_t blocks) {
    for (int64_t done = 0, run; done < count; done += run) {
        const struct line line = line_of(f, at + done, count - done);
        run = line.run;
        const float *own = m ? m + (at + done) * f->m : 0;
        T *rows = to + done * f->depth;
        if (goes_along(f))
            for (int64_t t = 0; t < taps; t += f->row_taps)
                NAME(look_along)(f, line, t, x, own, rows + t * n, n);
        else
            for (int64_t t = 0; t < taps; t++)
                NAME(look)(f, line, t, x, own, rows + t * n, f->depth, taps, n, blocks);
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

/* `agree` for few channels: products first, then the sum of each tap. */
static __attribute__((noinline)) void NAME(agree_few)(float *grad_m, const float *g, const T *x,
                                                      int64_t taps, int64_t n, int more) {
    float products[MOST_TAPS * FEW_CHANNELS + LANES];
    for (int64_t i = 0; i < taps * n; i += LANES)
        store_float32(products + i, NAME(load_some)(x + i, taps * n - i) *
                                    load_some_float32(g + i, taps * n - i));
    for (int64_t t = 0; t < taps; t++) {
        float sum = more ? grad_m[t] : 0;
        for (int64_t c = 0; c < n; c++) sum += products[t * n + c];
        grad_m[t] = sum;
    }
}

/* Whether the matrix unit computes the taps x taps products over n channels. */
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

/* `outer` without the matrix unit, for n <= LANES: x is transposed, so that lanes are its taps and
   a row of grad_m is Σ_c g[s][c] x[.][c]. With few channels, sums over lanes would take longer than
   the products. */
INLINE void NAME(outer_few)(float *grad_m, const float *g, const T *x, int64_t taps, int64_t n,
                            int64_t step, int more) {
    float rows[LANES * LANES], turned[LANES * LANES];
    for (int64_t base = 0; base < taps; base += LANES) {
        const int64_t some = least(taps - base, LANES);
        for (int64_t t = 0; t < some; t++)
            store_float32(rows + t * LANES, NAME(load_some)(x + (base + t) * step, n));
        transpose((uint32_t *)turned, LANES, (uint32_t *)rows, LANES, some);
        for (int64_t s = 0; s < taps; s++) {
            float *to = grad_m + s * taps + base;
            vector sum = more ? load_some_float32(to, some) : (vector){0};
            for (int64_t c = 0; c < n; c++)
                sum += g[s * step + c] * load_float32(turned + c * LANES);
            store_some_float32(to, sum, some);
        }
    }
}

/* Full M at one position: grad_m = g xᵀ, if it is wanted, and then g = Mᵀ g. */
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

/* The columns of some positions, M times their patches; `patches` is work space for a full M. */
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

/* From the columns' gradient g compute M's and the patches'; g becomes the patches' gradient,
   except for the factors of a diagonal M. */
INLINE void NAME(derive)(const struct frame *f, float *g, const T *patches, const float *m,
                         float *grad_m, int64_t at, int64_t count, vector *products,
                         int64_t taps, int64_t n,
                         int64_t blocks) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t block = 0, b = n / blocks; block < blocks; block++) {
            const int64_t of_m = (at + j) * f->m + block * (f->full ? taps * taps : taps);
            float *gradient = grad_m ? grad_m + of_m : 0, *outgoing = g + j * f->depth + block * b;
            const T *patch = patches + j * f->depth + block * b;
            if (f->full && gradient && (NAME(squares)(f, taps, b) || b <= LANES)) {
                if (b <= LANES) NAME(outer_few)(gradient, outgoing, patch, taps, b, n, f->accumulate);
                else NAME(outer)(gradient, outgoing, patch, taps, b, n, f->accumulate);
                gradient = 0;
            }
            if (f->full)
                NAME(unmix)(gradient, outgoing, patch, m + of_m, products, taps, b, n, f->accumulate);
            else if (gradient && goes_along(f))
                NAME(agree_few)(gradient, outgoing, patch, taps, n, f->accumulate);
            else if (gradient)
                NAME(agree)(gradient, outgoing, patch, taps, b, n, f->accumulate);
        }
}
