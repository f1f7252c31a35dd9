// The gradients of a layer's weights from the parts that other kernels left: the sum of `counts` arrays.
// Of W and W₁ (filters, 9, CHANNELS), W₂ (9, 9, HIDDEN), b₂ (9) and the gains (9); the last three lie one
// after another in each of `last_parts`. Without parts nothing is written.
// Blocks: a thread a number.
#include "device.cuh"
#include "tile.cuh"
constexpr int WEIGHT = OUTPUTS * TAPS * CHANNELS, FIRST = HIDDEN * TAPS * CHANNELS;
constexpr int LAST = TAPS * TAPS * HIDDEN, ALL_LAST = LAST + 2 * TAPS;

DEVICE void store_gain(float *to, float sum) { *to = sum; }
DEVICE void store_gain(u16 *to, float sum) { *to = (u16)pack(sum, 0); }

template <int SIZE> DEVICE float sum_parts(const float *parts, int i, int count) {
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < count; k++) sum += parts[k * SIZE + i];
  return sum;
}

KERNEL(GROUPS * WARPGROUP) weight_sums(const float *parts, const float *first_parts,
                                       const float *last_parts, u16 *dw, u16 *dw1, u16 *dw2, u16 *db2,
                                       Gain *dg, int count, int first_count, int last_count) {
  int i = block_index() * (GROUPS * WARPGROUP) + thread_index();
  if (i < WEIGHT) {
    if (count) dw[i] = (u16)pack(sum_parts<WEIGHT>(parts, i, count), 0);
    return;
  }
  i -= WEIGHT;
  if (i < FIRST) {
    if (first_count) dw1[i] = (u16)pack(sum_parts<FIRST>(first_parts, i, first_count), 0);
    return;
  }
  i -= FIRST;
  if (i >= ALL_LAST || !last_count) return;
  float sum = sum_parts<ALL_LAST>(last_parts, i, last_count);
  if (i < LAST) dw2[i] = (u16)pack(sum, 0);
  else if (i < LAST + TAPS) db2[i - LAST] = (u16)pack(sum, 0);
  else store_gain(dg + i - LAST - TAPS, sum);
}
