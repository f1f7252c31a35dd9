// A diagonal M from the hidden map, and its operator: r = W₂ * h + b₂, m = 1 + g r,
// y(p) = Σ_t m_t(p) W_t x(p + t) + b. x (n, h, w, CHANNELS), w (OUTPUTS, 9, CHANNELS), h (n, h, w, HIDDEN),
// w2 (9, 9, HIDDEN), b2 (9) and b (OUTPUTS) or null, g (9), y (n, h, w, OUTPUTS), r (n, h, w, 9) float32.
// HIDDEN is 32 or 64. Blocks: tiles of positions, 64 (or all 32) outputs.
//
// The tile's own memory is h's halo, and M, computed when the tile's first slice is there. W₂ lies
// behind all groups' memory: last.cuh.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = CHANNELS, COLUMNS = OUTPUTS, SLICE_MOST = 64;
constexpr bool MIRRORED = false;
#include "weights.cuh"
#include "taps.cuh"
#include "last.cuh"
static_assert(HIDDEN <= 64, "all of W2 lies in shared memory");

using M = Similarities<TAPS, 0>;
constexpr int HIDDEN_HALO = HIDDEN / 8 * CHUNK, OWN = HIDDEN_HALO + M::BYTES;

KERNEL(THREADS) predicted(const u16 *x, const u16 *w, const u16 *h, const u16 *w2, const u16 *b2,
                          const Gain *gains, const u16 *b, u16 *y, float *r, int images, int height,
                          int width) {
  SHARED
  Map map = {images, height, width};
  int group = warp_uniform(thread_index() / WARPGROUP), thread = thread_index() % WARPGROUP;
  int lane = thread % 32, row = thread / 32 * 2, first = column_index() * WIDTH;
  u32 last = shared_address(memory) + WEIGHTS + GROUPS * 2 * (BUFFER + OWN);
  u64 last_kernel = descriptor(last, LAST_CHUNK, 8 * PIECE);
  load_last(last, w2);
  float own_bias[3]; // of taps 2 · (lane % 4), the next one, and 8
#pragma unroll
  for (int u = 0; u < 3; u++) own_bias[u] = b2 ? low(b2[u < 2 ? lane % 4 * 2 + u : 8]) : 0;
  // M of a tile from h's halo, and r.
  auto store_m = [&](Tile tile, const unsigned char *halo, float *own_m, bool there) {
    float raw[LAST_FILTERS / 2];
    u64 hidden = descriptor(shared_address(halo), CHUNK, ROW_OF_PIXELS);
    product_fence();
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
      for (int k = 0; k < HIDDEN / 16; k++)
        product<false>(raw, moved(hidden, (tap / 3 * SIDE + tap % 3) * PIECE + 2 * k * CHUNK),
                       moved(last_kernel, tap * LAST_TAP + 2 * k * LAST_CHUNK), tap + k > 0);
    product_commit();
    product_wait<0>();
    settle(raw);
    int right = tile.column + lane / 4;
#pragma unroll
    for (int j = 0; j < LAST_FILTERS / 2; j++) {
      int tap = j / 4 * 8 + lane % 4 * 2 + j % 2, down = row + j / 2 % 2;
      if (tap >= TAPS) continue;
      float value = raw[j] + own_bias[j < 4 ? j % 2 : 2];
      own_m[M::at(down, lane / 4) + tap] = similarity(value, gains, tap);
      if (there && column_index() == 0 && tile.row + down < map.height && right < map.width)
        r[pixel_index(tile.image, tile.row + down, right, map) * TAPS + tap] = value;
    }
    group_sync(group); // M is there
  };
  float total[WIDTH / 2];
  each_tile<OWN>(
      memory, w, map,
      [&](Tile tile, int slice, u32 halo, u32 own) {
        load_halo<CHANNELS, SLICE / 8>(halo, x + slice * SLICE, tile, map, thread);
        if (slice == 0) load_halo<HIDDEN, HIDDEN / 8>(own, h, tile, map, thread);
      },
      [&](Tile, bool) {
#pragma unroll
        for (int j = 0; j < WIDTH / 2; j += 4) {
          u32 pair = b ? *(const u32 *)(b + first + j * 2 + lane % 4 * 2) : 0;
          total[j] = total[j + 2] = low(pair), total[j + 1] = total[j + 3] = high(pair);
        }
      },
      [&](Tile tile, auto slice, bool there) {
        float *own_m = (float *)(slice.own + HIDDEN_HALO);
        if (slice.index == 0) store_m(tile, slice.own, own_m, there);
        each_tap(slice, [&](int tap, float (&sums)[WIDTH / 2]) {
          float upper = own_m[M::at(row, lane / 4) + tap];
          float lower = own_m[M::at(row + 1, lane / 4) + tap];
#pragma unroll
          for (int j = 0; j < WIDTH / 2; j++) total[j] += (j / 2 % 2 ? lower : upper) * sums[j];
        });
      },
      [&](Tile tile, unsigned char *stage, int) {
        Stage<WIDTH>::store<OUTPUTS>(y + first, total, stage, tile, map, group, thread);
      });
}
