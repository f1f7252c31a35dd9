// Parts of the gradient of W: Σ_p (m_t g)(p) x(p + t)ᵀ, positions are k of the products; or, unless
// SCALED, Σ_p g(p) x(p + t)ᵀ. g (n, h, w, FILTERS), x (n, h, w, CHANNELS), m (n, h, w, 9), parts (blocks,
// FILTERS, 9, CHANNELS) float32, to be added up. A block takes a share of the tiles, 64 (or 32)
// filters and as many channels.
//
// Three warpgroups, a row of taps each, share a tile:
//
//     | x's halo | g: 8 positions × 8, by chunks of 8 filters, 65 pieces apart | M |   twice
//
// B is the halo, read by columns. A = (m_t g)ᵀ, transposed by ldmatrix and multiplied in registers;
// with 32 filters its lower half repeats the upper one and is not stored.
constexpr int WIDTH = CHANNELS < 64 ? CHANNELS : 64, HALO = WIDTH / 8 * CHUNK;

template <int FILTERS, bool SCALED> struct WeightParts {
  using M = Similarities<TAPS, 0>;
  static constexpr int HEIGHT = FILTERS < 64 ? FILTERS : 64, COLUMNS = FILTERS / HEIGHT;
  static constexpr int OUTGOING = HEIGHT / 8, GRAD = OUTGOING * TILE_CHUNK;
  static constexpr int BUFFER = HALO + GRAD + (SCALED ? M::BYTES : 0);

  static DEVICE void store(unsigned char *memory, const u16 *grad, const u16 *x, const float *m,
                           const Gain *gains, float *parts, Map map, int output, int channel) {
    int group = warp_uniform(thread_index() / WARPGROUP), thread = thread_index() % WARPGROUP;
    int warp = thread / 32, lane = thread % 32, tiles = tile_count(map), buffer = 0;
    u32 base = shared_address(memory);
    auto fetch = [&](int i, u32 to) {
      if (i < tiles) {
        Tile tile = tile_at(i, map);
        if (group == 0) load_halo<CHANNELS, WIDTH / 8>(to, x + channel, tile, map, thread);
        if (group == 1) load_tile<FILTERS, OUTGOING>(to + HALO, grad + output, tile, map, thread);
        if (SCALED && group == 2) M::load(to + HALO + GRAD, m, tile, map, thread);
      }
      copy_commit();
    };
    float sums[3][WIDTH / 2];
#pragma unroll
    for (int u = 0; u < 3; u++)
#pragma unroll
      for (int j = 0; j < WIDTH / 2; j++) sums[u][j] = 0;
    fetch(block_index(), base);
    for (int i = block_index(); i < tiles; i += block_count(), buffer ^= 1) {
      copy_wait<0>();
      proxy_fence();
      block_sync(); // this tile is there, and all have used the last one
      fetch(i + block_count(), base + (buffer ^ 1) * BUFFER);
      u32 at = base + buffer * BUFFER, own = at + HALO + warp * 2 % OUTGOING * TILE_CHUNK;
      u64 halo = descriptor(at + group * ROW_OF_PIXELS, ROW_OF_PIXELS, CHUNK);
      const float *own_m = (const float *)(memory + buffer * BUFFER + HALO + GRAD) + group * 3;
#pragma unroll
      for (int k = 0; k < ROWS / 16; k++) { // two rows of the tile
        u32 raw[4], left[3][4], rows = own + k * 16 * PIECE, next = rows + 8 * PIECE;
        load_transposed(raw, rows, rows + TILE_CHUNK, next, next + TILE_CHUNK);
#pragma unroll
        for (int u = 0; u < 3; u++)
#pragma unroll
          for (int j = 0; j < 4; j++) {
            if (SCALED) {
              const float *entry = own_m + M::at(2 * k + j / 2, lane % 4 * 2) + u;
              float one = similarity(entry[0], gains, group * 3 + u);
              float other = similarity(entry[TAPS], gains, group * 3 + u);
              left[u][j] = pack(low(raw[j]) * one, high(raw[j]) * other);
            } else left[u][j] = raw[j];
          }
        product_fence();
#pragma unroll
        for (int u = 0; u < 3; u++)
          product(sums[u], left[u], moved(halo, u * PIECE + 2 * k * ROW_OF_PIXELS));
        product_commit();
        if (k > 0) product_wait<1>(); // or registers do not suffice
      }
      product_wait<0>();
#pragma unroll
      for (int u = 0; u < 3; u++) settle(sums[u]);
    }
    if (warp * 16 >= HEIGHT) return;
    int filter = output + warp * 16 + lane / 4;
    float *to = parts + ((block_index() * FILTERS + filter) * TAPS + group * 3) * CHANNELS;
    to += channel + lane % 4 * 2;
#pragma unroll
    for (int u = 0; u < 3; u++)
#pragma unroll
      for (int j = 0; j < WIDTH / 2; j += 2)
        *(Pair *)(to + (u + j / 2 % 2 * 8 * TAPS) * CHANNELS + j / 4 * 8) = {sums[u][j],
                                                                             sums[u][j + 1]};
  }
};
