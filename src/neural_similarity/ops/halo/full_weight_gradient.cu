// Gradient of W for a full M: dW_s = Σ_p g(p) u_s(p)ᵀ, u as in mixing.cuh; positions are k.
// grad (n, h, w, OUTPUTS), x (n, h, w, CHANNELS), m (n, h, w, 81), parts (blocks, OUTPUTS, 9, CHANNELS)
// float32, to be added up. Blocks: shares of the tiles; 64 (or 32) outputs and 32 channels.
//
// Two warpgroups, UNIT channels each, share a tile:
//
//     | x's halo | g | M |   twice,   | mixed |   per warpgroup
//
// B is what is mixed, read by columns. A = gᵀ, transposed by ldmatrix; with 32 outputs its lower half
// repeats the upper one and is not stored.
#include "device.cuh"
#include "tile.cuh"
#include "mixing.cuh"
constexpr int HEIGHT = OUTPUTS < 64 ? OUTPUTS : 64, OUTGOING = HEIGHT / 8, WIDTH = GROUPS * UNIT;
constexpr int HALO = WIDTH / 8 * CHUNK, GRAD = OUTGOING * TILE_CHUNK;
using M = Similarities<TAPS * TAPS, 0>;
constexpr int BUFFER = HALO + GRAD + M::BYTES;

KERNEL(GROUPS * WARPGROUP) full_weight_gradient(const u16 *grad, const u16 *x, const float *m,
                                                float *parts, int images, int height, int width) {
  SHARED
  Map map = {images, height, width};
  int group = warp_uniform(thread_index() / WARPGROUP), thread = thread_index() % WARPGROUP;
  int warp = thread / 32, lane = thread % 32, tiles = tile_count(map), buffer = 0;
  int output = column_index() / (CHANNELS / WIDTH) * HEIGHT;
  int channel = column_index() % (CHANNELS / WIDTH) * WIDTH;
  u32 base = shared_address(memory);
  unsigned char *mixed = memory + 2 * BUFFER + group * MIXED;
  u64 columns = descriptor(shared_address(mixed), 8 * PIECE, MIXED_CHUNK);
  auto fetch = [&](int i, u32 to) {
    if (i < tiles) {
      Tile tile = tile_at(i, map);
      if (group == 0) {
        load_halo<CHANNELS, WIDTH / 8>(to, x + channel, tile, map, thread);
        load_tile<OUTPUTS, OUTGOING>(to + HALO, grad + output, tile, map, thread);
      } else M::load(to + HALO + GRAD, m, tile, map, thread);
    }
    copy_commit();
  };
  float sums[TAPS][UNIT / 2];
#pragma unroll
  for (int s = 0; s < TAPS; s++)
#pragma unroll
    for (int j = 0; j < UNIT / 2; j++) sums[s][j] = 0;
  fetch(block_index(), base);
#pragma unroll 1
  for (int i = block_index(); i < tiles; i += block_count(), buffer ^= 1) {
    copy_wait<0>();
    proxy_fence();
    block_sync(); // this tile is there, and all have used the last one
    fetch(i + block_count(), base + (buffer ^ 1) * BUFFER);
    const unsigned char *halo = memory + buffer * BUFFER;
    mix<M, false>(mixed, halo + group * UNIT_HALO, (const float *)(halo + HALO + GRAD), thread);
    proxy_fence();
    group_sync(group);
    u32 own = base + buffer * BUFFER + HALO + warp * 2 % OUTGOING * TILE_CHUNK;
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) {
      u32 left[4], rows = own + k * 16 * PIECE, next = rows + 8 * PIECE;
      load_transposed(left, rows, rows + TILE_CHUNK, next, next + TILE_CHUNK);
      product_fence();
#pragma unroll
      for (int s = 0; s < TAPS; s++)
        product(sums[s], left, moved(columns, s * MIXED_TAP + k * 16 * PIECE));
      product_commit();
    }
    product_wait<0>();
#pragma unroll
    for (int s = 0; s < TAPS; s++) settle(sums[s]);
  }
  if (warp * 16 >= HEIGHT) return;
  int filter = output + warp * 16 + lane / 4;
  float *to = parts + (block_index() * OUTPUTS + filter) * TAPS * CHANNELS;
  to += channel + group * UNIT + lane % 4 * 2;
#pragma unroll
  for (int s = 0; s < TAPS; s++)
#pragma unroll
    for (int j = 0; j < UNIT / 2; j += 2)
      *(Pair *)(to + (s + j / 2 % 2 * 8 * TAPS) * CHANNELS + j / 4 * 8) = {sums[s][j], sums[s][j + 1]};
}
