/* A layer of the default predictor, each way in one call, for the element type T:

       f = scale / |X|, h = relu(f W1 * x), r = W2 * h + b2, M = I + gain r, y = W M X + b

   or, if it is `light`, of the light one, which scales behind its second convolution:

       h = relu(W1 * x), f = scale / |H|, r = tanh(f W2 * h + b2)

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

/* Where to write a gradient whose channels come last: `to`, or `space` if they come first there. */
static T *NAME(desk_for)(int last, int64_t size, T *to, char **space) {
    return to && !last ? share(space, size * sizeof(T)) : to;
}

/* The sums over rows: in float over BRIEF rows, then in double. */
static void NAME(sum_rows)(int64_t rows, int64_t columns, const T *from, T *to) {
    for (int64_t c = 0; c < columns; c += LANES) {
        double sums[LANES] = {0};
        for (int64_t r = 0; r < rows; r += BRIEF) {
            vector some = {0};
            for (int64_t i = r; i < least(rows, r + BRIEF); i++)
                some += NAME(load_some)(from + i * columns + c, columns - c);
            for (int lane = 0; lane < LANES; lane++) sums[lane] += some[lane];
        }
        for (int64_t i = c; i < least(columns, c + LANES); i++) to[i] = NAME(narrow)(sums[i - c]);
    }
}

/* r = tanh(f y + bias) of `places` rows. */
static void NAME(bound)(int64_t places, int64_t columns, const T *y, const float *factors,
                        const T *bias, T *raw) {
    for (int64_t p = 0; p < places; p++, y += columns, raw += columns)
        for (int64_t i = 0, some; i < columns; i += LANES) {
            some = columns - i;
            vector v = factors[p] * NAME(load_some)(y + i, some);
            if (bias) v += NAME(load_some)(bias + i, some);
            NAME(store_some)(raw + i, tanh_of(v), some);
        }
}

/* Sizes of a layer: images, positions and pixels of the batch, channels, filters, hidden channels,
   scalars; numbers of the three kernels, of h and of the work space in bytes. */
struct NAME(sizes) { int64_t n, places, pixels, c, o, h, s, w, w1, w2, hidden, work; };

static struct NAME(sizes) NAME(sizes_of)(const struct layer *l) {
    const struct frame *f = &l->conv, *f1 = &l->first, *f2 = &l->last;
    struct NAME(sizes) z = {f->images, f->images * outputs(f), f->images * inputs(f), f1->channels,
                            f->y_pixel, f1->filters, f2->filters};
    z.w = z.o * f->taps * (f->each ? f->each : f->channels);
    z.w1 = z.h * f1->taps * z.c, z.w2 = z.s * f2->taps * z.h;
    z.hidden = (l->light ? z.pixels : z.places) * z.h;
    /* What either way needs at most, and the rounding of its shares. */
    z.work = (z.pixels * z.c * 3 + z.places * (z.o + 3 * z.s) + z.hidden +
              2 * (z.w + z.w1 + z.w2)) * sizeof(T) + z.places * (2 * z.s + 1) * sizeof(float) +
             f->threads * z.s * sizeof(double) + 32 * 64;
    return z;
}

