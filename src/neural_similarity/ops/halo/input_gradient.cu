// What a predictor adds to the gradient of x, by its first convolution and by the norms of patches:
// dx(q) += Σ_t W₁_tᵀ dz(q - t) + x(q) Σ_t e(q - t), with dz and e of hidden_gradient.cu.
// dz (n, h, w, OUTPUTS), w (OUTPUTS, 9, CHANNELS), e (n, h, w) float32, x and dx (n, h, w, CHANNELS).
// Blocks: tiles of pixels, 64 (or all 32) channels.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = OUTPUTS, COLUMNS = CHANNELS, SLICE_MOST = 64;
constexpr bool MIRRORED = true;
#include "weights.cuh"
#include "taps.cuh"

using Ring = Similarities<1, 1>; // of e

DEVICE float ring_sum(const float *ring, int row, int column) {
  float sum = 0;
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++) sum += ring[Ring::at(row + tap / 3 - 1, column + tap % 3 - 1)];
  return sum;
}

KERNEL(THREADS) input_gradient(const u16 *dz, const u16 *w, const float *e, const u16 *x, u16 *dx,
                               int images, int height, int width) {
  SHARED
  Map map = {images, height, width};
  int thread = thread_index() % WARPGROUP, lane = thread % 32, row = thread / 32 * 2;
  int column = lane / 4, first = column_index() * WIDTH;
  float total[WIDTH / 2];
  u32 own_x[WIDTH / 4]; // x at the pixels and channels of `total`
  each_tile<Ring::BYTES>(
      memory, w, map,
      [&](Tile tile, int slice, u32 halo, u32 own_e) {
        load_halo<OUTPUTS, SLICE / 8>(halo, dz + slice * SLICE, tile, map, thread);
        if (slice == 0) Ring::load(own_e, e, tile, map, thread);
      },
      [&](Tile tile, bool there) {
        there = there && within(tile.column + column, map.width);
#pragma unroll
        for (int j = 0; j < WIDTH / 4; j++) {
          int down = tile.row + row + j % 2, channel = first + j / 2 * 8 + lane % 4 * 2;
          int at = pixel_index(tile.image, down, tile.column + column, map) * CHANNELS + channel;
          bool here = there && down < map.height;
          u32 before = here ? *(const u32 *)(dx + at) : 0;
          own_x[j] = here ? *(const u32 *)(x + at) : 0;
          total[j / 2 * 4 + j % 2 * 2] = low(before);
          total[j / 2 * 4 + j % 2 * 2 + 1] = high(before);
        }
      },
      [&](Tile, auto slice, bool) {
        each_tap(slice, [&](int, float (&sums)[WIDTH / 2]) {
#pragma unroll
          for (int j = 0; j < WIDTH / 2; j++) total[j] += sums[j];
        });
        if (slice.index > 0) return;
        const float *own_e = (const float *)slice.own;
        float upper = ring_sum(own_e, row, column), lower = ring_sum(own_e, row + 1, column);
#pragma unroll
        for (int j = 0; j < WIDTH / 2; j++) {
          float value = j % 2 ? high(own_x[j / 2]) : low(own_x[j / 2]);
          total[j] += value * (j / 2 % 2 ? lower : upper);
        }
      },
      [&](Tile tile, unsigned char *stage, int group) {
        Stage<WIDTH>::store<CHANNELS>(dx + first, total, stage, tile, map, group, thread);
      });
}
