// y(p) = Σ_s W_s u_s(p), u_s(p) = Σ_t M_st(p) x(p + t).
// x (n, h, w, CHANNELS), w (OUTPUTS, 9, CHANNELS), m (n, h, w, 81), y (n, h, w, OUTPUTS).
// Blocks: tiles of positions, 64 (or all 32) outputs.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = CHANNELS, COLUMNS = OUTPUTS, SLICE_MOST = 16;
constexpr bool MIRRORED = false;
#include "weights.cuh"
#include "mixing.cuh"
#include "full_tiles.cuh"

KERNEL(THREADS) full_forward(const u16 *x, const u16 *w, const float *m, u16 *y, int images,
                  int height, int width) {
  SHARED
  Map map = {images, height, width};
  store_products<Similarities<TAPS * TAPS, 0>>(x, w, m, y, map, memory);
}
