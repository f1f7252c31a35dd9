// The predictor's hidden map h = max(0, f W * x) and the norms √(‖X‖² + ε) of its patches X, of which
// f is FACTOR over the norm. x (n, h, w, CHANNELS), w (OUTPUTS, 9, CHANNELS), h (n, h, w, OUTPUTS),
// norms (n, h, w). Blocks: tiles of positions, 64 (or all 32) hidden channels.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = CHANNELS, COLUMNS = OUTPUTS, SLICE_MOST = 64;
constexpr bool MIRRORED = false;
#include "weights.cuh"
#include "taps.cuh"

constexpr int PIXELS = SIDE * SIDE;

DEVICE float squares(u32 pair) { return low(pair) * low(pair) + high(pair) * high(pair); }
// The squares of a pixel, over the channels of a slice.
DEVICE float energy(const unsigned char *pixel) {
  float sum = 0;
#pragma unroll
  for (int chunk = 0; chunk < SLICE / 8; chunk++) {
    Piece piece = *(const Piece *)(pixel + chunk * CHUNK);
    sum += squares(piece.a) + squares(piece.b) + squares(piece.c) + squares(piece.d);
  }
  return sum;
}
// The norm of the patch around a position of the tile.
DEVICE float patch_norm(const float *energies, int row, int column, float eps) {
  float sum = eps;
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
    sum += energies[(row + tap / 3) * SIDE + column + tap % 3];
  return sqrtf(sum);
}

KERNEL(THREADS) hidden(const u16 *x, const u16 *w, u16 *h, float *norms, int images, int height,
                       int width, float eps, float factor) {
  SHARED
  Map map = {images, height, width};
  int thread = thread_index() % WARPGROUP, lane = thread % 32, row = thread / 32 * 2;
  float total[WIDTH / 2], upper_norm, lower_norm;
  each_tile<PIXELS * 4>(
      memory, w, map,
      [&](Tile tile, int slice, u32 halo, u32) {
        load_halo<CHANNELS, SLICE / 8>(halo, x + slice * SLICE, tile, map, thread);
      },
      [&](Tile, bool) {
#pragma unroll
        for (int j = 0; j < WIDTH / 2; j++) total[j] = 0;
      },
      [&](Tile, auto slice, bool) {
        float *energies = (float *)slice.own;
        if (thread < PIXELS)
          energies[thread] = energy(slice.pixels + thread * PIECE) +
                             (slice.index > 0 ? energies[thread] : 0);
        each_tap(slice, [&](int, float (&sums)[WIDTH / 2]) {
#pragma unroll
          for (int j = 0; j < WIDTH / 2; j++) total[j] += sums[j];
        });
        if (slice.index < SLICES - 1) return;
        group_sync(thread_index() / WARPGROUP); // all energies are there
        upper_norm = patch_norm(energies, row, lane / 4, eps);
        lower_norm = patch_norm(energies, row + 1, lane / 4, eps);
      },
      [&](Tile tile, unsigned char *stage, int group) {
        int down = tile.row + row, right = tile.column + lane / 4;
        if (column_index() == 0 && lane % 4 < 2 && down + lane % 4 < map.height && right < map.width)
          norms[pixel_index(tile.image, down + lane % 4, right, map)] =
              lane % 4 ? lower_norm : upper_norm;
        float upper = factor / upper_norm, lower = factor / lower_norm;
#pragma unroll
        for (int j = 0; j < WIDTH / 2; j++) {
          float value = total[j] * (j / 2 % 2 ? lower : upper);
          total[j] = value < 0 ? 0 : value; // NaN stays
        }
        u16 *columns = h + column_index() * WIDTH;
        Stage<WIDTH>::store<OUTPUTS>(columns, total, stage, tile, map, group, thread);
      });
}
