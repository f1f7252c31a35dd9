/* The dynamic operators and their gradients. See native/__init__.py.

   Maps are channels-last; M is float (image, position, block, *taps). */
#include <math.h>
#include <omp.h>
#include "vector.h"
#include "product.h"

#define MOST_TAPS 64
#define POSITIONS 96 /* taken at a time */
#define MANY 288     /* of them with a large kernel, which every chunk reads, and its gradient */
#define LARGE (1 << 20) /* numbers of such a kernel */
#define BRIEF 64        /* rows whose sum is in float */
#define LONG 5          /* taps of a kernel row, at least, and */
#define FEW_CHANNELS 8  /* at most, where what a kernel row sees is read at once */
#define FEW 512      /* positions of images that are taken together */
#define NEARBY 32768 /* numbers of patches of grouped kernels that are taken together */
#define ROWS 4       /* rows whose sums stay in registers, in grouped.h */

struct frame {
    int64_t images, in[3], out[3], stride[3];
    int64_t tap[MOST_TAPS][3]; /* offset of a tap from the window's corner, less the padding */
    int64_t taps, channels, filters, blocks, full;
    int64_t depth, width; /* taps x channels and filters, rounded up to a tile */
    int64_t image, x_pixel, y_pixel, m; /* elements from image to image, position to position */
    int64_t accumulate, threads; /* accumulate: add to the gradient of M */
    int64_t group;    /* channels and filters of a group if all are taken at once, or 0 */
    int64_t row_taps; /* taps of a kernel row if they see adjacent pixels of few channels, or 0 */
};

/* The frames of W with M and of a predictor's two convolutions. */
struct layer {
    struct frame conv, first, last;
    int64_t groups; /* of W that are taken one after another */
    int64_t predictor; /* see layer.h */
    int64_t folds;     /* whether every image has a kernel W M */
    float eps, scale;
};
enum { SPHERE, LIGHT, POOLED };

/* The M = I of depthwise kernels, which are multiplied by one. */
static const float ones[MOST_TAPS] = {[0 ... MOST_TAPS - 1] = 1};

/* Sizes of a layer: images, positions and pixels of the batch, rows of r and h, channels, filters,
   hidden channels, scalars; numbers of the three kernels, of h and of the work space in bytes. */
struct sizes {
    int64_t n, places, pixels, rows, c, o, h, s, w, w1, w2, hidden, work;
};

enum { X_LAST = 1, Y_LAST = 2, W_LAST = 4, W1_LAST = 8, W2_LAST = 16 }; /* channels are adjacent */

static int64_t outputs(const struct frame *f) { return f->out[0] * f->out[1] * f->out[2]; }
static int64_t inputs(const struct frame *f) { return f->in[0] * f->in[1] * f->in[2]; }

/* From one to the next of the entries of M where I is one. */
static int64_t every(const struct frame *f) { return f->full ? f->taps + 1 : 1; }

/* The number of pieces of at most `most` positions. */
static int64_t pieces(int64_t positions, int64_t most) { return (positions + most - 1) / most; }

/* Whether every tap is added as it is read. */
static int needs_no_columns(const struct frame *f) { return f->group == 1 && !f->full; }

/* Whether what a kernel row sees is read at once, by a vector with a lane for each of its taps.
   Loops over nine taps are faster, see SPECIALISED. */
static int goes_along(const struct frame *f) {
    return f->row_taps >= LONG && f->row_taps <= LANES && f->channels <= FEW_CHANNELS;
}

/* Positions whose columns are taken at a time. */
static int64_t positions_for(const struct frame *f) {
    const int64_t near = NEARBY / f->depth / ROWS * ROWS;
    const int64_t all = (f->images * outputs(f) / TILE + 1) * TILE;
    if (!f->group) return least(all, f->width * f->depth < LARGE ? POSITIONS : MANY);
    return near < ROWS ? ROWS : least(near, least(all, POSITIONS));
}

/* The rows that the products of `count` positions fill. */
static int64_t rows_of(const struct frame *f, int paired, int64_t count) {
    return f->group ? pieces(count, ROWS) * ROWS : rows_for(paired, count);
}

/* Words of the kernel as products read it. */
static int64_t kernel_size(const struct frame *f) {
    return f->width * (f->group ? f->taps * f->group : f->depth);
}

/* Threads that share an image in backward. */
static int64_t parts_of(const struct frame *f, int64_t threads) {
    return f->images && threads > f->images ? threads / f->images : 1;
}

/* Images that a thread of backward takes, and which part of the positions of each. */
struct share { int64_t first, last, part; };

static struct share share_of(const struct frame *f, int64_t thread, int64_t threads) {
    const int64_t parts = parts_of(f, threads), image = thread / parts;
    if (parts > 1) return (struct share){image, least(image + 1, f->images), thread % parts};
    return (struct share){f->images * thread / threads, f->images * (thread + 1) / threads, 0};
}

/* Images that backward takes together, so that the positions of small ones fill chunks. */
static int64_t together(const struct frame *f) {
    const int64_t most = least(pieces(FEW, outputs(f)), pieces(f->images, f->threads));
    return most ? most : 1;
}

