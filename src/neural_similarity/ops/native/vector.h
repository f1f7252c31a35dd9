/* Vectors of floats, as long as the processor's, and the two element types, float32 and bfloat16,
   seen through them. Longer ones would live in memory: GCC keeps vectors that it splits on the
   stack. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define BITS 4 /* of a lane's number */
#elif defined(__AVX__)
#define LANES 8
#define BITS 3
#else
#define LANES 4
#define BITS 2
#endif
/* Arrays of vectors are in registers only where every loop over them is unrolled. */
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))
typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));
typedef uint16_t bfloat16;
typedef uint32_t pairs __attribute__((vector_size(4 * LANES), aligned(2))); /* of bfloat16 */

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE float wide_float32(float v) { return v; }
INLINE float narrow_float32(float v) { return v; }
INLINE float wide_bfloat16(bfloat16 v) {
    const uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
INLINE bfloat16 narrow_bfloat16(float f) { /* to the nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits += 0x7fff + ((bits >> 16) & 1);
    return f != f ? 0x7fc0 : (bfloat16)(bits >> 16);
}

INLINE vector load_float32(const float *from) { return *(const vector *)from; }
INLINE void store_float32(float *to, vector v) { *(vector *)to = v; }
INLINE words load_halves(const uint16_t *from) {
    return __builtin_convertvector(*(const halves *)from, words);
}
INLINE vector load_bfloat16(const bfloat16 *from) { return (vector)(load_halves(from) << 16); }
INLINE void store_bfloat16(bfloat16 *to, vector v) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)v));
#else
    for (int lane = 0; lane < LANES; lane++) to[lane] = narrow_bfloat16(v[lane]);
#endif
}

INLINE void store_pair_bfloat16(bfloat16 *to, vector low, vector high) {
#if defined(__AVX512BF16__)
    *(__m512bh *)to = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
    store_bfloat16(to, low);
    store_bfloat16(to + LANES, high);
#endif
}

/* Fewer lanes than a vector has; the other lanes are loaded as 0. See element.h. */
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define MASKED
INLINE __mmask16 first(int64_t lanes) { return (__mmask16)((1u << lanes) - 1); }
INLINE vector load_part_float32(const float *from, int64_t lanes) {
    return (vector)_mm512_maskz_loadu_ps(first(lanes), from);
}
INLINE void store_part_float32(float *to, vector v, int64_t lanes) {
    _mm512_mask_storeu_ps(to, first(lanes), (__m512)v);
}
INLINE vector load_part_bfloat16(const bfloat16 *from, int64_t lanes) {
    const halves some = (halves)_mm256_maskz_loadu_epi16(first(lanes), from);
    return (vector)(__builtin_convertvector(some, words) << 16);
}
INLINE void store_part_bfloat16(bfloat16 *to, vector v, int64_t lanes) {
    bfloat16 whole[LANES];
    store_bfloat16(whole, v);
    _mm256_mask_storeu_epi16(to, first(lanes), _mm256_loadu_si256((const __m256i *)whole));
}
#endif

/* 2 LANES elements times a number. */
INLINE void times_float32(float *to, const float *from, float m) {
    store_float32(to, m * load_float32(from));
    store_float32(to + LANES, m * load_float32(from + LANES));
}
INLINE void times_bfloat16(bfloat16 *to, const bfloat16 *from, float m) {
    if (m != m) m = __builtin_nanf(""); /* rounding other NaNs, such as 0xffffffff, overflows */
    const words v = *(const pairs *)from, half = {0};
    const words low = (words)(m * (vector)(v << 16)) + (half + 0x8000);
    const words high = (words)(m * (vector)(v & 0xffff0000)) + (half + 0x8000);
    *(pairs *)to = low >> 16 | (high & 0xffff0000);
}

/* v where it is above 0, or not a number. */
INLINE vector relu(vector v) {
    return (vector)((words)v & ~(words)(v <= 0));
}

/* tanh to a few units of the last place, by Eigen's rational approximation; NaN stays. */
INLINE vector tanh_of(vector v) {
    const vector most = 7.90531110763549805f - (vector){0};
    const words above = (words)(v > most), below = (words)(v < -most);
    v = (vector)(((words)v & ~(above | below)) | ((words)most & above) | ((words)-most & below));
    const vector s = v * v;
    const vector top = ((((((-2.76076847742355e-16f * s + 2.00018790482477e-13f) * s +
        -8.60467152213735e-11f) * s + 5.12229709037114e-08f) * s + 1.48572235717979e-05f) * s +
        6.37261928875436e-04f) * s + 4.89352455891786e-03f) * v;
    return top / (((1.19825839466702e-06f * s + 1.18534705686654e-04f) * s +
                   2.26843463243900e-03f) * s + 4.89352518554385e-03f);
}

INLINE void add(float *to, vector v, int64_t lanes) {
    if (lanes >= LANES) *(vector *)to += v;
    else for (int lane = 0; lane < lanes; lane++) to[lane] += v[lane];
}

/* The number of every lane. */
#if LANES == 16
static const words LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES == 8
static const words LANE = {0, 1, 2, 3, 4, 5, 6, 7};
#else
static const words LANE = {0, 1, 2, 3};
#endif

/* Shuffles of a pair of vectors; lanes of the second count from LANES on. `evens` takes lane l of the
   first where `bit` of l is off, and lane l - 2^bit of the second where it is on; `odds` takes the
   lanes that are 2^bit further. */
INLINE words evens(int bit) { return LANE + (LANE >> bit & 1) * (LANES - (1u << bit)); }
INLINE words odds(int bit) { return evens(bit) + (1u << bit); }

/* Lane j of the result is the sum of the lanes of v[j]. */
INLINE vector sums(const vector v[LANES]) {
    vector level[LANES];
    memcpy(level, v, sizeof level);
    UNROLL for (int bit = 0; bit < BITS; bit++)
        UNROLL for (int i = 0; i < LANES >> bit; i += 2) {
            const vector a = level[i], b = level[i + 1];
            level[i / 2] = __builtin_shuffle(a, b, evens(bit)) + __builtin_shuffle(a, b, odds(bit));
        }
    return level[0];
}

INLINE float lane_sum(vector v) {
    UNROLL for (int bit = 0; bit < BITS; bit++) v += __builtin_shuffle(v, LANE ^ (1u << bit));
    return v[0];
}

/* Transpose a matrix of `rows` x LANES words, LANES rows at most, `from_row` words apart. */
INLINE void transpose(uint32_t *to, int64_t to_row, const uint32_t *from, int64_t from_row,
                      int64_t rows) {
    words v[LANES];
    UNROLL for (int i = 0; i < LANES; i++)
        v[i] = i < rows ? *(const words *)(from + i * from_row) : (words){0};
    UNROLL for (int bit = 0; bit < BITS; bit++)
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i >> bit & 1) continue;
            const words a = v[i], b = v[i | 1 << bit];
            v[i] = __builtin_shuffle(a, b, evens(bit));
            v[i | 1 << bit] = __builtin_shuffle(a, b, odds(bit));
        }
    for (int i = 0; i < LANES; i++) *(words *)(to + i * to_row) = v[i];
}
