/* Matrix products. A word is one float32 or, where `paired`, two bfloat16 that follow each other
   along the dimension that is summed over; strides and depths count words. */

#define TILE 32 /* rows and columns lie in multiples of this, and elements of depth too */
#define DEPTH 512
#define NEAR 128 /* rows of gradients of up to so many columns stay in the first-level cache */
#if defined(__AVX512F__)
#define TALL 8
#else
#define TALL 4
#endif

/* GCC would load both again for every row, and the loads would limit the product's speed. */
#if defined(__AVX__) && !defined(__AVX512F__)
#define IN_REGISTERS(a, b) __asm__("" : "+x"(a), "+x"(b))
#else
#define IN_REGISTERS(a, b)
#endif

INLINE vector plus_product(int paired, vector sum, words a, words b) {
    if (!paired) return sum + (vector)a * (vector)b;
#if defined(__AVX512BF16__)
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += (vector)(a << 16) * (vector)(b << 16);
    return sum + (vector)(a & 0xffff0000) * (vector)(b & 0xffff0000);
#endif
}

struct matrix {
    const uint32_t *at;
    int64_t row, step; /* words from row to row (or panel of TILE columns), and along the depth */
};

struct target {
    float *at;
    int64_t row, panel; /* floats from row to row, and from panel to panel */
};

/* TALL rows and one or two vectors of columns of c = a b, or c += a b. */
INLINE void tall_strip(int paired, struct matrix a, struct matrix b, float *c, int64_t c_row,
                       int64_t depth, int more, const int both) {
    vector sum[TALL][2];
    for (int i = 0; i < TALL; i++)
        for (int j = 0; j <= both; j++)
            sum[i][j] = more ? *(vector *)(c + i * c_row + j * LANES) : (vector){0};
    for (int64_t p = 0; p < depth; p++) {
        words low = *(const words *)(b.at + p * b.step);
        words high = *(const words *)(b.at + p * b.step + both * LANES);
        IN_REGISTERS(low, high);
        for (int i = 0; i < TALL; i++) {
            const words each = a.at[i * a.row + p * a.step] - (words){0};
            sum[i][0] = plus_product(paired, sum[i][0], each, low);
            if (both) sum[i][1] = plus_product(paired, sum[i][1], each, high);
        }
    }
    for (int i = 0; i < TALL; i++)
        for (int j = 0; j <= both; j++) *(vector *)(c + i * c_row + j * LANES) = sum[i][j];
}

/* TALL rows and the vectors that `columns` fill, TILE at most. */
INLINE void tall_tile(int paired, struct matrix a, struct matrix b, float *c, int64_t c_row,
                      int64_t columns, int64_t depth, int more) {
    for (int column = 0; column < columns; column += 2 * LANES) {
        const struct matrix some = {b.at + column, b.row, b.step};
        if (columns - column > LANES) tall_strip(paired, a, some, c + column, c_row, depth, more, 1);
        else tall_strip(paired, a, some, c + column, c_row, depth, more, 0);
    }
}

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

/* Whether the system lets this process use the matrix unit. */
static int has_matrix_unit(void) {
    static int answer = -1; /* Threads that ask at once write the same. */
    int found = __atomic_load_n(&answer, __ATOMIC_RELAXED);
    if (found < 0) {
        found = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
        __atomic_store_n(&answer, found, __ATOMIC_RELAXED);
    }
    return found;
}

struct tiles { uint8_t palette, start, zero[14]; uint16_t bytes[16]; uint8_t rows[16]; };

/* The intrinsics do not tell the compiler which memory they use. */
#define MEMORY_IS_USED(...) __asm__ volatile("" ::"r"(__VA_ARGS__) : "memory")

/* Configure eight tiles of 16 rows of 64 bytes, and return the previous configuration. */
static struct tiles take_matrix_unit(void) {
    struct tiles before = {0}, ours = {.palette = 1};
    if (!has_matrix_unit()) return before;
    for (int i = 0; i < 8; i++) ours.bytes[i] = 64, ours.rows[i] = 16;
    MEMORY_IS_USED(&ours);
    _tile_storeconfig(&before);
    _tile_loadconfig(&ours);
    MEMORY_IS_USED(&before);
    return before;
}

static void release_matrix_unit(struct tiles before) {
    if (!has_matrix_unit()) return;
    MEMORY_IS_USED(&before);
    if (before.palette) _tile_loadconfig(&before);
    else _tile_release();
}

