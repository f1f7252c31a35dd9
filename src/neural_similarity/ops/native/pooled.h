/* The ReLU of the largest v = slope x + offset of every 2 x 2 window of maps (images, height,
   width, n), channels-last, for the element type T. A last odd row or column is in no window, and
   of equals the first counts. See element.h. */

struct NAME(window) { vector x[4], most; words chosen; }; /* chosen: whose v is the most */

INLINE struct NAME(window) NAME(window_at)(const T *x, int64_t n, int64_t width, vector slope,
                                           vector offset, int64_t lanes) {
    struct NAME(window) w;
    for (int k = 0; k < 4; k++)
        w.x[k] = NAME(load_some)(x + (k / 2 * width + k % 2) * n, lanes);
    w.most = slope * w.x[0] + offset;
    w.chosen = (words){0};
    for (uint32_t k = 1; k < 4; k++) {
        const vector v = slope * w.x[k] + offset;
        const words better = (words)(v > w.most) | (words)(v != v);
        w.most = (vector)(((words)v & better) | ((words)w.most & ~better));
        w.chosen = (w.chosen & ~better) | (better & k);
    }
    return w;
}

/* v where the window chose its number k, 0 elsewhere. */
INLINE vector NAME(where)(struct NAME(window) w, uint32_t k, vector v) {
    return (vector)((words)v & (words)(w.chosen == k));
}

/* The first window of a row of windows, all images' rows being counted on. */
INLINE const T *NAME(windows)(const T *x, int64_t row, int64_t rows, int64_t height, int64_t width,
                              int64_t n) {
    return x + (row / rows * height + row % rows * 2) * width * n;
}

void NAME(pool_relu)(int64_t images, int64_t height, int64_t width, int64_t n, int64_t threads,
                     const T *x, const float *line, T *z) {
    const int64_t rows = height / 2, columns = width / 2;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < images * rows; row++) {
        const T *from = NAME(windows)(x, row, rows, height, width, n);
        T *to = z + row * columns * n;
        for (int64_t at = 0; at < columns; at++, from += 2 * n, to += n)
            for (int64_t i = 0; i < n; i += LANES) {
                const vector slope = load_some_float32(line + i, n - i);
                const vector offset = load_some_float32(line + n + i, n - i);
                const vector most =
                    NAME(window_at)(from + i, n, width, slope, offset, n - i).most;
                NAME(store_some)(to + i, above_zero(most, most), n - i);
            }
    }
}

/* Over a row's windows, `count` of them, of one vector of channels, the sums of v and v (x -
   centre): v is the gradient g where it passes, x what the window chose. */
INLINE void NAME(pool_sums_of)(int64_t count, int64_t n, int64_t width, const T *x, const T *g,
                               const float *line, const float *centre, double *sum,
                               int64_t lanes) {
    const vector middle = load_some_float32(centre, lanes);
    const vector slope = load_some_float32(line, lanes);
    const vector offset = load_some_float32(line + n, lanes);
    vector first = {0}, second = {0};
    for (int64_t at = 0; at < count; at++) {
        const struct NAME(window) w =
            NAME(window_at)(x + at * 2 * n, n, width, slope, offset, lanes);
        const vector v = above_zero(NAME(load_some)(g + at * n, lanes), w.most);
        vector away = {0};
        for (uint32_t k = 0; k < 4; k++) away += NAME(where)(w, k, w.x[k] - middle);
        first += v;
        second += v * away;
    }
    for (int64_t lane = 0; lane < lanes; lane++) {
        sum[lane] += first[lane];
        sum[n + lane] += second[lane];
    }
}

