/* Products with the kernels of narrow groups, all of them at once: lanes are channels.

   There are as many filters as channels, and `each` of both, a power of two, in a group. So lane l
   of a vector from channel v on is a filter that sees the channels of lane l's own group:

       lanes         0  1  2  3 | 4  5  6  7 | ...      each = 4
       spread, i=0   x0 x0 x0 x0| x4 x4 x4 x4|          y += kernel[t][0] * spread(x, 0)
       spread, i=1   x1 x1 x1 x1| x5 x5 x5 x5|             + kernel[t][1] * spread(x, 1) + ...

   and a vector of y takes `each` products a tap, where a tile of TILE filters would take TILE.
   See element.h. */

/* For every lane of the channels from `at` on, channel i of the lane's group; a group of a vector
   or more has one for all lanes. Lanes beyond the last channel are not used. */
INLINE vector NAME(spread)(const T *row, int64_t at, int64_t i, int64_t each) {
    if (each >= LANES) return NAME(wide)(row[at / each * each + i]) - (vector){0};
    const vector v = NAME(load)(row + at);
    return each == 1 ? v : __builtin_shuffle(v, (LANE & -(uint32_t)each) | (uint32_t)i);
}

/* The kernel (filters, taps, each) as vectors [filters / LANES][taps][each]; `turned`, its
   transpose within each group, for the gradient: lane l of entry i is the weight of filter i of l's
   group for channel l. */
static void NAME(pack)(const struct frame *f, const T *weight, float *to, int turned) {
    const int64_t each = f->group, row = f->taps * each;
    for (int64_t v = 0; v < f->width; v += LANES)
        for (int64_t at = 0; at < row; at++)
            for (int64_t o = v; o < v + LANES; o++, to++) {
                const int64_t filter = turned ? o / each * each + at % each : o;
                const int64_t channel = turned ? o % each : at % each;
                *to = o < f->filters
                    ? NAME(wide)(weight[filter * row + at / each * each + channel]) : 0;
            }
}

/* sum = kernel columns, for `count` positions in whole ROWS. */
INLINE void NAME(grouped_join)(const struct frame *f, const float *kernel, const T *columns,
                               float *sum, int64_t count, int64_t each) {
    for (int64_t i = 0; i < f->channels; i += LANES, kernel += f->taps * each * LANES)
        for (int64_t j = 0; j < count; j += ROWS) {
            vector total[ROWS] = {{0}};
            const T *rows = columns + j * f->depth;
            for (int64_t t = 0; t < f->taps; t++)
                for (int64_t k = 0; k < each; k++)
                    for (int r = 0; r < ROWS; r++)
                        total[r] += load_float32(kernel + (t * each + k) * LANES) *
                                    NAME(spread)(rows + r * f->depth + t * f->channels, i, k, each);
            for (int r = 0; r < ROWS; r++)
                store_float32(sum + (j + r) * f->width + i, total[r]);
        }
}

/* The gradient of the columns: g = kernelᵀ outgoing, of a kernel that is packed `turned`. */
INLINE void NAME(grouped_expand)(const struct frame *f, const float *kernel, const T *outgoing,
                                 float *g, int64_t count, int64_t each) {
    for (int64_t i = 0; i < f->channels; i += LANES, kernel += f->taps * each * LANES)
        for (int64_t j = 0; j < count; j += ROWS)
            for (int64_t t = 0; t < f->taps; t++) {
                vector total[ROWS] = {{0}};
                const T *rows = outgoing + j * f->width;
                for (int64_t k = 0; k < each; k++)
                    for (int r = 0; r < ROWS; r++)
                        total[r] += load_float32(kernel + (t * each + k) * LANES) *
                                    NAME(spread)(rows + r * f->width, i, k, each);
                for (int r = 0; r < ROWS; r++)
                    store_some_float32(g + (j + r) * f->depth + t * f->channels + i, total[r],
                                       f->channels - i);
            }
}

/* Add to `some` entries of a kernel's gradient, from entry `at` of [taps][each] on. */
INLINE void NAME(grouped_sums)(const struct frame *f, const T *outgoing, const T *columns,
                               float *grad, int64_t i, int64_t at, int64_t count, int64_t each,
                               int some) {
    vector total[ROWS];
    for (int s = 0; s < some; s++) total[s] = load_float32(grad + s * LANES);
    for (int64_t j = 0; j < count; j++, outgoing += f->width, columns += f->depth) {
        const vector out = NAME(load)(outgoing + i);
        for (int s = 0; s < some; s++)
            total[s] += out * NAME(spread)(columns + (at + s) / each * f->channels, i,
                                           (at + s) % each, each);
    }
    for (int s = 0; s < some; s++) store_float32(grad + s * LANES, total[s]);
}

/* Add the gradient of the kernel, in the layout of `pack`. */
INLINE void NAME(grouped_correlate)(const struct frame *f, const T *outgoing, const T *columns,
                                    float *grad, int64_t count, int64_t each) {
    const int64_t numbers = f->taps * each;
    for (int64_t i = 0; i < f->channels; i += LANES, grad += numbers * LANES) {
        int64_t at = 0;
        for (; at + ROWS <= numbers; at += ROWS)
            NAME(grouped_sums)(f, outgoing, columns, grad + at * LANES, i, at, count, each, ROWS);
        for (; at < numbers; at++)
            NAME(grouped_sums)(f, outgoing, columns, grad + at * LANES, i, at, count, each, 1);
    }
}

