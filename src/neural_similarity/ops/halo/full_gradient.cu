// Gradient of x for a full M: dx(q) = Σ_s W_sᵀ u_s(q), u_s(q) = Σ_t M_st(q - t) g(q - t).
// grad (n, h, w, OUTPUTS), w (OUTPUTS, 9, CHANNELS), m (n, h, w, 81), dx (n, h, w, CHANNELS).
// Blocks: tiles of pixels, 64 (or all 32) channels.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = OUTPUTS, COLUMNS = CHANNELS, SLICE_MOST = 16;
constexpr bool MIRRORED = true;
#include "weights.cuh"
#include "mixing.cuh"
#include "full_tiles.cuh"

KERNEL(THREADS) full_gradient(const u16 *grad, const u16 *w, const float *m, u16 *dx, int images,
                  int height, int width) {
  SHARED
  Map map = {images, height, width};
  store_products<Similarities<TAPS * TAPS, 1>>(grad, w, m, dx, map, memory);
}
