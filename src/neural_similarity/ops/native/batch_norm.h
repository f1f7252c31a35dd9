/* Sums of each channel of maps, and pooling: each 2 x 2 window of maps (images, height, width, n)
   chooses its largest v = slope x + offset, the first if several are equal. A last odd row or
   column is in no window. Maps are channels-last, of the element type T. See element.h. */

/* For one vector of channels, the sums of x - centre and of its square over some positions. */
INLINE void NAME(channel_sums_of)(int64_t from, int64_t to, int64_t n, const T *x,
                                  const float *centre, double *sum, int64_t lanes) {
    const vector middle = load_some_float32(centre, lanes);
    vector first = {0}, second = {0};
    for (int64_t at = from; at < to; at++) {
        const vector away = NAME(load_some)(x + at * n, lanes) - middle;
        first += away;
        second += away * away;
    }
    for (int64_t lane = 0; lane < lanes; lane++) {
        sum[lane] += first[lane];
        sum[n + lane] += second[lane];
    }
}

/* `channel_sums_of` all positions and channels, a partial sum per thread. */
void NAME(channel_sums)(int64_t images, int64_t height, int64_t width, int64_t n, int64_t threads,
                        const T *x, const float *centre, double *sums) {
    const int64_t positions = images * height * width, chunks = pieces(positions, POSITIONS);
    #pragma omp parallel num_threads(threads)
    {
        double *sum = sums + omp_get_thread_num() * 2 * n;
        #pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const int64_t from = chunk * POSITIONS, to = least(from + POSITIONS, positions);
            for (int64_t i = 0; i < n; i += LANES)
                NAME(channel_sums_of)(from, to, n, x + i, centre + i, sum + i,
                                      least(n - i, LANES));
        }
    }
}

struct NAME(window) { vector most; words chosen; }; /* chosen: the index of the largest v */

INLINE struct NAME(window) NAME(window_at)(const T *x, int64_t n, int64_t width,
                                           const float *line, int64_t lanes) {
    const vector slope = load_some_float32(line, lanes);
    const vector offset = load_some_float32(line + n, lanes);
    struct NAME(window) w = {slope * NAME(load_some)(x, lanes) + offset, {0}};
    for (uint32_t k = 1; k < 4; k++) {
        const vector v =
            slope * NAME(load_some)(x + (k / 2 * width + k % 2) * n, lanes) + offset;
        const words better = (words)(v > w.most) | (words)(v != v);
        w.most = (vector)(((words)v & better) | ((words)w.most & ~better));
        w.chosen = (w.chosen & ~better) | (better & k);
    }
    return w;
}

/* v where the window chose its element k, 0 elsewhere. */
INLINE vector NAME(where)(struct NAME(window) w, uint32_t k, vector v) {
    return (vector)((words)v & (words)(w.chosen == k));
}

/* The first element of a row of windows; rows are numbered through all images. */
INLINE int64_t NAME(windows)(int64_t row, int64_t rows, int64_t height, int64_t width, int64_t n) {
    return (row / rows * height + row % rows * 2) * width * n;
}

/* z = the largest v of every window, or 0 if that is negative. */
void NAME(pool_relu)(int64_t images, int64_t height, int64_t width, int64_t n, int64_t threads,
                     const T *x, const float *line, T *z) {
    const int64_t rows = height / 2, columns = width / 2;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < images * rows; row++) {
        const T *from = x + NAME(windows)(row, rows, height, width, n);
        T *to = z + row * columns * n;
        for (int64_t at = 0; at < columns; at++, from += 2 * n, to += n)
            for (int64_t i = 0; i < n; i += LANES) {
                const vector most = NAME(window_at)(from + i, n, width, line + i, n - i).most;
                NAME(store_some)(to + i, relu(most), n - i);
            }
    }
}

/* z = the elements of `maps`, which have x's shape, that the windows of x choose. */
void NAME(pool_chosen)(int64_t images, int64_t height, int64_t width, int64_t n, int64_t threads,
                       const T *x, const T *maps, const float *line, T *z) {
    const int64_t rows = height / 2, columns = width / 2;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < images * rows; row++) {
        const int64_t start = NAME(windows)(row, rows, height, width, n);
        T *to = z + row * columns * n;
        for (int64_t at = 0; at < columns; at++, to += n)
            for (int64_t i = 0; i < n; i += LANES) {
                const int64_t from = start + at * 2 * n + i;
                const struct NAME(window) w =
                    NAME(window_at)(x + from, n, width, line + i, n - i);
                vector found = {0};
                for (uint32_t k = 0; k < 4; k++) {
                    const T *one = maps + from + (k / 2 * width + k % 2) * n;
                    found += NAME(where)(w, k, NAME(load_some)(one, n - i));
                }
                NAME(store_some)(to + i, found, n - i);
            }
    }
}

/* Write v, one value per window of x, into z, zeros of x's shape, at the chosen elements. */
void NAME(pool_scattered)(int64_t images, int64_t height, int64_t width, int64_t n,
                          int64_t threads, const T *x, const T *v, const float *line, T *z) {
    const int64_t rows = height / 2, columns = width / 2;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < images * rows; row++) {
        const int64_t start = NAME(windows)(row, rows, height, width, n);
        const T *some = v + row * columns * n;
        for (int64_t at = 0; at < columns; at++, some += n)
            for (int64_t i = 0; i < n; i += LANES) {
                const int64_t from = start + at * 2 * n + i;
                const struct NAME(window) w =
                    NAME(window_at)(x + from, n, width, line + i, n - i);
                const vector number = NAME(load_some)(some + i, n - i);
                for (uint32_t k = 0; k < 4; k++)
                    NAME(store_some)(z + from + (k / 2 * width + k % 2) * n,
                                     NAME(where)(w, k, number), n - i);
            }
    }
}
