// Backward from the gradient dm of a layer's M to its predictor's hidden map h = max(0, z), z = f W₁ * x:
// dr = g dm, rounded; dh(q) = Σ_t W₂_tᵀ dr(q - t); dz = f dh where h > 0, of which f is FACTOR over the
// norm; e = -<dh, h> / norm², which gives x, times x, what norms add to its gradient; and parts of
// the gradients of weights, dW₂_t = Σ_q dr(q - t) h(q)ᵀ, db₂ = Σ dr and dg = Σ dm r.
// dm and r (n, h, w, 9), norms and e (n, h, w) float32, w2 (9, 9, HIDDEN), h and dz (n, h, w, HIDDEN),
// parts (blocks, 81 HIDDEN + 18) float32, to be added up. A warpgroup takes a tile:
//
//     | W₂ | per warpgroup: h, then dz | dm | twice, | dr's halo of 16 channels, the last 7 zero |
#include "device.cuh"
#include "tile.cuh"
#include "last.cuh"
using Ring = Similarities<TAPS, 1>;
constexpr int CHUNKS = HIDDEN / 8, LAST = TAPS * LAST_TAP;
constexpr int MAPS = CHUNKS * TILE_CHUNK > Stage<HIDDEN>::BYTES ? CHUNKS * TILE_CHUNK : Stage<HIDDEN>::BYTES;
constexpr int BUFFER = MAPS + Ring::BYTES, OWN = 2 * BUFFER + LAST_FILTERS / 8 * CHUNK;
constexpr int SHARE = WARPGROUP / TAPS; // threads that share a tap's sums
constexpr int PART = TAPS * TAPS * HIDDEN + 2 * TAPS;
static_assert(PART * 4 < LAST + 2 * BUFFER, "a block's sums end before a halo");

DEVICE float entry_gradient(const float *ring, int row, int column, int tap, const Gain *gains) {
  return ring[Ring::at(row, column) + tap] * gain_at(gains, tap);
}
// A thread's pixel of dr's halo.
DEVICE void spread_gradient(unsigned char *halo, const float *ring, const Gain *gains, int pixel) {
  float values[LAST_FILTERS] = {};
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
    values[tap] = entry_gradient(ring, pixel / SIDE - 1, pixel % SIDE - 1, tap, gains);
#pragma unroll
  for (int chunk = 0; chunk < LAST_FILTERS / 8; chunk++) {
    const float *own = values + chunk * 8;
    *(Piece *)(halo + chunk * CHUNK + pixel * PIECE) = {pack(own[0], own[1]), pack(own[2], own[3]),
                                                        pack(own[4], own[5]), pack(own[6], own[7])};
  }
}

KERNEL(GROUPS * WARPGROUP) hidden_gradient(const float *dm, const float *r, const u16 *w2,
                                           const Gain *gains, const u16 *h, const float *norms, u16 *dz,
                                           float *e, float *parts, int images, int height, int width,
                                           float factor) {
  SHARED
  Map map = {images, height, width};
  int group = warp_uniform(thread_index() / WARPGROUP), thread = thread_index() % WARPGROUP;
  int warp = thread / 32, lane = thread % 32, row = warp * 2, column = lane / 4;
  int tiles = tile_count(map), step = block_count() * GROUPS, buffer = 0;
  int first = block_index() * GROUPS + group, own_tap = thread % TAPS;
  unsigned char *own = memory + LAST + group * OWN, *halo = own + 2 * BUFFER;
  u64 kernel = descriptor(shared_address(memory), 8 * PIECE, LAST_CHUNK);
  u64 by_rows = descriptor(shared_address(halo), CHUNK, ROW_OF_PIXELS);
  u64 by_columns = descriptor(shared_address(halo), ROW_OF_PIXELS, CHUNK);
  auto fetch = [&](int i, int buffer) {
    if (i < tiles) {
      u32 to = shared_address(own) + buffer * BUFFER;
      Tile tile = tile_at(i, map);
      load_tile<HIDDEN, CHUNKS>(to, h, tile, map, thread);
      Ring::load(to + MAPS, dm, tile, map, thread);
    }
    copy_commit();
  };
  float sums[TAPS][LAST_FILTERS / 2], total[HIDDEN / 2], of_bias = 0, of_gain = 0;
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int j = 0; j < LAST_FILTERS / 2; j++) sums[tap][j] = 0;
  load_last(shared_address(memory), w2);
  fetch(first, 0);
  copy_wait<0>();
  proxy_fence();
  block_sync(); // W₂ is there
