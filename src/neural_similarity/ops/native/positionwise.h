/* Operators on maps of P positions with n channels, channels-last, and on one number d per position,
   for the element type T. See element.h. */

INLINE vector NAME(gated)(vector v, const T *gate, int64_t lanes) {
    if (!gate) return v;
    return above_zero(v, NAME(load_some)(gate, lanes));
}

/* d = <x, y> over the n channels of a position, where the gate is open. */
void NAME(dot)(int64_t positions, int64_t n, int64_t threads, const T *x, const T *y,
               const T *gate, float *d) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t at = 0; at < positions; at++) {
        vector product = {0};
        for (int64_t i = 0, from = at * n; i < n; i += LANES)
            product += NAME(gated)(NAME(load_some)(x + from + i, n - i) *
                                   NAME(load_some)(y + from + i, n - i),
                                   gate ? gate + from + i : 0, n - i);
        d[at] = total(product);
    }
}

/* z = d x at every position, where the gate is open. */
void NAME(scale)(int64_t positions, int64_t n, int64_t threads, const float *d, const T *x,
                 const T *gate, T *z) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t at = 0; at < positions; at++)
        for (int64_t i = 0, from = at * n; i < n; i += LANES)
            NAME(store_some)(z + from + i, NAME(gated)(d[at] * NAME(load_some)(x + from + i, n - i),
                                                       gate ? gate + from + i : 0, n - i), n - i);
}

/* t = d x of some channels at a position; x where there is no d. */
INLINE vector NAME(scaled)(const float *d, const T *x, int64_t at, int64_t lanes) {
    const vector v = NAME(load_some)(x, lanes);
    return d ? d[at] * v : v;
}

/* Over some positions, of one vector of channels, the sums of v and of v (t - centre): v is the
   gradient g where slope t + offset is above 0, or t - centre where there is no g. */
INLINE void NAME(norm_sums_of)(int64_t from, int64_t to, int64_t n, const float *d, const T *x,
                               const T *g, const float *line, const float *centre, double *sum,
                               int64_t lanes) {
    const vector middle = load_some_float32(centre, lanes);
    const vector slope = g ? load_some_float32(line, lanes) : middle;
    const vector offset = g ? load_some_float32(line + n, lanes) : middle;
    vector first = {0}, second = {0};
    for (int64_t at = from; at < to; at++) {
        const vector t = NAME(scaled)(d, x + at * n, at, lanes), away = t - middle;
        const vector v =
            g ? above_zero(NAME(load_some)(g + at * n, lanes), slope * t + offset) : away;
        first += v;
        second += v * away;
    }
    for (int64_t lane = 0; lane < lanes; lane++) {
        sum[lane] += first[lane];
        sum[n + lane] += second[lane];
    }
}

/* `norm_sums_of` all positions and channels, each thread's own. */
void NAME(norm_sums)(int64_t positions, int64_t n, int64_t threads, const float *d, const T *x,
                     const T *g, const float *line, const float *centre, double *sums) {
    const int64_t chunks = chunks_of(positions);
    #pragma omp parallel num_threads(threads)
    {
        double *sum = sums + omp_get_thread_num() * 2 * n;
        #pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const int64_t from = chunk * POSITIONS, to = least(from + POSITIONS, positions);
            for (int64_t i = 0; i < n; i += LANES) {
                #define SUMS(d, g, lanes)                                                     \
                    NAME(norm_sums_of)(from, to, n, d, x + i, g, line + i, centre + i, sum + i, \
                                       lanes)
                if (n - i < LANES) SUMS(d, g ? g + i : 0, n - i);
                else if (d && g) SUMS(d, g + i, LANES);
                else if (d) SUMS(d, 0, LANES);
                else SUMS(d, g ? g + i : 0, LANES);
                #undef SUMS
            }
        }
    }
}

/* z = slope t + offset where that is above 0. */
void NAME(norm_relu)(int64_t positions, int64_t n, int64_t threads, const float *d, const T *x,
                     const float *line, T *z) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t at = 0; at < positions; at++)
        for (int64_t i = 0; i < n; i += LANES) {
            const vector t = NAME(scaled)(d, x + at * n + i, at, n - i);
            const vector v = load_some_float32(line + i, n - i) * t +
                             load_some_float32(line + n + i, n - i);
            NAME(store_some)(z + at * n + i, above_zero(v, v), n - i);
        }
}

/* From the gradient g of z that of t, slope g + level + tilt t where g passes and level + tilt t
   elsewhere, and from it those of x and of d. `line` has levels and tilts behind the offsets. */
void NAME(norm_relu_backward)(int64_t positions, int64_t n, int64_t threads, const float *d,
                              const T *x, const T *g, const float *line, float *grad_d,
                              T *grad_x) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t at = 0; at < positions; at++) {
        vector product = {0};
        for (int64_t i = 0; i < n; i += LANES) {
            const vector t = NAME(scaled)(d, x + at * n + i, at, n - i);
            const vector slope = load_some_float32(line + i, n - i);
            const vector offset = load_some_float32(line + n + i, n - i);
            const vector passed =
                above_zero(NAME(load_some)(g + at * n + i, n - i), slope * t + offset);
            const vector v = slope * passed +
                             load_some_float32(line + 2 * n + i, n - i) +
                             load_some_float32(line + 3 * n + i, n - i) * t;
            NAME(store_some)(grad_x + at * n + i, d ? d[at] * v : v, n - i);
            product += v * NAME(load_some)(x + at * n + i, n - i);
        }
        if (grad_d) grad_d[at] = total(product);
    }
}

/* z = slope x + offset at every position, in float32. */
void NAME(affine)(int64_t positions, int64_t n, int64_t threads, const T *x, const float *line,
                  float *z) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t at = 0; at < positions; at++)
        for (int64_t i = 0; i < n; i += LANES)
            store_some_float32(z + at * n + i,
                               load_some_float32(line + i, n - i) *
                                       NAME(load_some)(x + at * n + i, n - i) +
                                   load_some_float32(line + n + i, n - i), n - i);
}

/* Over some positions, of one vector of channels, the sum of g x; the gradient of x is slope g. */
INLINE void NAME(affine_backward_of)(int64_t from, int64_t to, int64_t n, const T *x,
                                     const float *g, const float *slope, T *grad_x, double *sum,
                                     int64_t lanes) {
    const vector factor = load_some_float32(slope, lanes);
    vector products = {0};
    for (int64_t at = from * n; at < to * n; at += n) {
        const vector v = load_some_float32(g + at, lanes);
        products += v * NAME(load_some)(x + at, lanes);
        NAME(store_some)(grad_x + at, factor * v, lanes);
    }
    for (int64_t lane = 0; lane < LANES && lane < lanes; lane++) sum[lane] += products[lane];
}

/* From the gradient g of `affine`'s z that of x, and that of every slope, each thread's own. */
void NAME(affine_backward)(int64_t positions, int64_t n, int64_t threads, const T *x,
                           const float *g, const float *slope, double *sums, T *grad_x) {
    const int64_t chunks = chunks_of(positions);
    #pragma omp parallel num_threads(threads)
    {
        double *sum = sums + omp_get_thread_num() * n;
        #pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const int64_t from = chunk * POSITIONS, to = least(from + POSITIONS, positions);
            for (int64_t i = 0; i < n; i += LANES)
                NAME(affine_backward_of)(from, to, n, x + i, g + i, slope + i, grad_x + i,
                                         sum + i, n - i);
        }
    }
}
