/* The parts of a predictor between its convolutions, each in one pass over a map of the element
   type T, rows of channels at every position. What has one number a position is float. See
   element.h. */

/* z = relu(y times factors), or z = tanh(y times factors + bias) if `bound`; factors are 1 where they
   are null. */
static void NAME(activated)(int64_t rows, int64_t channels, int64_t threads, const T *y,
                            const float *factors, const T *bias, int bound, T *z) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < channels; i += LANES) {
            const int64_t at = row * channels + i, lanes = channels - i;
            vector v = (factors ? factors[row] : 1) * NAME(load_some)(y + at, lanes);
            if (bias) v += NAME(load_some)(bias + i, lanes);
            NAME(store_some)(z + at, bound ? tanh_of(v) : relu(v), lanes);
        }
}

/* The gradients of y and, as sums over channels, of the factors, from y or from a rectified z,
   which stands for y times its factor. Factors are 1 where they are null. */
static void NAME(scaled_gradient)(int64_t rows, int64_t channels, int64_t threads, const T *grad,
                                  const T *z, const float *factors, int rectified, T *grad_y,
                                  float *grad_factors) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        vector total = {0};
        for (int64_t i = 0; i < channels; i += LANES) {
            const int64_t at = row * channels + i, lanes = channels - i;
            const vector seen = NAME(load_some)(z + at, lanes);
            const vector all = NAME(load_some)(grad + at, lanes);
            const vector g = rectified ? (vector)((words)all & ~(words)(seen <= 0)) : all;
            NAME(store_some)(grad_y + at, factors ? g * factors[row] : g, lanes);
            total += g * seen;
        }
        if (factors) grad_factors[row] = lane_sum(total) / (rectified ? factors[row] : 1);
    }
}

/* m = raw times the gain of its channel, plus 1 in every `every`-th channel. Returns 0, or 1 if
   memory ran out. */
static int NAME(gained)(int64_t rows, int64_t channels, int64_t threads, const T *raw,
                        const float *gain, int64_t every, float *m) {
    float *start = calloc(channels + LANES, sizeof(float));
    if (!start) return 1;
    for (int64_t c = 0; c < channels; c += every) start[c] = 1;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < channels; i += LANES) {
            const int64_t at = row * channels + i, lanes = channels - i;
            const vector v = load_some_float32(gain + i, lanes) * NAME(load_some)(raw + at, lanes);
            store_some_float32(m + at, load_float32(start + i) + v, lanes);
        }
    free(start);
    return 0;
}

/* The gradients of raw and, as sums over positions of each thread (threads, channels), of gain: in
   float over BRIEF rows, then in double. Returns 0, or 1 if memory ran out. */
static int NAME(gained_gradient)(int64_t rows, int64_t channels, int64_t threads,
                                 const float *grad, const T *raw, const float *gain, T *grad_raw,
                                 double *grad_gain) {
    int failed = 0;
    #pragma omp parallel num_threads(threads)
    {
        double *sums = grad_gain + omp_get_thread_num() * channels;
        float *few = room((channels + LANES) * sizeof(float), &failed);
        #pragma omp barrier
        #pragma omp for schedule(static)
        for (int64_t brief = 0; brief < (failed ? 0 : pieces(rows, BRIEF)); brief++) {
            memset(few, 0, (channels + LANES) * sizeof(float));
            for (int64_t row = brief * BRIEF; row < least(rows, (brief + 1) * BRIEF); row++)
                for (int64_t i = 0; i < channels; i += LANES) {
                    const int64_t at = row * channels + i, lanes = channels - i;
                    const vector g = load_some_float32(grad + at, lanes);
                    const vector product = g * NAME(load_some)(raw + at, lanes);
                    NAME(store_some)(grad_raw + at, g * load_some_float32(gain + i, lanes), lanes);
                    store_float32(few + i, load_float32(few + i) + product);
                }
            for (int64_t c = 0; c < channels; c++) sums[c] += few[c];
        }
        free(few);
    }
    return failed;
}

