/* One M for all positions of an image: the pooled predictor, and a kernel W M for every image. See
   layer.h. */

/* d = f a for the sums a over the pixels of each image and f = scale / |a|, or 0 where a is 0. */
static void NAME(directions)(const struct layer *l, const T *x, float *d, float *factors) {
    const int64_t pixels = inputs(&l->conv), c = l->first.channels;
    #pragma omp parallel for num_threads(l->conv.threads) schedule(static)
    for (int64_t image = 0; image < l->conv.images; image++) {
        float *a = d + image * c, total = 0;
        NAME(sum_rows)(pixels, c, x + image * pixels * c, 0, a);
        for (int64_t i = 0; i < c; i++) total += a[i] * a[i];
        factors[image] = sqrtf(total) < 1e-12f ? 0 : l->scale / sqrtf(total);
        for (int64_t i = 0; i < c; i++) a[i] *= factors[image];
    }
}

/* Add to the gradient of every pixel that of a, by the gradient g of d. */
static void NAME(directions_gradient)(const struct layer *l, float *g, const float *d,
                                      const float *factors, T *grad_x) {
    const int64_t pixels = inputs(&l->conv), c = l->first.channels;
    #pragma omp parallel for num_threads(l->conv.threads) schedule(static)
    for (int64_t image = 0; image < l->conv.images; image++) {
        float *of_a = g + image * c, along = 0;
        T *to = grad_x + image * pixels * c;
        for (int64_t i = 0; i < c; i++) along += of_a[i] * d[image * c + i];
        along /= l->scale * l->scale;
        for (int64_t i = 0; i < c; i++) of_a[i] = factors[image] * (of_a[i] - along * d[image * c + i]);
        for (int64_t pixel = 0; pixel < pixels; pixel++, to += c)
            for (int64_t i = 0; i < c; i += LANES)
                NAME(store_some)(to + i, NAME(load_some)(to + i, c - i) +
                                 load_some_float32(of_a + i, c - i), c - i);
    }
}

/* d and behind it h, r and f of x, of the pooled predictor, which is in float. */
static int NAME(predict_pooled)(const struct layer *l, const struct sizes *z, const T *x,
                                const float *first, const float *first_bias, const float *second,
                                const float *second_bias, float *d, float *raw, float *factors,
                                char *at) {
    float *hidden = d + z->n * z->c, *inner = share(&at, z->rows * z->s * sizeof(float));
    NAME(directions)(l, x, d, factors);
    int failed = forward_float32(&l->first, d, 0, first, hidden, first_bias);
    activated_float32(1, z->hidden, 1, hidden, 0, 0, 0, hidden);
    failed |= forward_float32(&l->last, hidden, 0, second, inner, 0);
    activated_float32(z->rows, z->s, 1, inner, 0, second_bias, 1, raw);
    return failed;
}

/* The gradients that are not null; `of_x` is added to. */
static int NAME(predict_pooled_gradient)(const struct layer *l, const struct sizes *z,
                                         const float *of_m, const float *first,
                                         const float *second, const float *gain, const float *d,
                                         const float *raw, const float *factors, T *of_x,
                                         float *grad_first, float *grad_first_bias,
                                         float *grad_second, float *grad_second_bias,
                                         float *grad_gain, char *at) {
    const float *hidden = d + z->n * z->c;
    float *of_raw = share(&at, z->rows * z->s * sizeof(float));
    float *of_hidden = share(&at, z->hidden * sizeof(float));
    float *of_d = share(&at, z->n * z->c * sizeof(float));
    int failed = gain_gradient_float32(z, l->conv.threads, of_m, raw, gain, of_raw, grad_gain, at);
    bound_gradient_float32(z->rows * z->s, raw, of_raw);
    if (grad_second_bias) sum_rows_float32(z->rows, z->s, of_raw, grad_second_bias, 0);
    failed |= backward_float32(&l->last, hidden, 0, second, of_raw, of_hidden, 0, grad_second);
    scaled_gradient_float32(1, z->hidden, 1, of_hidden, hidden, 0, 1, of_hidden, 0);
    if (grad_first_bias) sum_rows_float32(z->rows, z->h, of_hidden, grad_first_bias, 0);
    failed |= backward_float32(&l->first, d, 0, first, of_hidden, of_x ? of_d : 0, 0, grad_first);
    if (of_x) NAME(directions_gradient)(l, of_d, d, factors, of_x);
    return failed;
}

