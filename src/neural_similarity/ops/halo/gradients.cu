// Gradients of x and of a diagonal M, from z_t(q) = W_tᵀ g(q - t) at every pixel q:
// dx(q) = Σ_t m_t(q - t) z_t(q) and dm_t(q - t) = <z_t(q), x(q)>.
// grad (n, h, w, OUTPUTS), w (OUTPUTS, 9, CHANNELS), m (n, h, w, 9), gains, x and dx (n, h, w, CHANNELS),
// dm (blocks of channels, n, h, w, 9), to be added up. Blocks: tiles of pixels, 64 (or 32) channels.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = OUTPUTS, COLUMNS = CHANNELS, SLICE_MOST = 64;
constexpr bool MIRRORED = true;
#include "weights.cuh"
#include "taps.cuh"

using M = Similarities<TAPS, 1>;

// Of pixel (row, column) and tap (down, right): the position that sees it there has this gradient.
// Where the pixel's own tap is outside the map nobody sees one, and its gradient is zero.
DEVICE void store_m(float *dm, int tap, float value, int image, int row, int column, Map map) {
  int down = tap / 3 - 1, right = tap % 3 - 1;
  if (!within(row, map.height) || !within(column, map.width)) return;
  if (within(row - down, map.height) && within(column - right, map.width))
    dm[pixel_index(image, row - down, column - right, map) * TAPS + tap] = value;
  if (!within(row + down, map.height) || !within(column + right, map.width))
    dm[pixel_index(image, row, column, map) * TAPS + tap] = 0;
}

KERNEL(THREADS) gradients(const u16 *grad, const u16 *w, const float *m, const Gain *gains,
                          const u16 *x, u16 *dx, float *dm, int images, int height, int width) {
  SHARED
  Map map = {images, height, width};
  int thread = thread_index() % WARPGROUP, lane = thread % 32, row = thread / 32 * 2;
  int column = lane / 4, first = column_index() * WIDTH;
  dm += column_index() * pixel_index(images, 0, 0, map) * TAPS;
  float total[WIDTH / 2], upper_m[3], lower_m[3]; // of taps lane % 4, + 4 and + 8
  u32 own_x[WIDTH / 4]; // x at the pixels and channels of `total`
  each_tile<M::BYTES>(
      memory, w, map,
      [&](Tile tile, int slice, u32 halo, u32 own_m) {
        load_halo<OUTPUTS, SLICE / 8>(halo, grad + slice * SLICE, tile, map, thread);
        if (slice == 0) M::load(own_m, m, tile, map, thread);
      },
      [&](Tile tile, bool there) {
        there = there && within(tile.column + column, map.width);
#pragma unroll
        for (int j = 0; j < WIDTH / 4; j++) {
          int down = tile.row + row + j % 2, channel = first + j / 2 * 8 + lane % 4 * 2;
          int at = pixel_index(tile.image, down, tile.column + column, map) * CHANNELS + channel;
          own_x[j] = there && down < map.height ? *(const u32 *)(x + at) : 0;
        }
#pragma unroll
        for (int j = 0; j < WIDTH / 2; j++) total[j] = 0;
#pragma unroll
        for (int u = 0; u < 3; u++) upper_m[u] = lower_m[u] = 0;
      },
      [&](Tile, auto slice, bool) {
        const float *own_m = (const float *)slice.own;
        each_tap(slice, [&](int tap, float (&sums)[WIDTH / 2]) {
          int down = row + 1 - tap / 3, right = column + 1 - tap % 3;
          float upper = similarity(own_m[M::at(down, right) + tap], gains, tap);
          float lower = similarity(own_m[M::at(down + 1, right) + tap], gains, tap);
          float upper_sum = 0, lower_sum = 0;
#pragma unroll
          for (int j = 0; j < WIDTH / 2; j++) {
            float value = j % 2 ? high(own_x[j / 2]) : low(own_x[j / 2]);
            total[j] += (j / 2 % 2 ? lower : upper) * sums[j];
            (j / 2 % 2 ? lower_sum : upper_sum) += sums[j] * value;
          }
          upper_sum = quad_sum(upper_sum), lower_sum = quad_sum(lower_sum);
          upper_m[tap / 4] += lane % 4 == tap % 4 ? upper_sum : 0;
          lower_m[tap / 4] += lane % 4 == tap % 4 ? lower_sum : 0;
        });
      },
      [&](Tile tile, unsigned char *stage, int group) {
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
          if (lane % 4 != tap % 4) continue;
          int down = tile.row + row, right = tile.column + column;
          store_m(dm, tap, upper_m[tap / 4], tile.image, down, right, map);
          store_m(dm, tap, lower_m[tap / 4], tile.image, down + 1, right, map);
        }
        Stage<WIDTH>::store<CHANNELS>(dx + first, total, stage, tile, map, group, thread);
      });
}