/* factors = scale / sqrt(eps + the squares of every patch). Returns 0, or 1 if memory ran out. */
static int NAME(patch_factors)(const struct frame *f, const T *x, float eps, float scale,
                               float *factors) {
    const int64_t positions = f->images * outputs(f), rows = pieces(positions, f->out[2]);
    const int64_t pixels = f->images * inputs(f), n = f->channels;
    int failed = 0;
    float *energies = room(pixels * sizeof(float), &failed);
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int64_t pixel = 0; pixel < (failed ? 0 : pixels); pixel++) {
        vector total = {0};
        for (int64_t i = 0; i < n; i += LANES) {
            const vector v = NAME(load_some)(x + pixel * n + i, n - i);
            total += v * v;
        }
        energies[pixel] = lane_sum(total);
    }
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int64_t row = 0; row < (failed ? 0 : rows); row++) {
        float *to = factors + row * f->out[2];
        const struct line line = line_of(f, row * f->out[2], f->out[2]);
        for (int64_t j = 0; j < line.run; j++) to[j] = eps;
        for (int64_t t = 0; t < f->taps; t++) {
            const struct reach reach = reach_of(f, line, t);
            const float *from = energies + reach.offset;
            for (int64_t j = reach.first; j < reach.last; j++) to[j] += from[j * reach.step];
        }
        for (int64_t j = 0; j < line.run; j++) to[j] = scale / sqrtf(to[j]);
    }
    free(energies);
    return failed;
}

/* Add to grad_x the gradient of x by that of its factors: x times what its patches ask for.
   A factor of 0 is of a norm that has overflowed, and asks for nothing: its gradient, divided by 0,
   may be NaN. */
static int NAME(patch_factors_gradient)(const struct frame *f, const float *grad, const T *x,
                                        const float *factors, float scale, T *grad_x) {
    const int64_t rows = f->out[0] * f->out[1], size = f->out[2], n = f->channels;
    const int64_t pixels = f->images * inputs(f);
    int failed = 0;
    float *wanted = room(pixels * sizeof(float), &failed);
    float *asked = room(f->threads * size * sizeof(float), &failed);
    if (wanted) memset(wanted, 0, pixels * sizeof(float));
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int64_t image = 0; image < (failed ? 0 : f->images); image++)
        for (int64_t row = image * rows; row < (image + 1) * rows; row++) {
            const struct line line = line_of(f, row * size, size);
            const float *g = grad + row * size, *factor = factors + row * size;
            float *own = asked + omp_get_thread_num() * size;
            for (int64_t j = 0; j < size; j++)
                own[j] = factor[j] == 0 ? 0
                    : g[j] * factor[j] * (factor[j] / scale) * (factor[j] / scale);
            for (int64_t t = 0; t < f->taps; t++) {
                const struct reach reach = reach_of(f, line, t);
                float *to = wanted + reach.offset;
                for (int64_t j = reach.first; j < reach.last; j++) to[j * reach.step] -= own[j];
            }
        }
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int64_t pixel = 0; pixel < (failed ? 0 : pixels); pixel++)
        for (int64_t i = 0; i < n; i += LANES) {
            T *to = grad_x + pixel * n + i;
            const vector v = wanted[pixel] * NAME(load_some)(x + pixel * n + i, n - i);
            NAME(store_some)(to, NAME(load_some)(to, n - i) + v, n - i);
        }
    free(wanted);
    free(asked);
    return failed;
}

/* The sums over rows, in T or in float: in float over BRIEF rows, then in double. */
static void NAME(sum_rows)(int64_t rows, int64_t columns, const T *from, T *to, float *wide) {
    for (int64_t c = 0; c < columns; c += LANES) {
        double sums[LANES] = {0};
        for (int64_t r = 0; r < rows; r += BRIEF) {
            vector some = {0};
            for (int64_t i = r; i < least(rows, r + BRIEF); i++)
                some += NAME(load_some)(from + i * columns + c, columns - c);
            for (int lane = 0; lane < LANES; lane++) sums[lane] += some[lane];
        }
        for (int64_t i = c; i < least(columns, c + LANES); i++)
            if (to) to[i] = NAME(narrow)(sums[i - c]);
            else wide[i] = sums[i - c];
    }
}

/* The gradient g of what tanh made r of. */
static void NAME(bound_gradient)(int64_t size, const T *raw, T *g) {
    for (int64_t i = 0; i < size; i += LANES) {
        const vector r = NAME(load_some)(raw + i, size - i);
        NAME(store_some)(g + i, NAME(load_some)(g + i, size - i) * (1 - r * r), size - i);
    }
}

/* The gradient of r by that of M = I + gain r, and gain's. */
static int NAME(gain_gradient)(const struct sizes *z, int64_t threads, const float *of_m,
                               const T *raw, const float *gain, T *of_raw, float *grad_gain,
                               char *at) {
    double *sums = share(&at, threads * z->s * sizeof(double));
    memset(sums, 0, threads * z->s * sizeof(double));
    const int failed = NAME(gained_gradient)(z->rows, z->s, threads, of_m, raw, gain, of_raw, sums);
    for (int64_t t = threads * z->s - 1; t >= z->s; t--) sums[t % z->s] += sums[t];
    for (int64_t t = 0; grad_gain && t < z->s; t++) grad_gain[t] = sums[t];
    return failed;
}
