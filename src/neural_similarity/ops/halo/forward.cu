// y(p) = Σ_t m_t(p) W_t x(p + t): M multiplies each tap's product, which is in registers already.
// x (n, h, w, CHANNELS), w (OUTPUTS, 9, CHANNELS), m (n, h, w, 9), y (n, h, w, OUTPUTS).
// Blocks: tiles of positions, 64 (or all 32) outputs.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = CHANNELS, COLUMNS = OUTPUTS, SLICE_MOST = 64;
constexpr bool MIRRORED = false;
#include "weights.cuh"
#include "taps.cuh"

using M = Similarities<TAPS, 0>;

KERNEL(THREADS) forward(const u16 *x, const u16 *w, const float *m, u16 *y, int images, int height,
                        int width) {
  SHARED
  Map map = {images, height, width};
  int thread = thread_index() % WARPGROUP, lane = thread % 32, row = thread / 32 * 2;
  float total[WIDTH / 2];
  each_tile<M::BYTES>(
      memory, w, map,
      [&](Tile tile, int slice, u32 halo, u32 own_m) {
        load_halo<CHANNELS, SLICE / 8>(halo, x + slice * SLICE, tile, map, thread);
        if (slice == 0) M::load(own_m, m, tile, map, thread);
      },
      [&](Tile, bool) {
#pragma unroll
        for (int j = 0; j < WIDTH / 2; j++) total[j] = 0;
      },
      [&](Tile, auto slice, bool) {
        const float *own_m = (const float *)slice.own;
        each_tap(slice, [&](int tap, float (&sums)[WIDTH / 2]) {
          float upper = own_m[M::at(row, lane / 4) + tap];
          float lower = own_m[M::at(row + 1, lane / 4) + tap];
#pragma unroll
          for (int j = 0; j < WIDTH / 2; j++) total[j] += (j / 2 % 2 ? lower : upper) * sums[j];
        });
      },
      [&](Tile tile, unsigned char *stage, int group) {
        u16 *columns = y + column_index() * WIDTH;
        Stage<WIDTH>::store<OUTPUTS>(columns, total, stage, tile, map, group, thread);
      });
}