/* W M x of a depthwise kernel and a diagonal M at one position, for some vectors of channels: there
   are no columns, every tap is added as it is read. `in` is each tap's input, or 0 outside. */
INLINE void NAME(depthwise_sum)(const T *const *in, const float *m, const float *kernel, float *sum,
                                int64_t i, int64_t taps, int64_t lanes, int vectors) {
    vector total[ROWS] = {{0}};
    for (int64_t t = 0; t < taps; t++) {
        if (!in[t]) continue;
        for (int v = 0; v < vectors; v++)
            total[v] += load_float32(kernel + (v * taps + t) * LANES) *
                        (m[t] * NAME(load_some)(in[t] + i + v * LANES, lanes));
    }
    for (int v = 0; v < vectors; v++) store_float32(sum + i + v * LANES, total[v]);
}

INLINE void NAME(depthwise)(const struct frame *f, const T *x, const float *m, int64_t at,
                            int64_t count, const float *kernel, float *sum, int64_t taps,
                            int64_t n, int64_t blocks) {
    const T *in[MOST_TAPS];
    struct reach reach[MOST_TAPS];
    for (int64_t done = 0, run; done < count; done += run) {
        const struct line line = line_of(f, at + done, count - done);
        run = line.run;
        for (int64_t t = 0; t < taps; t++) reach[t] = reach_of(f, line, t);
        for (int64_t j = 0; j < run; j++, sum += f->width) {
            const float *own = m + (at + done + j) * f->m;
            for (int64_t t = 0; t < taps; t++)
                in[t] = j < reach[t].first || j >= reach[t].last ? 0
                    : x + (reach[t].offset + j * reach[t].step) * f->x_pixel;
            int64_t i = 0;
            for (; i + ROWS * LANES <= n; i += ROWS * LANES)
                NAME(depthwise_sum)(in, own, kernel + i * taps, sum, i, taps, LANES, ROWS);
            for (; i + 2 * LANES <= n; i += 2 * LANES)
                NAME(depthwise_sum)(in, own, kernel + i * taps, sum, i, taps, LANES, 2);
            for (; i < n; i += LANES)
                NAME(depthwise_sum)(in, own, kernel + i * taps, sum, i, taps, n - i, 1);
        }
    }
}

/* The gradients of a depthwise kernel under a diagonal M at one tap, for some channels: with g = W
   grad, x's gets m g, that of W gets m x grad, both unless null, and M's is the sum of g x. */
INLINE vector NAME(depthwise_gradients)(const T *grad, const T *x, const float *kernel, float m,
                                        float *grad_x, float *grad_kernel, int64_t lanes) {
    const vector out = NAME(load_some)(grad, lanes), seen = NAME(load_some)(x, lanes);
    const vector g = load_float32(kernel) * out;
    if (grad_x) add(grad_x, m * g, lanes);
    if (grad_kernel) store_float32(grad_kernel, load_float32(grad_kernel) + m * seen * out);
    return g * seen;
}

/* All gradients of a depthwise kernel under a diagonal M, without columns. */
INLINE void NAME(depthwise_derive)(const struct frame *f, const T *x, const float *m, const T *grad,
                                   const float *kernel, float *images, float *grad_m,
                                   float *grad_kernel, int64_t at, int64_t count) {
    const int64_t taps = f->taps, n = f->channels;
    struct reach reach[MOST_TAPS];
    for (int64_t done = 0, run; done < count; done += run) {
        const struct line line = line_of(f, at + done, count - done);
        run = line.run;
        for (int64_t t = 0; t < taps; t++) reach[t] = reach_of(f, line, t);
        for (int64_t j = 0; j < run; j++) {
            const int64_t position = at + done + j;
            const T *out = grad + position * f->y_pixel;
            const float *own = m + position * f->m;
            float *of_m = grad_m + position * f->m;
            vector product[MOST_TAPS + LANES];
            for (int64_t t = 0; t < taps; t++) {
                const int64_t pixel = reach[t].offset + j * reach[t].step;
                product[t] = (vector){0};
                if (j < reach[t].first || j >= reach[t].last) continue;
                const T *in = x + pixel * f->x_pixel;
                const float *w = kernel + t * LANES;
                float *to = images ? images + pixel * n : 0;
                float *of_w = grad_kernel ? grad_kernel + t * LANES : 0;
                vector sum = {0};
                int64_t i = 0;
                for (; i + LANES <= n; i += LANES)
                    sum += NAME(depthwise_gradients)(out + i, in + i, w + i * taps, own[t],
                                                     to ? to + i : 0, of_w ? of_w + i * taps : 0,
                                                     LANES);
                if (i < n)
                    sum += NAME(depthwise_gradients)(out + i, in + i, w + i * taps, own[t],
                                                     to ? to + i : 0, of_w ? of_w + i * taps : 0,
                                                     n - i);
                product[t] = sum;
            }
            for (int64_t t = 0; grad_m && t < taps; t += LANES) {
                for (int64_t rest = taps; rest < t + LANES; rest++) product[rest] = (vector){0};
                const vector before = load_some_float32(of_m + t, taps - t);
                store_some_float32(of_m + t, sums(product + t) + (f->accumulate ? before : (vector){0}),
                                   taps - t);
            }
        }
    }
}