/* `pool_sums_of` all windows and channels, each thread's own. */
void NAME(pool_sums)(int64_t images, int64_t height, int64_t width, int64_t n, int64_t threads,
                     const T *x, const T *g, const float *line, const float *centre,
                     double *sums) {
    const int64_t rows = height / 2, columns = width / 2;
    #pragma omp parallel num_threads(threads)
    {
        double *sum = sums + omp_get_thread_num() * 2 * n;
        #pragma omp for schedule(static)
        for (int64_t row = 0; row < images * rows; row++) {
            const T *from = NAME(windows)(x, row, rows, height, width, n);
            for (int64_t at = 0; at < columns; at += POSITIONS) {
                const int64_t count = least(columns - at, POSITIONS);
                const T *some = from + at * 2 * n, *grad = g + (row * columns + at) * n;
                for (int64_t i = 0; i < n; i += LANES) {
                    #define SUMS(lanes)                                                        \
                        NAME(pool_sums_of)(count, n, width, some + i, grad + i, line + i,      \
                                           centre + i, sum + i, lanes)
                    if (n - i < LANES) SUMS(n - i);
                    else SUMS(LANES);
                    #undef SUMS
                }
            }
        }
    }
}

/* Of v, maps like x, what every window of x chose, where its most is above 0; 0 elsewhere. */
void NAME(pool_chosen)(int64_t images, int64_t height, int64_t width, int64_t n, int64_t threads,
                       const T *x, const T *v, const float *line, T *z) {
    const int64_t rows = height / 2, columns = width / 2;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < images * rows; row++) {
        const int64_t start = NAME(windows)(x, row, rows, height, width, n) - x;
        T *to = z + row * columns * n;
        for (int64_t at = 0; at < columns; at++, to += n)
            for (int64_t i = 0; i < n; i += LANES) {
                const int64_t from = start + at * 2 * n + i;
                const vector slope = load_some_float32(line + i, n - i);
                const vector offset = load_some_float32(line + n + i, n - i);
                const struct NAME(window) w =
                    NAME(window_at)(x + from, n, width, slope, offset, n - i);
                vector found = {0};
                for (uint32_t k = 0; k < 4; k++) {
                    const T *one = v + from + (k / 2 * width + k % 2) * n;
                    found += NAME(where)(w, k, NAME(load_some)(one, n - i));
                }
                NAME(store_some)(to + i, above_zero(found, w.most), n - i);
            }
    }
}

/* The gradient of x: factor g + level + tilt x where g passes and level + tilt x elsewhere. `line`
   has levels, tilts and factors behind the offsets. */
void NAME(pool_relu_backward)(int64_t images, int64_t height, int64_t width, int64_t n,
                              int64_t threads, const T *x, const T *g, const float *line,
                              T *grad_x) {
    const int64_t rows = (height + 1) / 2, columns = width / 2;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < images * rows; row++) {
        const int64_t start = NAME(windows)(x, row, rows, height, width, n) - x;
        const int paired = row % rows * 2 + 1 < height;
        const int64_t whole = paired ? columns : 0;
        const T *grad = g + (row / rows * (height / 2) + row % rows) * columns * n;
        for (int64_t i = 0; i < n; i += LANES) {
            const vector slope = load_some_float32(line + i, n - i);
            const vector offset = load_some_float32(line + n + i, n - i);
            const vector level = load_some_float32(line + 2 * n + i, n - i);
            const vector tilt = load_some_float32(line + 3 * n + i, n - i);
            const vector factor = load_some_float32(line + 4 * n + i, n - i);
            for (int64_t at = 0; at < whole; at++) {
                const int64_t from = start + at * 2 * n + i;
                const struct NAME(window) w =
                    NAME(window_at)(x + from, n, width, slope, offset, n - i);
                const vector passed =
                    factor * above_zero(NAME(load_some)(grad + at * n + i, n - i), w.most);
                for (uint32_t k = 0; k < 4; k++)
                    NAME(store_some)(grad_x + from + (k / 2 * width + k % 2) * n,
                                     NAME(where)(w, k, passed) + level + tilt * w.x[k], n - i);
            }
            for (int64_t y = 0; y <= paired; y++)
                for (int64_t at = 2 * whole; at < width; at++) {
                    const int64_t from = start + (y * width + at) * n + i;
                    const vector alone = NAME(load_some)(x + from, n - i);
                    NAME(store_some)(grad_x + from, level + tilt * alone, n - i);
                }
        }
    }
}
