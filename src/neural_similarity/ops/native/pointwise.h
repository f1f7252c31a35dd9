/* The parts of a predictor between its convolutions, each in one pass over a map of the element
   type T: rows of channels at every position if `last`, else rows of positions of every channel.
   What has one number a position is float (images, positions). See element.h. */

/* z = y times factors, or its ReLU. Returns 0. */
int NAME(scaled)(int64_t images, int64_t positions, int64_t channels, int64_t last,
                  int64_t threads, const T *y, const float *factors, int64_t rectified, T *z) {
    const int64_t rows = images * (last ? positions : channels), size = last ? channels : positions;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *own = factors + (last ? row : row / channels * positions);
        for (int64_t i = 0; i < size; i += LANES) {
            const vector factor = last ? *own - (vector){0} : load_some_float32(own + i, size - i);
            const vector v = factor * NAME(load_some)(y + row * size + i, size - i);
            NAME(store_some)(z + row * size + i, rectified ? relu(v) : v, size - i);
        }
    }
    return 0;
}

/* The gradients of y and, as sums over channels, of the factors, from y or from a rectified z,
   which stands for y times its factor. Returns 0. */
int NAME(scaled_gradient)(int64_t images, int64_t positions, int64_t channels, int64_t last,
                           int64_t threads, const T *grad, const T *z, const float *factors,
                           int64_t rectified, T *grad_y, float *grad_factors) {
    const int64_t outer = last ? images * positions : images, inner = last ? 1 : channels;
    const int64_t size = last ? channels : positions, here = last ? 1 : positions;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
        const float *own = factors + o * here;
        float *to = grad_factors + o * here;
        vector total = {0};
        for (int64_t c = 0; c < inner; c++)
            for (int64_t i = 0; i < size; i += LANES) {
                const int64_t at = (o * inner + c) * size + i, lanes = size - i;
                const vector seen = NAME(load_some)(z + at, lanes);
                const vector all = NAME(load_some)(grad + at, lanes);
                const vector g = rectified ? (vector)((words)all & ~(words)(seen <= 0)) : all;
                const vector factor = last ? *own - (vector){0} : load_some_float32(own + i, lanes);
                NAME(store_some)(grad_y + at, g * factor, lanes);
                if (last) total += g * seen;
                else store_some_float32(to + i, g * seen + (c ? load_some_float32(to + i, lanes)
                                                             : (vector){0}), lanes);
            }
        if (last) *to = lane_sum(total);
        for (int64_t i = 0; rectified && i < here; i++) to[i] /= own[i];
    }
    return 0;
}

/* m = raw times the gain of its channel, plus 1 in every `every`-th channel unless 0. Returns 0. */
int NAME(gained)(int64_t images, int64_t positions, int64_t channels, int64_t last,
                 int64_t threads, const T *raw, const float *gain, int64_t every, float *m) {
    const int64_t rows = images * (last ? positions : channels), size = last ? channels : positions;
    float *start = calloc(channels + LANES, sizeof(float));
    if (!start) return 1;
    for (int64_t c = 0; every && c < channels; c += every) start[c] = 1;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < size; i += LANES) {
            const int64_t c = last ? i : row % channels, lanes = size - i;
            const vector each = last ? load_some_float32(gain + c, lanes) : gain[c] - (vector){0};
            const vector one = last ? load_float32(start + c) : start[c] - (vector){0};
            const vector v = NAME(load_some)(raw + row * size + i, lanes);
            store_some_float32(m + row * size + i, one + v * each, lanes);
        }
    free(start);
    return 0;
}

/* The gradients of raw and, as sums over positions of each thread (threads, channels), of gain: in
   float over BRIEF rows, then in double. Returns 0, or 1 if memory ran out. */
