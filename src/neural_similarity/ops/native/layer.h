/* A layer of the default predictor, each way in one call, for the element type T:

       f = scale / |X|, h = relu(f W1 * x), r = W2 * h + b2, M = I + gain r, y = W M X + b

   or of the light one, which scales behind its second convolution:

       h = relu(W1 * x), f = scale / |H|, r = tanh(f W2 * h + b2)

   or of the pooled one, with one M for all positions of an image and the sums a over its pixels:

       f = scale / |a|, h = relu(W1 f a + b1), r = tanh(W2 h + b2)

   Convolutions without M are the operator with m = 0. Everything is channels-last inside; a map or
   kernel whose channels come first is laid out again on its way in, and its gradient on its way
   out. See operators.c. */

/* to[image], (columns, rows), is the transpose of from[image], (rows, columns). */
static void NAME(swap)(const struct frame *f, int64_t images, int64_t rows, int64_t columns,
                       const T *from, T *to) {
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int64_t at = 0; at < images; at++)
        for (int64_t r = 0; r < rows; r += TILE)
            for (int64_t c = 0; c < columns; c += TILE)
                for (int64_t j = c; j < least(c + TILE, columns); j++)
                    for (int64_t i = r; i < least(r + TILE, rows); i++)
                        to[(at * columns + j) * rows + i] = from[(at * rows + i) * columns + j];
}

/* `from`, (images, channels, places), with its channels last: as it is, or copied into `space`. */
static const T *NAME(laid)(const struct frame *f, int last, int64_t images, int64_t channels,
                           int64_t places, const T *from, char **space) {
    if (last) return from;
    T *to = share(space, images * channels * places * sizeof(T));
    NAME(swap)(f, images, channels, places, from, to);
    return to;
}

/* Where to write a result whose channels come last: `to`, or `space` if they come first there. */
static T *NAME(result_buffer)(int last, int64_t size, T *to, char **space) {
    return to && !last ? share(space, size * sizeof(T)) : to;
}

/* See `struct sizes`. */
static struct sizes NAME(sizes_of)(const struct layer *l) {
    const struct frame *f = &l->conv, *f1 = &l->first, *f2 = &l->last;
    struct sizes z = {f->images, f->images * outputs(f), f->images * inputs(f),
                            f->images * outputs(f2), f1->channels, f->y_pixel, f1->filters,
                            f2->filters};
    z.w = z.o * f->taps * (f->group ? f->group : f->channels);
    z.w1 = z.h * f1->taps * z.c, z.w2 = z.s * f2->taps * z.h;
    z.hidden = f1->images * outputs(f1) * z.h;
    /* What either way needs at most, and the rounding of its shares. */
    z.work = (z.pixels * z.c * 3 + z.places * z.o + 2 * (z.w + z.w1 + z.w2)) * sizeof(T) +
             (z.places + z.n * z.c) * sizeof(float) +
             (2 * z.rows * z.s + z.hidden) * (l->predictor == POOLED ? sizeof(float) : sizeof(T)) +
             (l->folds ? z.w * (3 * sizeof(float) + 2 * sizeof(T)) + z.rows * 2 * z.s * sizeof(float)
                       : (z.rows + (z.rows < z.places ? z.places : 0)) * 2 * z.s * sizeof(float)) +
             f->threads * z.s * sizeof(double) + 32 * 64;
    return z;
}

/* M at every position of its image; `m` itself if it has as many rows. */
static float *NAME(at_positions)(const struct sizes *z, float *m, char **space) {
    if (z->rows == z->places) return m;
    float *to = share(space, z->places * z->s * sizeof(float));
    for (int64_t at = 0; at < z->places; at++)
        memcpy(to + at * z->s, m + at / (z->places / z->n) * z->s, z->s * sizeof(float));
    return to;
}

/* y = W M X + bias, M given by position or image. */
static int NAME(join)(const struct layer *l, const struct sizes *z, const T *x, float *m,
                      const T *weight, T *y, const T *bias, char *at) {
    if (l->folds) return NAME(forward_by_image)(l, z, x, m, weight, y, bias, at);
    m = NAME(at_positions)(z, m, &at);
    return NAME(forward_groups)(&l->conv, l->groups, z->w, x, m, weight, y, bias);
}

/* Its gradients, unless null. */
static int NAME(join_gradient)(const struct layer *l, const struct sizes *z, const T *x,
                               float *m, const T *weight, const T *grad, T *grad_x, float *grad_m,
                               T *grad_weight, char *at) {
    if (l->folds)
        return NAME(backward_by_image)(l, z, x, m, weight, grad, grad_x, grad_m, grad_weight, at);
    const int64_t each = z->places / z->n;
    float *all = NAME(at_positions)(z, m, &at), *of_all = all == m ? grad_m : grad_m ? (float *)at : 0;
    const int failed = NAME(backward_groups)(l->conv, l->groups, z->w, x, all, weight, grad, grad_x,
                                             of_all, grad_weight);
    for (int64_t i = 0; of_all != grad_m && i < z->n; i++)
        sum_rows_float32(each, z->s, of_all + i * each * z->s, grad_m + i * z->s, 0);
    return failed;
}