#pragma unroll 1
  for (int i = first; i < tiles; i += step, buffer ^= 1) {
    copy_wait<0>();
    group_sync(group); // this tile is there, and all have used the last one
    fetch(i + step, buffer ^ 1);
    Tile tile = tile_at(i, map);
    unsigned char *at = own + buffer * BUFFER;
    const float *ring = (const float *)(at + MAPS);
    if (thread < SIDE * SIDE) spread_gradient(halo, ring, gains, thread);
    proxy_fence();
    group_sync(group); // dr is there
    product_fence();
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
      int seen = TAPS - 1 - tap;
      product<true>(total, moved(by_rows, (seen / 3 * SIDE + seen % 3) * PIECE),
                    moved(kernel, tap * LAST_TAP), tap > 0);
    }
    product_commit();
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) { // two rows of the tile
      u32 rows = shared_address(at) + warp * 2 % CHUNKS * TILE_CHUNK + k * 16 * PIECE, left[4];
      load_transposed(left, rows, rows + TILE_CHUNK, rows + 8 * PIECE, rows + 8 * PIECE + TILE_CHUNK);
      product_fence();
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++) {
        int seen = TAPS - 1 - tap, pixel = (seen / 3 + 2 * k) * SIDE + seen % 3;
        product(sums[tap], left, moved(by_columns, pixel * PIECE));
      }
      product_commit();
      product_wait<1>();
    }
    for (int p = thread / TAPS; p < ROWS && thread < SHARE * TAPS; p += SHARE) {
      int down = tile.row + p / TILE, right = tile.column + p % TILE;
      if (down >= map.height || right >= map.width) continue;
      float value = ring[Ring::at(p / TILE, p % TILE) + own_tap];
      of_bias += low(pack(entry_gradient(ring, p / TILE, p % TILE, own_tap, gains), 0));
      of_gain += value * r[pixel_index(tile.image, down, right, map) * TAPS + own_tap];
    }
    int down = tile.row + row, right = tile.column + column;
    int upper = pixel_index(tile.image, down, right, map), lower = upper + map.width;
    bool upper_there = down < map.height && right < map.width;
    bool lower_there = down + 1 < map.height && right < map.width;
    float upper_norm = upper_there ? norms[upper] : 1, lower_norm = lower_there ? norms[lower] : 1;
    float upper_sum = 0, lower_sum = 0;
    product_wait<0>();
    settle(total);
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) settle(sums[tap]);
#pragma unroll
    for (int j = 0; j < HIDDEN / 2; j++) {
      int position = (row + j / 2 % 2) * TILE + column, pair = lane % 4 * 4;
      u32 values = *(const u32 *)(at + j / 4 * TILE_CHUNK + position * PIECE + pair);
      float value = j % 2 ? high(values) : low(values), of_h = value <= 0 ? 0 : total[j];
      (j / 2 % 2 ? lower_sum : upper_sum) += of_h * value;
      total[j] = of_h * (factor / (j / 2 % 2 ? lower_norm : upper_norm));
    }
    upper_sum = quad_sum(upper_sum), lower_sum = quad_sum(lower_sum);
    if (lane % 4 == 0 && upper_there) e[upper] = -upper_sum / (upper_norm * upper_norm);
    if (lane % 4 == 1 && lower_there) e[lower] = -lower_sum / (lower_norm * lower_norm);
    Stage<HIDDEN>::store<HIDDEN>(dz, total, at, tile, map, group, thread);
  }
  copy_wait<0>();
  block_sync(); // all have used W₂ and their tiles: one warpgroup after another adds its sums
  float *block_sums = (float *)memory;
  Pair *shares = (Pair *)halo;
  if (thread < SHARE * TAPS) shares[thread] = {of_bias, of_gain};
  group_sync(group);
  for (int turn = 0; turn < GROUPS; turn++) {
    auto add = [&](int i, float value) { block_sums[i] = value + (turn ? block_sums[i] : 0); };
    if (turn == group && warp * 16 < HIDDEN)
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int j = 0; j < LAST_FILTERS / 2; j++) {
          int filter = j / 4 * 8 + lane % 4 * 2 + j % 2, channel = warp * 16 + lane / 4 + j / 2 % 2 * 8;
          if (filter < TAPS) add((filter * TAPS + tap) * HIDDEN + channel, sums[tap][j]);
        }
    if (turn == group && thread < TAPS) {
      Pair all = {0, 0};
      for (int share = thread; share < SHARE * TAPS; share += TAPS)
        all = {all.a + shares[share].a, all.b + shares[share].b};
      add(TAPS * TAPS * HIDDEN + thread, all.a);
      add(TAPS * TAPS * HIDDEN + TAPS + thread, all.b);
    }
    block_sync();
  }
  for (int i = thread_index(); i < PART; i += GROUPS * WARPGROUP)
    parts[block_index() * PART + i] = block_sums[i];
}