/* `forward` of every group. */
static int NAME(forward_groups)(const struct frame *f, int64_t groups, int64_t w, const T *x,
                                const float *m, const T *weight, T *y, const T *bias) {
    int failed = 0;
    for (int64_t g = 0; g < groups; g++)
        failed |= NAME(forward)(f, x + g * f->channels, m, weight + g * (w / groups),
                                y + g * f->filters, bias ? bias + g * f->filters : 0);
    return failed;
}

/* `backward` of every group; groups add to M's gradient. */
static int NAME(backward_groups)(struct frame f, int64_t groups, int64_t w, const T *x,
                                 const float *m, const T *weight, const T *grad, T *grad_x,
                                 float *grad_m, T *grad_weight) {
    int failed = 0;
    for (int64_t g = 0; g < groups; g++, f.accumulate = 1)
        failed |= NAME(backward)(&f, x + g * f.channels, m, weight + g * (w / groups),
                                 grad + g * f.filters, grad_x ? grad_x + g * f.channels : 0, grad_m,
                                 grad_weight ? grad_weight + g * (w / groups) : 0);
    return failed;
}

/* W in float. */
static float *NAME(widened)(int64_t size, const T *weight, char **space) {
    float *to = share(space, size * sizeof(float));
    for (int64_t i = 0; i < size; i += LANES)
        store_some_float32(to + i, NAME(load_some)(weight + i, size - i), size - i);
    return to;
}

/* y of every image with its kernel W M. */
static int NAME(forward_by_image)(const struct layer *l, const struct sizes *z, const T *x,
                                  const float *m, const T *weight, T *y, const T *bias, char *at) {
    struct frame f = l->conv;
    f.images = 1, f.full = 0, f.m = 0;
    const float *one = needs_no_columns(&f) ? ones : 0;
    const float *wide = NAME(widened)(z->w, weight, &at);
    T *kernel = share(&at, z->w * sizeof(T));
    int failed = 0;
    for (int64_t image = 0; image < z->n; image++, m += z->s, x += f.image, y += outputs(&f) * z->o) {
        NAME(fold)(z->o, z->w / z->o / f.taps, f.taps, 1, f.threads, wide, m, kernel);
        failed |= NAME(forward_groups)(&f, l->groups, z->w, x, one, kernel, y, bias);
    }
    return failed;
}

/* The gradients of x, W and M, unless null. */
static int NAME(backward_by_image)(const struct layer *l, const struct sizes *z, const T *x,
                                   const float *m, const T *weight, const T *grad, T *grad_x,
                                   float *grad_m, T *grad_weight, char *at) {
    struct frame f = l->conv;
    f.images = 1, f.full = 0, f.m = 0;
    const float *one = needs_no_columns(&f) ? ones : 0;
    const int64_t size = z->w, channels = size / z->o / f.taps;
    const float *wide = NAME(widened)(size, weight, &at);
    T *kernel = share(&at, size * sizeof(T)), *of_kernel = share(&at, size * sizeof(T));
    float *part = share(&at, size * sizeof(float)), *sum = share(&at, size * sizeof(float));
    int failed = 0;
    memset(sum, 0, size * sizeof(float));
    for (int64_t image = 0; image < z->n; image++, m += z->s) {
        NAME(fold)(z->o, channels, f.taps, 1, f.threads, wide, m, kernel);
        failed |= NAME(backward_groups)(f, l->groups, size, x + image * f.image, one, kernel,
                                        grad + image * outputs(&f) * z->o,
                                        grad_x ? grad_x + image * f.image : 0, 0,
                                        grad_m || grad_weight ? of_kernel : 0);
        if (failed || !(grad_m || grad_weight)) continue;
        failed |= NAME(fold_backward)(z->o, channels, f.taps, 1, f.threads, wide, m, of_kernel,
                                      grad_weight ? part : 0, grad_m ? grad_m + image * z->s : 0);
        for (int64_t i = 0; grad_weight && i < size; i++) sum[i] += part[i];
    }
    for (int64_t i = 0; grad_weight && i < size; i++) grad_weight[i] = NAME(narrow)(sum[i]);
    return failed;
}