/* h, r and f of x, of the sphere or the light predictor. */
static int NAME(predict)(const struct layer *l, const struct sizes *z, const T *x, const T *first,
                         const T *second, const T *second_bias, T *hidden, T *raw, float *factors,
                         char *at) {
    const struct frame *f1 = &l->first, *f2 = &l->last;
    T *inner = share(&at, (l->predictor == LIGHT ? z->rows * z->s : z->hidden) * sizeof(T));
    int failed = 0;
    if (l->predictor == LIGHT) {
        failed |= NAME(forward)(f1, x, 0, first, hidden, 0);
        NAME(activated)(1, z->hidden, 1, hidden, 0, 0, 0, hidden);
        failed |= NAME(patch_factors)(f2, hidden, l->eps, l->scale, factors);
        failed |= NAME(forward)(f2, hidden, 0, second, inner, 0);
        NAME(activated)(z->rows, z->s, f2->threads, inner, factors, second_bias, 1, raw);
    } else {
        failed |= NAME(patch_factors)(f1, x, l->eps, l->scale, factors);
        failed |= NAME(forward)(f1, x, 0, first, inner, 0);
        NAME(activated)(z->rows, z->h, f1->threads, inner, factors, 0, 0, hidden);
        failed |= NAME(forward)(f2, hidden, 0, second, raw, second_bias);
    }
    return failed;
}

/* M = I + gain r. */
static int NAME(gained_layer)(const struct layer *l, const struct sizes *z, const void *raw,
                              const float *gain, float *m) {
    return (l->predictor == POOLED ? gained_float32(z->rows, z->s, l->conv.threads, raw, gain,
                                                    every(&l->conv), m)
            : NAME(gained)(z->rows, z->s, l->conv.threads, raw, gain, every(&l->conv), m));
}

/* Returns 0, or 1 if memory ran out. */
int NAME(layer_forward)(const struct layer *l, int64_t layout, const T *x, const T *weight,
                        const T *bias, const void *first, const float *first_bias,
                        const void *second, const void *second_bias, const float *gain, T *y,
                        void *hidden, void *raw, float *factors) {
    const struct frame *f = &l->conv, *f1 = &l->first, *f2 = &l->last;
    const struct sizes z = NAME(sizes_of)(l);
    int failed = 0;
    char *work = room(z.work, &failed), *at = work;
    if (failed) return 1;
    x = NAME(laid)(f, layout & X_LAST, z.n, z.c, inputs(f), x, &at);
    weight = NAME(laid)(f, layout & W_LAST, z.o, z.w / z.o / f->taps, f->taps, weight, &at);
    first = NAME(laid)(f, layout & W1_LAST, z.h, z.c, f1->taps, first, &at);
    second = NAME(laid)(f, layout & W2_LAST, z.s, z.h, f2->taps, second, &at);
    T *to = NAME(result_buffer)(layout & Y_LAST, z.places * z.o, y, &at);
    float *m = share(&at, z.rows * z.s * sizeof(float));
    if (l->predictor == POOLED)
        failed |= NAME(predict_pooled)(l, &z, x, first, first_bias, second, second_bias, hidden, raw,
                                       factors, at);
    else failed |= NAME(predict)(l, &z, x, first, second, second_bias, hidden, raw, factors, at);
    failed |= NAME(gained_layer)(l, &z, raw, gain, m);
    failed |= NAME(join)(l, &z, x, m, weight, to, bias, at);
    if (to != y) NAME(swap)(f, z.n, outputs(f), z.o, to, y);
    free(work);
    return failed;
}

