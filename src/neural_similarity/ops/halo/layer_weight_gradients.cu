// Gradients of a layer's W, from grad (n, h, w, OUTPUTS), and of its predictor's W₁, from dz (n, h, w,
// HIDDEN), in parts: see weight_tiles.cuh. x (n, h, w, CHANNELS), HIDDEN is 32 or 64.
// Blocks: shares of the tiles; 64 (or 32) outputs at a time, then the hidden channels, each with 64 (or
// 32) channels at a time. The first `skipped` of these columns have no blocks.
#include "device.cuh"
#include "tile.cuh"
#include "weight_tiles.cuh"

KERNEL(3 * WARPGROUP) layer_weight_gradients(const u16 *grad, const u16 *dz, const u16 *x, const float *r,
                                             const Gain *gains, float *parts, float *first_parts,
                                             int images, int height, int width, int skipped) {
  SHARED
  using Outer = WeightParts<OUTPUTS, true>;
  Map map = {images, height, width};
  int column = column_index() + skipped, row = column / (CHANNELS / WIDTH);
  int channel = column % (CHANNELS / WIDTH) * WIDTH;
  if (row < Outer::COLUMNS)
    Outer::store(memory, grad, x, r, gains, parts, map, row * Outer::HEIGHT, channel);
  else WeightParts<HIDDEN, false>::store(memory, dz, x, nullptr, nullptr, first_parts, map, 0, channel);
}
