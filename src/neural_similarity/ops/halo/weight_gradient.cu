// Gradient of W for a diagonal M, in parts (blocks, OUTPUTS, 9, CHANNELS): see weight_tiles.cuh.
// Blocks: shares of the tiles; 64 (or 32) outputs and as many channels.
#include "device.cuh"
#include "tile.cuh"
#include "weight_tiles.cuh"

KERNEL(3 * WARPGROUP) weight_gradient(const u16 *grad, const u16 *x, const float *m, float *parts,
                                      int images, int height, int width) {
  SHARED
  using Parts = WeightParts<OUTPUTS, true>;
  int output = column_index() / (CHANNELS / WIDTH) * Parts::HEIGHT;
  int channel = column_index() % (CHANNELS / WIDTH) * WIDTH;
  Parts::store(memory, grad, x, m, nullptr, parts, {images, height, width}, output, channel);
}