/* The gradients that are not null of the sphere or the light predictor; `of_x` is added to. */
static int NAME(predict_gradient)(const struct layer *l, const struct sizes *z, T *of_raw,
                                  const T *x, const T *first, const T *second, const T *hidden,
                                  const T *raw, const float *factors, T *of_x, T *of_first,
                                  T *of_second, T *grad_second_bias, char *at) {
    const struct frame *f1 = &l->first, *f2 = &l->last;
    const int64_t size = z->pixels * z->c, scalars = z->rows * z->s;
    const int inside = of_x || of_first, light = l->predictor == LIGHT;
    int failed = 0;
    if (light) NAME(bound_gradient)(scalars, raw, of_raw);
    if (grad_second_bias) NAME(sum_rows)(z->rows, z->s, of_raw, grad_second_bias, 0);
    if (!inside && !of_second) return 0;
    float *of_factors = share(&at, z->places * sizeof(float));
    T *of_hidden = share(&at, z->hidden * sizeof(T)), *through = share(&at, size * sizeof(T));
    if (light) {
        T *inner = share(&at, scalars * sizeof(T));
        failed |= NAME(forward)(f2, hidden, 0, second, inner, 0);
        NAME(scaled_gradient)(z->rows, z->s, f2->threads, of_raw, inner, factors, 0, of_raw,
                              of_factors);
    }
    failed |= NAME(backward)(f2, hidden, 0, second, of_raw, inside ? of_hidden : 0, 0, of_second);
    if (!inside) return failed;
    if (light) {
        failed |= NAME(patch_factors_gradient)(f2, of_factors, hidden, factors, l->scale, of_hidden);
        NAME(scaled_gradient)(1, z->hidden, 1, of_hidden, hidden, 0, 1, of_hidden, 0);
    } else NAME(scaled_gradient)(z->rows, z->h, f1->threads, of_hidden, hidden, factors, 1,
                                 of_hidden, of_factors);
    failed |= NAME(backward)(f1, x, 0, first, of_hidden, of_x ? through : 0, 0, of_first);
    for (int64_t i = 0; of_x && i < size; i += LANES)
        NAME(store_some)(of_x + i, NAME(load_some)(of_x + i, size - i) +
                         NAME(load_some)(through + i, size - i), size - i);
    if (of_x && !light)
        failed |= NAME(patch_factors_gradient)(f1, of_factors, x, factors, l->scale, of_x);
    return failed;
}

/* The gradients that are not null. Returns what `layer_forward` does. */
int NAME(layer_backward)(const struct layer *l, int64_t layout, const T *grad, const T *x,
                         const T *weight, const void *first, const void *second,
                         const float *gain, const void *hidden, const void *raw,
                         const float *factors, T *grad_x, T *grad_weight, T *grad_bias,
                         void *grad_first, float *grad_first_bias, void *grad_second,
                         void *grad_second_bias, float *grad_gain) {
    const struct frame *f = &l->conv, *f1 = &l->first, *f2 = &l->last;
    const struct sizes z = NAME(sizes_of)(l);
    const int64_t size = z.pixels * z.c;
    const int predicts = grad_x || grad_first || grad_first_bias || grad_second ||
                         grad_second_bias || grad_gain;
    int failed = 0;
    char *work = room(z.work, &failed), *at = work;
    if (failed) return 1;
    x = NAME(laid)(f, layout & X_LAST, z.n, z.c, inputs(f), x, &at);
    grad = NAME(laid)(f, layout & Y_LAST, z.n, z.o, outputs(f), grad, &at);
    weight = NAME(laid)(f, layout & W_LAST, z.o, z.w / z.o / f->taps, f->taps, weight, &at);
    first = NAME(laid)(f, layout & W1_LAST, z.h, z.c, f1->taps, first, &at);
    second = NAME(laid)(f, layout & W2_LAST, z.s, z.h, f2->taps, second, &at);
    T *of_x = NAME(result_buffer)(layout & X_LAST, size, grad_x, &at);
    T *of_weight = NAME(result_buffer)(layout & W_LAST, z.w, grad_weight, &at);
    T *of_first = NAME(result_buffer)(layout & W1_LAST, z.w1, grad_first, &at);
    T *of_second = NAME(result_buffer)(layout & W2_LAST, z.w2, grad_second, &at);
    float *m = share(&at, z.rows * z.s * sizeof(float));
    float *of_m = share(&at, z.rows * z.s * sizeof(float));
    failed |= NAME(gained_layer)(l, &z, raw, gain, m);
    failed |= NAME(join_gradient)(l, &z, x, m, weight, grad, of_x, predicts ? of_m : 0, of_weight, at);
    if (grad_bias) NAME(sum_rows)(z.places, z.o, grad, grad_bias, 0);
    if (predicts && l->predictor == POOLED)
        failed |= NAME(predict_pooled_gradient)(l, &z, of_m, first, second, gain, hidden, raw, factors,
                                                of_x, grad_first, grad_first_bias, grad_second,
                                                grad_second_bias, grad_gain, at);
    else if (predicts) {
        T *of_raw = share(&at, z.rows * z.s * sizeof(T));
        failed |= NAME(gain_gradient)(&z, f->threads, of_m, raw, gain, of_raw, grad_gain, at);
        failed |= NAME(predict_gradient)(l, &z, of_raw, x, first, second, hidden, raw, factors, of_x,
                                         of_first, of_second, grad_second_bias, at);
    }
    if (of_x != grad_x) NAME(swap)(f, z.n, inputs(f), z.c, of_x, grad_x);
    if (of_weight != grad_weight)
        NAME(swap)(f, z.o, f->taps, z.w / z.o / f->taps, of_weight, grad_weight);
    if (of_first != grad_first) NAME(swap)(f, z.h, f1->taps, z.c, of_first, grad_first);
    if (of_second != grad_second) NAME(swap)(f, z.s, f2->taps, z.h, of_second, grad_second);
    free(work);
    return failed;
}