/* Returns 0, or 1 if memory ran out. */
int NAME(layer_forward)(const struct layer *l, int64_t last, const T *x, const T *weight,
                        const T *bias, const T *first, const T *second, const T *second_bias,
                        const float *gain, T *y, T *hidden, T *raw, float *factors) {
    struct frame f = l->conv;
    const struct frame *f1 = &l->first, *f2 = &l->last;
    const struct NAME(sizes) z = NAME(sizes_of)(l);
    int full = 0;
    char *work = room(z.work, &full), *at = work;
    if (full) return 1;
    x = NAME(laid)(f1, last & X_LAST, z.n, z.c, inputs(&f), x, &at);
    weight = NAME(laid)(f1, last & W_LAST, z.o, z.w / z.o / f.taps, f.taps, weight, &at);
    first = NAME(laid)(f1, last & W1_LAST, z.h, z.c, f1->taps, first, &at);
    second = NAME(laid)(f1, last & W2_LAST, z.s, z.h, f2->taps, second, &at);
    T *inner = share(&at, (l->light ? z.places * z.s : z.hidden) * sizeof(T));
    T *to = NAME(desk_for)(last & Y_LAST, z.places * z.o, y, &at);
    float *m = share(&at, z.places * z.s * sizeof(float));
    if (l->light) {
        full |= NAME(forward)(f1, x, 0, first, hidden, 0);
        for (int64_t i = 0; i < z.hidden; i += LANES)
            NAME(store_some)(hidden + i, relu(NAME(load_some)(hidden + i, z.hidden - i)),
                             z.hidden - i);
        full |= NAME(patch_factors)(f2, hidden, l->eps, l->scale, factors);
        full |= NAME(forward)(f2, hidden, 0, second, inner, 0);
        NAME(bound)(z.places, z.s, inner, factors, second_bias, raw);
    } else {
        full |= NAME(patch_factors)(f1, x, l->eps, l->scale, factors);
        full |= NAME(forward)(f1, x, 0, first, inner, 0);
        NAME(scaled)(z.places, z.h, f.threads, inner, factors, hidden);
        full |= NAME(forward)(f2, hidden, 0, second, raw, second_bias);
    }
    full |= NAME(gained)(z.places, z.s, f.threads, raw, gain, every(&f), m);
    for (int64_t g = 0; g < l->groups; g++)
        full |= NAME(forward)(&f, x + g * f.channels, m, weight + g * (z.w / l->groups),
                              to + g * f.filters, bias ? bias + g * f.filters : 0);
    if (to != y) NAME(swap)(f1, z.n, outputs(&f), z.o, to, y);
    free(work);
    return full;
}

