// Gradient of a full M: dm_st(p) = <z_s(p), x(p + t)>, z_s(p) = W_sᵀ g(p).
// grad (n, h, w, OUTPUTS), w (OUTPUTS, 9, CHANNELS), x (n, h, w, CHANNELS),
// dm (blocks of channels, n, h, w, 81), to be added up. Blocks: tiles of positions, 64 (or 32) channels.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = OUTPUTS, COLUMNS = CHANNELS, SLICE_MOST = 64;
constexpr bool MIRRORED = true;
#include "weights.cuh"
#include "taps.cuh"

constexpr int CENTER = (SIDE + 1) * PIECE; // of a halo: g's other pixels are loaded in vain

// <z_s(p), x(p + t)> of two rows of positions for a row of kernel taps and every t, which thread
// t % 4 of four keeps.
struct Dots {
  float upper[3][3], lower[3][3]; // [s % 3][t / 4]

  DEVICE void compute(float (&z)[3][WIDTH / 2], const unsigned char *halo, int row, int lane) {
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
      int pixel = (row + t / 3) * SIDE + lane / 4 + t % 3;
      u32 seen[WIDTH / 4];
#pragma unroll
      for (int j = 0; j < WIDTH / 4; j++)
        seen[j] = *(const u32 *)(halo + j / 2 * CHUNK + (pixel + j % 2 * SIDE) * PIECE + lane % 4 * 4);
#pragma unroll
      for (int u = 0; u < 3; u++) {
        float sums[2] = {};
#pragma unroll
        for (int j = 0; j < WIDTH / 2; j++)
          sums[j / 2 % 2] += z[u][j] * (j % 2 ? high(seen[j / 2]) : low(seen[j / 2]));
        float above = quad_sum(sums[0]), below = quad_sum(sums[1]);
        if (lane % 4 == t % 4) upper[u][t / 4] = above, lower[u][t / 4] = below;
      }
    }
  }
  // To the 27 numbers of a position: those of its row of kernel taps.
  static DEVICE void store(float (&kept)[3][3], float *to, bool adds, int lane) {
#pragma unroll
    for (int u = 0; u < 3; u++)
#pragma unroll
      for (int i = 0; i < 3; i++) {
        int t = i * 4 + lane % 4;
        if (t < TAPS) to[u * TAPS + t] = kept[u][i] + (adds ? to[u * TAPS + t] : 0);
      }
  }
};

KERNEL(THREADS) full_m_gradient(const u16 *grad, const u16 *w, const u16 *x, float *dm, int images,
                                int height, int width) {
  SHARED
  Map map = {images, height, width};
  int thread = thread_index() % WARPGROUP, lane = thread % 32, row = thread / 32 * 2;
  dm += column_index() * pixel_index(images, 0, 0, map) * TAPS * TAPS;
  each_tile<WIDTH / 8 * CHUNK>(
      memory, w, map,
      [&](Tile tile, int slice, u32 halo, u32 own) {
        load_halo<OUTPUTS, SLICE / 8>(halo, grad + slice * SLICE, tile, map, thread);
        const u16 *columns = x + column_index() * WIDTH;
        if (slice == 0) load_halo<CHANNELS, WIDTH / 8>(own, columns, tile, map, thread);
      },
      [&](Tile, bool) {},
      [&](Tile tile, auto slice, bool there) {
        int down = tile.row + row, right = tile.column + lane / 4;
        there = there && right < map.width;
        float *to = dm + pixel_index(tile.image, down, right, map) * TAPS * TAPS;
#pragma unroll 1
        for (int taps = 0; taps < 3; taps++, to += 3 * TAPS) {
          if (taps > 0) slice.before_row(taps);
          float z[3][WIDTH / 2];
          product_fence();
#pragma unroll
          for (int u = 0; u < 3; u++)
#pragma unroll
            for (int k = 0; k < SLICE / 16; k++)
              product<true>(z[u], moved(slice.halo, CENTER + 2 * k * CHUNK),
                            moved(slice.kernel, (3 * taps + u) * TAP + k * KERNEL_STEP), k > 0);
          product_commit();
          product_wait<0>();
#pragma unroll
          for (int u = 0; u < 3; u++) settle(z[u]);
          Dots dots;
          dots.compute(z, slice.own, row, lane);
          if (there && down < map.height) Dots::store(dots.upper, to, slice.index > 0, lane);
          if (there && down + 1 < map.height)
            Dots::store(dots.lower, to + map.width * TAPS * TAPS, slice.index > 0, lane);
        }
      },
      [&](Tile, unsigned char *, int) {});
}