/* Memory; if none is left, 0, and `failed` is set. */
static void *room(int64_t bytes, int *failed) {
    void *found = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!found) {
        #pragma omp atomic write
        *failed = 1;
    }
    return found;
}

/* The next bytes of a work space, aligned. */
static void *share(char **space, int64_t bytes) {
    char *at = *space;
    *space += (bytes + 63) / 64 * 64;
    return at;
}

/* Positions that follow each other in a row of an image; images follow each other as well. */
struct line { int64_t image, first[3], run; };

INLINE struct line line_of(const struct frame *f, int64_t at, int64_t most) {
    const int64_t image = at / outputs(f), w = at % f->out[2];
    const int64_t row = at / f->out[2] - image * f->out[0] * f->out[1];
    return (struct line){image, {row / f->out[1] * f->stride[0], row % f->out[1] * f->stride[1],
                                 w * f->stride[2]}, least(f->out[2] - w, most)};
}

/* What a tap sees along a line: positions first to last - 1, at offset + j * step. */
struct reach { int64_t first, last, offset, step; };

INLINE int64_t steps(int64_t length, int64_t step, int64_t most) { /* that cover length */
    return least(length <= 0 ? 0 : (length + step - 1) / step, most);
}

INLINE struct reach reach_of(const struct frame *f, struct line line, int64_t t) {
    int64_t i[3];
    for (int d = 0; d < 3; d++) i[d] = line.first[d] + f->tap[t][d];
    const int outside = i[0] < 0 || i[0] >= f->in[0] || i[1] < 0 || i[1] >= f->in[1];
    const int64_t last = outside ? 0 : steps(f->in[2] - i[2], f->stride[2], line.run);
    return (struct reach){steps(-i[2], f->stride[2], last), last,
                          ((line.image * f->in[0] + i[0]) * f->in[1] + i[1]) * f->in[2] + i[2],
                          f->stride[2]};
}

/* Sizes that the compiler knows make the loops several times faster. */
#define SPECIALISED(FUNCTION, f, ...)                                               \
    do {                                                                            \
        const int64_t of_nine = f->taps == 9 && f->blocks == 1 ? f->channels : 1;   \
        if (of_nine == 32) FUNCTION(f, __VA_ARGS__, 9, 32, 1);                      \
        else if (of_nine == 3) FUNCTION(f, __VA_ARGS__, 9, 3, 1);                   \
        else if (of_nine == 8) FUNCTION(f, __VA_ARGS__, 9, 8, 1);                   \
        else if (of_nine == 16) FUNCTION(f, __VA_ARGS__, 9, 16, 1);                 \
        else if (of_nine % 32 == 0) FUNCTION(f, __VA_ARGS__, 9, of_nine & ~31L, 1); \
        else FUNCTION(f, __VA_ARGS__, f->taps, f->channels, f->blocks);             \
    } while (0)

/* The function compiled for every possible `group`, so that the compiler knows the spread. */
#define BY_EACH(FUNCTION, f, ...)                              \
    do {                                                       \
        if (f->group == 1) FUNCTION(f, __VA_ARGS__, 1);        \
        else if (f->group == 2) FUNCTION(f, __VA_ARGS__, 2);   \
        else if (f->group == 4) FUNCTION(f, __VA_ARGS__, 4);   \
        else if (f->group == 8) FUNCTION(f, __VA_ARGS__, 8);   \
        else FUNCTION(f, __VA_ARGS__, 16);                     \
    } while (0)

INLINE vector load_some_float32(const float *from, int64_t lanes);
INLINE void store_some_float32(float *to, vector v, int64_t lanes);

/* Add gradients of patches, times the diagonal M if `m` is given, to their images. */
INLINE void scatter(const struct frame *f, float *images, const float *m, int64_t at,
                    int64_t count, const float *g, int64_t taps, int64_t n, int64_t blocks) {
    const int64_t depth = f->depth, m_step = f->m, size = n / blocks;
    for (int64_t done = 0, run; done < count; done += run) {
        const struct line line = line_of(f, at + done, count - done);
        run = line.run;
        for (int64_t t = 0; t < taps; t++) {
            const struct reach reach = reach_of(f, line, t);
            for (int64_t j = reach.first; j < reach.last; j++) {
                float *to = images + (reach.offset + j * reach.step) * n;
                const float *from = g + (done + j) * depth + t * n;
                const float *factor = m ? m + (at + done + j) * m_step + t : 0;
                for (int64_t block = 0; block < blocks; block++) {
                    const float each = m ? factor[block * taps] : 1;
                    for (int64_t i = 0; i < size; i += LANES)
                        add(to + i, each * load_some_float32(from + i, size - i), size - i);
                    to += size, from += size;
                }
            }
        }
    }
}

#define T float
#define PAIRED 0
#define NAME(name) name##_float32
#include "element.h"
#include "grouped.h"
#include "passes.h"
#include "fold.h"
#include "pointwise.h"
#include "pooled.h"
#include "layer.h"
#undef T
#undef PAIRED
#undef NAME
#define T bfloat16
#define PAIRED 1
#define NAME(name) name##_bfloat16
#include "element.h"
#include "grouped.h"
#include "passes.h"
#include "fold.h"
#include "pointwise.h"
#include "pooled.h"
#include "layer.h"