/* The gradients that are not null. Returns what `layer_forward` does. */
int NAME(layer_backward)(const struct layer *l, int64_t last, const T *grad, const T *x,
                         const T *weight, const T *first, const T *second, const float *gain,
                         const T *hidden, const T *raw, const float *factors, T *grad_x,
                         T *grad_weight, T *grad_bias, T *grad_first, T *grad_second,
                         T *grad_second_bias, float *grad_gain) {
    struct frame f = l->conv;
    const struct frame *f1 = &l->first, *f2 = &l->last;
    const struct NAME(sizes) z = NAME(sizes_of)(l);
    const int64_t p = outputs(&f), size = z.pixels * z.c;
    const int inside = grad_x || grad_first;
    const int predicts = inside || grad_second || grad_second_bias || grad_gain;
    int full = 0;
    char *work = room(z.work, &full), *at = work;
    if (full) return 1;
    x = NAME(laid)(f1, last & X_LAST, z.n, z.c, inputs(&f), x, &at);
    grad = NAME(laid)(f1, last & Y_LAST, z.n, z.o, p, grad, &at);
    weight = NAME(laid)(f1, last & W_LAST, z.o, z.w / z.o / f.taps, f.taps, weight, &at);
    first = NAME(laid)(f1, last & W1_LAST, z.h, z.c, f1->taps, first, &at);
    second = NAME(laid)(f1, last & W2_LAST, z.s, z.h, f2->taps, second, &at);
    T *of_x = NAME(desk_for)(last & X_LAST, size, grad_x, &at);
    T *of_weight = NAME(desk_for)(last & W_LAST, z.w, grad_weight, &at);
    T *of_first = NAME(desk_for)(last & W1_LAST, z.w1, grad_first, &at);
    T *of_second = NAME(desk_for)(last & W2_LAST, z.w2, grad_second, &at);
    T *of_hidden = share(&at, z.hidden * sizeof(T));
    T *of_raw = share(&at, z.places * z.s * sizeof(T));
    float *m = share(&at, z.places * z.s * sizeof(float));
    float *of_m = share(&at, z.places * z.s * sizeof(float));
    float *of_factors = share(&at, z.places * sizeof(float));
    full |= NAME(gained)(z.places, z.s, f.threads, raw, gain, every(&f), m);
    for (int64_t g = 0; g < l->groups; g++, f.more = 1) /* groups add to M's gradient */
        full |= NAME(backward)(&f, x + g * f.channels, m, weight + g * (z.w / l->groups),
                               grad + g * f.filters, of_x ? of_x + g * f.channels : 0,
                               predicts ? of_m : 0,
                               of_weight ? of_weight + g * (z.w / l->groups) : 0);
    if (grad_bias) NAME(sum_rows)(z.places, z.o, grad, grad_bias);
    if (predicts) {
        double *sums = share(&at, f.threads * z.s * sizeof(double));
        memset(sums, 0, f.threads * z.s * sizeof(double));
        full |= NAME(gained_gradient)(z.places, z.s, f.threads, of_m, raw, gain, of_raw, sums);
        for (int64_t t = f.threads * z.s - 1; t >= z.s; t--) sums[t % z.s] += sums[t];
        for (int64_t t = 0; grad_gain && t < z.s; t++) grad_gain[t] = sums[t];
        for (int64_t i = 0, all = z.places * z.s; l->light && i < all; i += LANES) {
            const vector r = NAME(load_some)(raw + i, all - i);
            const vector g = NAME(load_some)(of_raw + i, all - i);
            NAME(store_some)(of_raw + i, g * (1 - r * r), all - i);
        }
        if (grad_second_bias) NAME(sum_rows)(z.places, z.s, of_raw, grad_second_bias);
        if (!l->light)
            full |= NAME(backward)(f2, hidden, 0, second, of_raw, inside ? of_hidden : 0, 0,
                                   of_second);
    }
    T *through = share(&at, size * sizeof(T));
    if (l->light && (inside || grad_second)) {
        T *inner = share(&at, z.places * z.s * sizeof(T));
        T *of_inner = share(&at, z.places * z.s * sizeof(T));
        full |= NAME(forward)(f2, hidden, 0, second, inner, 0);
        NAME(scaled_gradient)(z.places, z.s, f.threads, of_raw, inner, factors, 0, of_inner,
                              of_factors);
        full |= NAME(backward)(f2, hidden, 0, second, of_inner, inside ? of_hidden : 0, 0,
                               of_second);
    }
    if (l->light && inside) {
        full |= NAME(patch_factors_gradient)(f2, of_factors, hidden, factors, l->scale, of_hidden);
        for (int64_t i = 0; i < z.hidden; i += LANES) {
            const words off = (words)(NAME(load_some)(hidden + i, z.hidden - i) <= 0);
            const words g = (words)NAME(load_some)(of_hidden + i, z.hidden - i);
            NAME(store_some)(of_hidden + i, (vector)(g & ~off), z.hidden - i);
        }
    } else if (inside)
        NAME(scaled_gradient)(z.places, z.h, f.threads, of_hidden, hidden, factors, 1, of_hidden,
                              of_factors);
    if (inside)
        full |= NAME(backward)(f1, x, 0, first, of_hidden, grad_x ? through : 0, 0, of_first);
    for (int64_t i = 0; grad_x && i < size; i += LANES)
        NAME(store_some)(of_x + i, NAME(load_some)(of_x + i, size - i) +
                         NAME(load_some)(through + i, size - i), size - i);
    if (grad_x && !l->light)
        full |= NAME(patch_factors_gradient)(f1, of_factors, x, factors, l->scale, of_x);
    if (of_x != grad_x) NAME(swap)(f1, z.n, inputs(&f), z.c, of_x, grad_x);
    if (of_weight != grad_weight)
        NAME(swap)(f1, z.o, f.taps, z.w / z.o / f.taps, of_weight, grad_weight);
    if (of_first != grad_first) NAME(swap)(f1, z.h, f1->taps, z.c, of_first, grad_first);
    if (of_second != grad_second) NAME(swap)(f1, z.s, f2->taps, z.h, of_second, grad_second);
    free(work);
    return full;
}
