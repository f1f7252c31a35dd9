/* A static M in the kernel, W' = W M, and its derivatives; T is the type of W' and its gradient.

   The kernel of a filter is (channels, taps), or (taps, channels) if `last`, in float. M is
   (taps, taps) in rows of `wide` floats, whole vectors with zeros behind the taps. */

/* to = w m. Whole vectors are stored, so that a row overwrites what the one before it left behind
   its end; the last row leaves nothing. */
INLINE void NAME(fold_rows)(const float *w, const float *m, T *to, int64_t channels, int64_t taps,
                            int64_t wide) {
    for (int64_t c = 1; c <= channels; c++, w += taps, to += taps)
        for (int64_t v = 0; v < taps; v += LANES) {
            vector sum = {0};
            UNROLL for (int64_t s = 0; s < taps; s++) sum += w[s] * load_float32(m + s * wide + v);
            NAME(store_some)(to + v, sum, (channels - c + 1) * taps - v);
        }
}

/* to = mᵀ w. */
INLINE void NAME(fold_maps)(const float *w, const float *m, T *to, int64_t channels, int64_t taps,
                            int64_t wide) {
    for (int64_t c = 0; c < channels; c += LANES) {
        vector own[MOST_TAPS];
        UNROLL for (int64_t s = 0; s < taps; s++) {
            __builtin_prefetch(w + (taps + s) * channels + c); // of the next filter
            own[s] = load_some_float32(w + s * channels + c, channels - c);
        }
        for (int64_t t = 0; t < taps; t++) {
            vector sum = {0};
            UNROLL for (int64_t s = 0; s < taps; s++) sum += m[s * wide + t] * own[s];
            NAME(store_some)(to + t * channels + c, sum, channels - c);
        }
    }
}

/* Add wᵀ g to `sum` (taps, taps); a vector of slack is behind the end of g. */
INLINE void NAME(pair_rows)(const float *w, const float *g, double *sum, int64_t channels,
                            int64_t taps) {
    for (int64_t v = 0; v < taps; v += LANES) {
        vector total[MOST_TAPS] = {{0}};
        for (int64_t c = 0; c < channels; c++)
            UNROLL for (int64_t s = 0; s < taps; s++)
                total[s] += w[c * taps + s] * load_float32(g + c * taps + v);
        for (int64_t s = 0; s < taps; s++)
            for (int64_t t = v; t < least(taps, v + LANES); t++)
                sum[s * taps + t] += total[s][t - v];
    }
}

/* Add w gᵀ to `sum` (taps, taps). */
INLINE void NAME(pair_maps)(const float *w, const float *g, double *sum, int64_t channels,
                            int64_t taps) {
    for (int64_t s = 0; s < taps; s++) {
        vector total[MOST_TAPS] = {{0}};
        for (int64_t c = 0; c < channels; c += LANES) {
            const vector own = load_some_float32(w + s * channels + c, channels - c);
            __builtin_prefetch(w + (taps + s) * channels + c); // of the next filter
            UNROLL for (int64_t t = 0; t < taps; t++)
                total[t] += own * load_some_float32(g + t * channels + c, channels - c);
        }
        for (int64_t t = 0; t < taps; t += LANES) {
            const vector lanes = sums(total + t);
            for (int64_t i = 0; i < least(taps - t, LANES); i++) sum[s * taps + t + i] += lanes[i];
        }
    }
}

/* The function of channels and taps, with nine of these known to the compiler. */
#define BY_TAPS(FUNCTION, ...) \
    do { if (taps == 9) FUNCTION(__VA_ARGS__, channels, 9); \
         else FUNCTION(__VA_ARGS__, channels, taps); } while (0)

INLINE void NAME(fold_filter)(int64_t last, const float *w, const float *m, T *to, int64_t channels,
                              int64_t taps) {
    const int64_t wide = pieces(taps, LANES) * LANES;
    if (last) NAME(fold_maps)(w, m, to, channels, taps, wide);
    else NAME(fold_rows)(w, m, to, channels, taps, wide);
}

INLINE void NAME(pair_filter)(int64_t last, const float *w, const float *g, double *sum,
                              int64_t channels, int64_t taps) {
    if (last) NAME(pair_maps)(w, g, sum, channels, taps);
    else NAME(pair_rows)(w, g, sum, channels, taps);
}

/* Depthwise filters are the channels of few filters, one for each thread: vectors go over taps. */
#define DEPTHWISE_ROWS \
    if (channels == 1) \
        last = 0, channels = filters % threads ? filters : filters / threads, filters /= channels;

/* M (taps, taps), or its transpose, in rows of whole vectors. */
static void NAME(padded_matrix)(const float *m, int64_t taps, int turned, float *to) {
    const int64_t wide = pieces(taps, LANES) * LANES;
    memset(to, 0, taps * wide * sizeof(float));
    for (int64_t s = 0; s < taps; s++)
        for (int64_t t = 0; t < taps; t++) to[s * wide + t] = m[turned ? t * taps + s : s * taps + t];
}

/* W' = W M. Returns 0. */
int NAME(fold)(int64_t filters, int64_t channels, int64_t taps, int64_t last, int64_t threads,
               const float *weight, const float *m, T *to) {
    DEPTHWISE_ROWS
    float rows[MOST_TAPS * (MOST_TAPS + LANES)];
    NAME(padded_matrix)(m, taps, 0, rows);
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < filters; o++)
        BY_TAPS(NAME(fold_filter), last, weight + o * channels * taps, rows,
                to + o * channels * taps);
    return 0;
}

/* The gradients of W and M, unless null, from that of W'. Returns 0, or 1 if memory ran out. */
int NAME(fold_backward)(int64_t filters, int64_t channels, int64_t taps, int64_t last,
                        int64_t threads, const float *weight, const float *m, const T *grad,
                        float *grad_weight, float *grad_m) {
    DEPTHWISE_ROWS
    const int64_t size = channels * taps, entries = taps * taps;
    float rows[MOST_TAPS * (MOST_TAPS + LANES)];
    int failed = 0;
    double *sums = room(threads * entries * sizeof(double), &failed);
    if (sums) memset(sums, 0, threads * entries * sizeof(double));
    NAME(padded_matrix)(m, taps, 1, rows);
    #pragma omp parallel num_threads(threads)
    {
        float *g = room((size + LANES) * sizeof(float), &failed);
        if (g) memset(g + size, 0, LANES * sizeof(float));
        #pragma omp barrier
        const int64_t some = failed ? 0 : filters;
        #pragma omp for schedule(static)
        for (int64_t o = 0; o < some; o++) {
            for (int64_t i = 0; i < size; i += LANES) {
                __builtin_prefetch(grad + (o + 1) * size + i);
                store_some_float32(g + i, NAME(load_some)(grad + o * size + i, size - i), size - i);
            }
            if (grad_weight)
                BY_TAPS(fold_filter_float32, last, g, rows, grad_weight + o * size);
            if (grad_m)
                BY_TAPS(NAME(pair_filter), last, weight + o * size, g,
                        sums + omp_get_thread_num() * entries);
        }
        free(g);
    }
    for (int64_t i = 0; grad_m && !failed && i < entries; i++) {
        double sum = 0;
        for (int64_t thread = 0; thread < threads; thread++) sum += sums[thread * entries + i];
        grad_m[i] = sum;
    }
    free(sums);
    return failed;
}
#undef BY_TAPS
#undef DEPTHWISE_ROWS
