/* The loops over positions, once for every element type T; NAME(f) is f's form for it. */

/* Where the window's first tap of the first position of a row of positions lies. */
INLINE int64_t NAME(start)(const struct frame *f, int64_t row) {
    const int64_t h = row % f->out[1], rest = row / f->out[1];
    return rest / f->out[0] * f->image + rest % f->out[0] * f->step[0] + h * f->step[1];
}

INLINE vector NAME(load_some)(const T *from, int64_t lanes) {
    if (lanes >= LANES) return NAME(load)(from);
    vector v = {0};
    for (int lane = 0; lane < lanes; lane++) v[lane] = NAME(wide)(from[lane]);
    return v;
}

INLINE void NAME(store_some)(T *to, vector v, int64_t lanes) {
    if (lanes >= LANES) NAME(store)(to, v);
    else for (int lane = 0; lane < lanes; lane++) to[lane] = NAME(narrow)(v[lane]);
}

/* Diagonal M at one position: columns = m x, grad_x += m g, grad_m = <g, x> over n channels.
   columns, grad_x and grad_m may each be absent. */
INLINE void NAME(scale)(const struct frame *f, const T *x, const float *m, T *columns,
                        const T *grad, float *grad_x, float *grad_m, int64_t taps, int64_t n) {
    for (int64_t t = 0; t < taps; t++) {
        vector product = {0};
        for (int64_t i = 0; i < n; i += LANES) {
            const vector v = NAME(load_some)(x + f->offset[t] + i, n - i);
            if (columns) NAME(store_some)(columns + t * f->channels + i, m[t] * v, n - i);
            if (!grad) continue;
            const vector g = NAME(load_some)(grad + t * f->channels + i, n - i);
            if (grad_m) product += g * v;
            if (grad_x) add(grad_x + f->offset[t] + i, m[t] * g, n - i);
        }
        if (grad_m) {
            float sum = 0;
            for (int lane = 0; lane < LANES; lane++) sum += product[lane];
            grad_m[t] = sum;
        }
    }
}

/* Full M at one position: columns = M x, grad_x += Mᵀ g, grad_m = g xᵀ over n channels. */
INLINE void NAME(mix)(const struct frame *f, const T *x, const float *m, T *columns,
                      const T *grad, float *grad_x, float *grad_m, int64_t taps, int64_t n) {
    vector patch[MOST_TAPS], outgoing[MOST_TAPS];
    if (grad_m) memset(grad_m, 0, taps * taps * sizeof(float));
    for (int64_t i = 0; i < n; i += LANES) {
        for (int64_t t = 0; t < taps; t++)
            patch[t] = NAME(load_some)(x + f->offset[t] + i, n - i);
        for (int64_t s = 0; columns && s < taps; s++) {
            vector sum = {0};
            for (int64_t t = 0; t < taps; t++) sum += m[s * taps + t] * patch[t];
            NAME(store_some)(columns + s * f->channels + i, sum, n - i);
        }
        if (!grad) continue;
        for (int64_t s = 0; s < taps; s++)
            outgoing[s] = NAME(load_some)(grad + s * f->channels + i, n - i);
        for (int64_t t = 0; grad_x && t < taps; t++) {
            vector sum = {0};
            for (int64_t s = 0; s < taps; s++) sum += m[s * taps + t] * outgoing[s];
            add(grad_x + f->offset[t] + i, sum, n - i);
        }
        for (int64_t base = 0; grad_m && base < taps * taps; base += LANES) {
            vector products[LANES] = {0};
            for (int64_t j = base; j < base + LANES && j < taps * taps; j++)
                products[j - base] = outgoing[j / taps] * patch[j % taps];
            add(grad_m + base, sums(products), taps * taps - base);
        }
    }
}

/* All positions. Rows of one image add to the same input, so backward shares out images. */
#define POSITIONS(KERNEL, PER_TAP)                                                               \
    void NAME(KERNEL##_positions)(const struct frame *f, const T *x, const float *m, T *columns, \
                                  const T *grad, float *grad_x, float *grad_m) {                 \
        const int64_t rows = f->out[0] * f->out[1], width = f->out[2];                           \
        const int64_t n = f->channels / f->blocks, entries = PER_TAP * f->taps;                  \
        const int64_t share = grad_x ? rows : 1, shares = f->images * rows / share;              \
        _Pragma("omp parallel for num_threads(f->threads) schedule(static)")                     \
        for (int64_t part = 0; part < shares; part++)                                            \
            for (int64_t row = part * share; row < (part + 1) * share; row++)                    \
                for (int64_t at = row * width; at < (row + 1) * width; at++)                     \
                    for (int64_t block = 0; block < f->blocks; block++) {                        \
                        const int64_t from = NAME(start)(f, row) + (at - row * width) *          \
                            f->step[2] + block * n;                                              \
                        const int64_t to = at * f->taps * f->channels + block * n;               \
                        const int64_t of_m = (at * f->blocks + block) * entries;                 \
                        T *out = columns ? columns + to : 0;                                     \
                        const T *in = grad ? grad + to : 0;                                      \
                        float *gx = grad_x ? grad_x + from : 0, *gm = grad_m ? grad_m + of_m : 0; \
                        /* Sizes that the compiler knows make the loops several times faster. */ \
                        if (f->taps == 9 && n == 32)                                             \
                            NAME(KERNEL)(f, x + from, m + of_m, out, in, gx, gm, 9, 32);         \
                        else if (f->taps == 9 && n % 32 == 0)                                    \
                            NAME(KERNEL)(f, x + from, m + of_m, out, in, gx, gm, 9, n & ~31L);   \
                        else                                                                     \
                            NAME(KERNEL)(f, x + from, m + of_m, out, in, gx, gm, f->taps, n);    \
                    }                                                                            \
    }
POSITIONS(scale, 1)
POSITIONS(mix, f->taps)
#undef POSITIONS