/* The sums of four tiles: TILE rows and columns. */
INLINE void matrix_unit_zero(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

INLINE void matrix_unit_load(const float *c, int64_t c_row) {
    MEMORY_IS_USED(c);
    _tile_loadd(0, c, 4 * c_row);
    _tile_loadd(1, c + 16, 4 * c_row);
    _tile_loadd(2, c + 16 * c_row, 4 * c_row);
    _tile_loadd(3, c + 16 * c_row + 16, 4 * c_row);
}

INLINE void matrix_unit_store(float *c, int64_t c_row) {
    _tile_stored(0, c, 4 * c_row);
    _tile_stored(1, c + 16, 4 * c_row);
    _tile_stored(2, c + 16 * c_row, 4 * c_row);
    _tile_stored(3, c + 16 * c_row + 16, 4 * c_row);
    MEMORY_IS_USED(c);
}

/* Add a b of 16 words of depth, whose rows are `a_row` and `b_row` words apart. */
INLINE void matrix_unit_add(const uint32_t *a, int64_t a_row, const uint32_t *b, int64_t b_row) {
    MEMORY_IS_USED(a);
    _tile_loadd(4, a, 4 * a_row);
    _tile_loadd(6, b, 4 * b_row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 16, 4 * b_row);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + 16 * a_row, 4 * a_row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    MEMORY_IS_USED(a);
}

/* TILE rows and columns of c = a b, or c += a b; a.step is 1. */
INLINE void matrix_unit_tile(struct matrix a, struct matrix b, float *c, int64_t c_row,
                             int64_t depth, int more) {
    if (more) matrix_unit_load(c, c_row);
    else matrix_unit_zero();
    for (int64_t p = 0; p < depth; p += 16)
        matrix_unit_add(a.at + p, a.row, b.at + p * b.step, b.step);
    matrix_unit_store(c, c_row);
}

/* c = a bᵀ, 16 x 16 values of which `rows` x `rows` are used, for rows of n values, a multiple of
   TILE, that are `step` apart. */
INLINE void matrix_unit_outer(float *c, const float *a, const bfloat16 *b, int64_t rows, int64_t n,
                              int64_t step) {
    uint32_t left[16 * 16] __attribute__((aligned(64))), right[16 * 16] __attribute__((aligned(64)));
    _tile_zero(0);
    for (int64_t i = 0; i < n; i += TILE) {
        for (int64_t row = 0; row < rows; row++) {
            const float *from = a + row * step + i;
            store_pair_bfloat16((bfloat16 *)(left + row * 16), load_float32(from),
                                load_float32(from + LANES));
        }
        transpose(right, 16, (const uint32_t *)(b + i), step / 2, rows);
        MEMORY_IS_USED(left);
        MEMORY_IS_USED(right);
        _tile_loadd(4, left, 64);
        _tile_loadd(6, right, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, c, 64);
    MEMORY_IS_USED(c);
}
#else
struct tiles { int none; };
static int has_matrix_unit(void) { return 0; }
static struct tiles take_matrix_unit(void) { return (struct tiles){0}; }
static void release_matrix_unit(struct tiles before) { (void)before; }
INLINE void matrix_unit_zero(void) {}
INLINE void matrix_unit_store(float *c, int64_t c_row) {}
INLINE void matrix_unit_add(const uint32_t *a, int64_t a_row, const uint32_t *b, int64_t b_row) {}
INLINE void matrix_unit_tile(struct matrix a, struct matrix b, float *c, int64_t c_row,
                             int64_t depth, int more) {}
INLINE void matrix_unit_outer(float *c, const float *a, const bfloat16 *b, int64_t rows, int64_t n,
                              int64_t step) {}
#endif

/* Words of `count` elements of depth, behind which zeros follow up to `padded` elements. */
static int64_t words_of(int paired, int64_t count, int64_t padded) {
    if (!paired) return count;
    return has_matrix_unit() ? padded / 2 : (count + 1) / 2;
}

/* `count` rows, rounded up as `multiply` needs them. */
static int64_t rows_for(int paired, int64_t count) {
    const int64_t tall = paired && has_matrix_unit() ? TILE : TALL;
    return (count + tall - 1) / tall * tall;
}

/* c = a b, or c += a b; columns beyond the last that fill its vector stay as they are. */
INLINE void multiply(int paired, struct matrix a, struct matrix b, struct target c, int64_t rows,
                     int64_t columns, int64_t depth, int more) {
    const int unit = paired && a.step == 1 && has_matrix_unit();
    const int64_t deep = unit ? depth : DEPTH, tall = unit ? TILE : TALL;
    for (int64_t panel = 0; panel < (columns + TILE - 1) / TILE; panel++)
        for (int64_t from = 0; from < depth; from += deep)
            for (int64_t row = 0; row < rows; row += tall) {
                const int64_t some = least(depth - from, deep);
                struct matrix left = {a.at + row * a.row + from * a.step, a.row, a.step};
                struct matrix right = {b.at + panel * b.row + from * b.step, 0, b.step};
                float *to = c.at + row * c.row + panel * c.panel;
                if (unit) matrix_unit_tile(left, right, to, c.row, some, more || from);
                else tall_tile(paired, left, right, to, c.row, least(columns - panel * TILE, TILE),
                               some, more || from);
            }
}

/* Rows of elements as panels of TILE columns of words, each panel in one piece: pairs of rows
   interleaved, or as they are. Rows a multiple of a page apart would evict each other. */
INLINE struct matrix panels(int paired, uint32_t *to, const void *from, int64_t rows,
                            int64_t columns) {
    const int64_t tall = rows / (1 + paired);
    for (int64_t row = 0; row < tall; row++)
        for (int64_t i = 0; i < columns; i += LANES) {
            uint32_t *at = to + i / TILE * tall * TILE + row * TILE + i % TILE;
            const uint16_t *pair = (const uint16_t *)from + 2 * row * columns + i;
            if (paired) *(words *)at = load_halves(pair) | load_halves(pair + columns) << 16;
            else *(words *)at = *(const words *)((const uint32_t *)from + row * columns + i);
        }
    return (struct matrix){to, tall * TILE, TILE};
}

/* Transpose words; rows and columns are multiples of LANES. */
INLINE void turn(uint32_t *to, int64_t to_row, const uint32_t *from, int64_t from_row,
                 int64_t rows, int64_t columns) {
    for (int64_t row = 0; row < rows; row += LANES)
        for (int64_t column = 0; column < columns; column += LANES)
            transpose(to + column * to_row + row, to_row, from + row * from_row + column, from_row,
                      LANES);
}