int NAME(gained_gradient)(int64_t images, int64_t positions, int64_t channels, int64_t last,
                          int64_t threads, const float *grad, const T *raw, const float *gain,
                          T *grad_raw, double *grad_gain) {
    const int64_t rows = images * (last ? positions : channels), size = last ? channels : positions;
    int full = 0;
    #pragma omp parallel num_threads(threads)
    {
        double *sums = grad_gain + omp_get_thread_num() * channels;
        float *few = room((channels + LANES) * sizeof(float), &full);
        #pragma omp barrier
        #pragma omp for schedule(static)
        for (int64_t brief = 0; brief < (full ? 0 : pieces(rows, BRIEF)); brief++) {
            memset(few, 0, (channels + LANES) * sizeof(float));
            for (int64_t row = brief * BRIEF; row < least(rows, (brief + 1) * BRIEF); row++) {
                const int64_t own = row % channels;
                vector total = {0};
                for (int64_t i = 0; i < size; i += LANES) {
                    const int64_t at = row * size + i, lanes = size - i;
                    const vector each =
                        last ? load_some_float32(gain + i, lanes) : gain[own] - (vector){0};
                    const vector g = load_some_float32(grad + at, lanes);
                    const vector product = g * NAME(load_some)(raw + at, lanes);
                    NAME(store_some)(grad_raw + at, g * each, lanes);
                    if (last) store_float32(few + i, load_float32(few + i) + product);
                    else total += product;
                }
                if (!last) sums[own] += lane_sum(total);
            }
            for (int64_t c = 0; last && c < channels; c++) sums[c] += few[c];
        }
        free(few);
    }
    return full;
}

/* energies = squares summed over channels. */
static void NAME(energies)(int64_t images, int64_t positions, int64_t channels, int64_t last,
                           int64_t threads, const T *x, float *energies) {
    const int64_t outer = last ? images * positions : images, inner = last ? 1 : channels;
    const int64_t size = last ? channels : positions;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
        float *to = energies + (last ? o : o * positions);
        vector total = {0};
        for (int64_t c = 0; c < inner; c++)
            for (int64_t i = 0; i < size; i += LANES) {
                const vector v = NAME(load_some)(x + (o * inner + c) * size + i, size - i);
                if (last) total += v * v;
                else store_some_float32(to + i, v * v + (c ? load_some_float32(to + i, size - i)
                                                           : (vector){0}), size - i);
            }
        if (last) *to = lane_sum(total);
    }
}

/* factors = scale / sqrt(eps + the squares of every patch). Returns 0, or 1 if memory ran out. */
int NAME(patch_factors)(const struct frame *f, int64_t last, const T *x, float eps, float scale,
                        float *factors) {
    const int64_t positions = f->images * outputs(f), rows = pieces(positions, f->out[2]);
    int full = 0;
    float *energies = room(f->images * inputs(f) * sizeof(float), &full);
    if (!full) NAME(energies)(f->images, inputs(f), f->channels, last, f->threads, x, energies);
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int64_t row = 0; row < (full ? 0 : rows); row++) {
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
    return full;
}

/* The gradient of x by that of its factors: x times what its patches' factors ask for. A factor of 0
   is of a norm that has overflowed, and asks for nothing: its gradient, divided by 0, may be NaN. */
int NAME(patch_factors_gradient)(const struct frame *f, int64_t last, const float *grad,
                                 const T *x, const float *factors, float scale, T *grad_x) {
    const int64_t rows = f->out[0] * f->out[1], pixels = inputs(f), size = f->out[2];
    int full = 0;
    float *wanted = room(f->images * pixels * sizeof(float), &full);
    float *asked = room(f->threads * size * sizeof(float), &full);
    if (wanted) memset(wanted, 0, f->images * pixels * sizeof(float));
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int64_t image = 0; image < (full ? 0 : f->images); image++)
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
    if (!full)
        NAME(scaled)(f->images, pixels, f->channels, last, f->threads, x, wanted, 0, grad_x);
    free(wanted);
    free(asked);
    return full;
}
