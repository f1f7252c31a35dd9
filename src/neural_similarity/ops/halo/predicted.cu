// A diagonal M from the hidden map, and its operator: r = W₂ * h + b₂, m = 1 + g r,
// y(p) = Σ_t m_t(p) W_t x(p + t). x (n, h, w, CHANNELS), w (OUTPUTS, 9, CHANNELS), h (n, h, w, HIDDEN),
// w2 (9, 9, HIDDEN), b2 (9), g (9), y (n, h, w, OUTPUTS), r (n, h, w, 9). CHANNELS and HIDDEN are 32
// or 64. Blocks: tiles of positions, 64 (or all 32) outputs.
//
// The tile's own memory is h's halo and M; W₂ lies behind all groups' memory as in weights.cuh, of 16
// filters, the last 7 of them zero.
#include "device.cuh"
#include "tile.cuh"
constexpr int DEPTH = CHANNELS, COLUMNS = OUTPUTS, SLICE_MOST = 64;
constexpr bool MIRRORED = false;
#include "weights.cuh"
#include "taps.cuh"
static_assert(!STREAMED && HIDDEN <= 64, "all weights lie in shared memory");

using M = Similarities<TAPS, 0>;
constexpr int HIDDEN_HALO = HIDDEN / 8 * CHUNK, OWN = HIDDEN_HALO + M::BYTES;
constexpr int LAST_FILTERS = 16, LAST_CHUNK = LAST_FILTERS * PIECE, LAST_TAP = HIDDEN / 8 * LAST_CHUNK;

DEVICE void load_last(u32 to, const u16 *w2) {
  constexpr int CHUNKS = HIDDEN / 8;
  for (int k = thread_index(); k < TAPS * LAST_FILTERS * CHUNKS; k += THREADS) {
    int chunk = k % CHUNKS, tap = k / CHUNKS % TAPS, filter = k / CHUNKS / TAPS;
    copy<PIECE>(to + tap * LAST_TAP + chunk * LAST_CHUNK + filter * PIECE,
                w2 + (filter < TAPS ? (filter * TAPS + tap) * HIDDEN + chunk * 8 : 0), filter < TAPS);
  }
}

KERNEL(THREADS) predicted(const u16 *x, const u16 *w, const u16 *h, const u16 *w2, const float *b2,
                          const float *g, u16 *y, u16 *r, int images, int height, int width) {
  SHARED
  Map map = {images, height, width};
  int group = warp_uniform(thread_index() / WARPGROUP), thread = thread_index() % WARPGROUP;
  int lane = thread % 32, row = thread / 32 * 2;
  u32 last = shared_address(memory) + WEIGHTS + GROUPS * 2 * (BUFFER + OWN);
  u64 last_kernel = descriptor(last, LAST_CHUNK, 8 * PIECE);
  load_last(last, w2);
  float total[WIDTH / 2];
  each_tile<OWN>(
      memory, w, map,
      [&](Tile tile, int, u32 halo, u32 own) {
        load_halo<CHANNELS, SLICE / 8>(halo, x, tile, map, thread);
        load_halo<HIDDEN, HIDDEN / 8>(own, h, tile, map, thread);
      },
      [&](Tile, bool) {
#pragma unroll
        for (int j = 0; j < WIDTH / 2; j++) total[j] = 0;
      },
      [&](Tile tile, auto slice, bool) {
        float *own_m = (float *)(slice.own + HIDDEN_HALO), raw[LAST_FILTERS / 2];
        u64 hidden = descriptor(shared_address(slice.own), CHUNK, ROW_OF_PIXELS);
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
          u32 value = pack(raw[j] + b2[tap], 0); // backward computes M from what is stored
          own_m[M::at(down, lane / 4) + tap] = 1 + g[tap] * low(value);
          if (column_index() == 0 && tile.row + down < map.height && right < map.width)
            r[pixel_index(tile.image, tile.row + down, right, map) * TAPS + tap] = (u16)value;
        }
        group_sync(group); // M is there
        each_tap(slice, [&](int tap, float (&sums)[WIDTH / 2]) {
          float upper = own_m[M::at(row, lane / 4) + tap];
          float lower = own_m[M::at(row + 1, lane / 4) + tap];
#pragma unroll
          for (int j = 0; j < WIDTH / 2; j++) total[j] += (j / 2 % 2 ? lower : upper) * sums[j];
        });
      },
      [&](Tile tile, unsigned char *stage, int) {
        u16 *columns = y + column_index() * WIDTH;
        Stage<WIDTH>::store<OUTPUTS>(columns, total, stage, tile, map, group, thread);
      });
}
