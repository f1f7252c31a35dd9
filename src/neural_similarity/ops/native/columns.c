/* Patches scaled or mixed by M on their way into columns, and the way back. See native/__init__.py.

   Memory: padded input (image, *size, channel), columns (position, tap, channel), M float
   (position, block, *taps). Letters: n channels of a block, s kernel taps, t patch taps. */
#include <stdint.h>
#include <string.h>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#define LANES 16
#define MOST_TAPS 64
#define INLINE static inline __attribute__((always_inline))
typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t bfloat16;

struct frame {
    int64_t images, out[3], image, step[3], taps, channels, blocks, threads;
    int64_t offset[MOST_TAPS];
};

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
#if defined(__AVX512BF16__)
INLINE vector load_bfloat16(const bfloat16 *from) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return (vector)_mm512_slli_epi32(bits, 16);
}
INLINE void store_bfloat16(bfloat16 *to, vector v) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)v));
}
#else
INLINE vector load_bfloat16(const bfloat16 *from) {
    vector v;
    for (int lane = 0; lane < LANES; lane++) v[lane] = wide_bfloat16(from[lane]);
    return v;
}
INLINE void store_bfloat16(bfloat16 *to, vector v) {
    for (int lane = 0; lane < LANES; lane++) to[lane] = narrow_bfloat16(v[lane]);
}
#endif

INLINE void add(float *to, vector v, int64_t lanes) {
    if (lanes >= LANES) *(vector *)to += v;
    else for (int lane = 0; lane < lanes; lane++) to[lane] += v[lane];
}

/* Lane j of the result is the sum of the lanes of v[j]. */
INLINE vector sums(const vector v[LANES]) {
    typedef int32_t order __attribute__((vector_size(4 * LANES)));
    vector level[LANES];
    memcpy(level, v, sizeof level);
    for (int width = 1, count = LANES; count > 1; width *= 2, count /= 2)
        for (int pair = 0; pair < count / 2; pair++) {
            order even, odd;
            for (int lane = 0; lane < LANES; lane++) {
                const int from = lane & width ? LANES : 0, low = lane & ~width;
                even[lane] = from + low;
                odd[lane] = from + low + width;
            }
            const vector a = level[2 * pair], b = level[2 * pair + 1];
            level[pair] = __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
        }
    return level[0];
}

#define T float
#define NAME(name) name##_float32
#include "element.h"
#undef T
#undef NAME
#define T bfloat16
#define NAME(name) name##_bfloat16
#include "element.h"
