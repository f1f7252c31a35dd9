// Products of a tile's halo with every tap of the kernel, for the forward pass and the gradients
// of x and M. The including file sets DEPTH, the channels that are summed over, COLUMNS, those of
// the result, and MIRRORED: tap t of position p is its pixel p + t, or p - t.
//
// Blocks stay and take one tile after another: a warpgroup a tile, WIDTH columns of the result.
//
//     | weights: 9 taps × SLICE × WIDTH | per warpgroup: halo 0 | halo 1 | M 0 | M 1 |
//
// With up to 64 channels the weights are loaded once. More go in slices of 64: the three rows of
// taps are three places, and a row of the next slice is loaded when the row in its place is used.
// A tap's kernel lies as [chunk of 8 input channels][filter][channel], which wgmma reads by rows
// where input channels are summed over, and by columns where filters are.
constexpr int SLICE = DEPTH < 64 ? DEPTH : 64, SLICES = DEPTH / SLICE;
constexpr int WIDTH = COLUMNS < 64 ? COLUMNS : 64;
constexpr bool STREAMED = SLICES > 1;
constexpr int FILTERS = MIRRORED ? SLICE : WIDTH, INPUTS = MIRRORED ? WIDTH : SLICE;
constexpr int KERNEL_CHUNK = FILTERS * PIECE, TAP = INPUTS / 8 * KERNEL_CHUNK;
constexpr int ROW_OF_TAPS = 3 * TAP, WEIGHTS = 3 * ROW_OF_TAPS, THREADS = WARPGROUP * GROUPS;
constexpr int KERNEL_STEP = MIRRORED ? 2 * 8 * PIECE : 2 * KERNEL_CHUNK; // 16 further numbers of k
constexpr int HALO = SLICE / 8 * CHUNK;
constexpr int BUFFER = HALO > Stage<WIDTH>::BYTES ? HALO : Stage<WIDTH>::BYTES;
static_assert(!STREAMED || ROW_OF_TAPS / PIECE % THREADS == 0, "a branch would stall products");

// Kernel taps of one row, from w (OUTPUTS, 9, CHANNELS). Of a warp, 16 threads take neighbouring
// filters, whose places are neighbours, and 16 the other half of the same 32 bytes. With twelve
// warps a thread's copies differ by their chunks alone.
DEVICE void load_row(u32 weights, const u16 *w, int row, int slice) {
  int columns = column_index() * WIDTH, depth = slice * SLICE;
  w += (MIRRORED ? depth : columns) * TAPS * CHANNELS + (MIRRORED ? columns : depth);
#pragma unroll
  for (int i = 0; i < (ROW_OF_TAPS / PIECE + THREADS - 1) / THREADS; i++) {
    int lane = thread_index() % 32, part = thread_index() / 32 + i * (THREADS / 32);
    int tap = 3 * row + part % 3, filter = lane % 16 + part / 3 % (FILTERS / 16) * 16;
    int chunk = lane / 16 + part / (3 * FILTERS / 16) * 2;
    if (STREAMED || chunk < INPUTS / 8)
      copy<PIECE>(weights + tap * TAP + chunk * KERNEL_CHUNK + filter * PIECE,
                  w + (filter * TAPS + tap) * CHANNELS + chunk * 8, true);
  }
}

DEVICE void start_tap(float (&sums)[WIDTH / 2], u64 halo, u64 kernel, int tap) {
  int seen = MIRRORED ? TAPS - 1 - tap : tap, pixel = seen / 3 * SIDE + seen % 3;
  product_fence();
#pragma unroll
  for (int k = 0; k < SLICE / 16; k++)
    product<MIRRORED>(sums, moved(halo, pixel * PIECE + 2 * k * CHUNK),
                      moved(kernel, tap * TAP + k * KERNEL_STEP), k > 0);
  product_commit();
}

// use(tap, sums) for every tap, while the next tap's product is under way.
template <class Before, class Use>
DEVICE void each_tap(u64 halo, u64 kernel, Before before_row, Use use) {
  float sums[2][WIDTH / 2];
  start_tap(sums[0], halo, kernel, 0);
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++) {
    if (tap < TAPS - 1) {
      if (tap % 3 == 2) before_row(tap / 3 + 1);
      start_tap(sums[(tap + 1) & 1], halo, kernel, tap + 1);
      product_wait<1>();
    } else product_wait<0>();
    settle(sums[tap & 1]);
    use(tap, sums[tap & 1]);
  }
}

// fetch(tile, slice, halo, m) starts the copies of a slice (M with the first), begin(tile) and
// use(tap, sums, m) take a tile's products, end(tile, memory for the stage) stores its results.
template <int M_BYTES, class Fetch, class Begin, class Use, class End>
DEVICE void each_tile(unsigned char *memory, const u16 *w, Map map, Fetch fetch, Begin begin,
                      Use use, End end) {
  constexpr int OWN = 2 * BUFFER + 2 * M_BYTES;
  int group = warp_uniform(thread_index() / WARPGROUP), offset = WEIGHTS + group * OWN;
  int tiles = tile_count(map), step = block_count() * GROUPS;
  int i = block_index() * GROUPS + group, buffer = 0, turn = 0;
  u32 weights = shared_address(memory), own = weights + offset, own_m = own + 2 * BUFFER;
  u64 kernel = MIRRORED ? descriptor(weights, 8 * PIECE, KERNEL_CHUNK)
                        : descriptor(weights, KERNEL_CHUNK, 8 * PIECE);
#pragma unroll
  for (int row = 0; row < (STREAMED ? 1 : 3); row++) load_row(weights, w, row, 0);
  Tile next = tile_at(i, map);
  if (i < tiles) fetch(next, 0, own, own_m);
  copy_commit();
  copy_wait<0>();
  proxy_fence();
  block_sync();
  // Where weights are streamed, all groups meet at every row of taps, with or without a tile.
  for (; STREAMED ? i - group < tiles : i < tiles; i += step, turn ^= 1) {
    Tile tile = next;
    next = tile_at(i + step, map);
    begin(tile, i < tiles);
#pragma unroll 1
    for (int slice = 0; slice < SLICES; slice++, buffer ^= 1) {
      // This slice is there, and all have used the last one.
      copy_wait<0>();
      proxy_fence();
      if (STREAMED) {
        block_sync();
        for (int row = 1; row < 3; row++) {
          load_row(weights, w, row, slice);
          copy_commit();
        }
      } else group_sync(group);
      bool last = slice == SLICES - 1;
      int next_slice = last ? 0 : slice + 1;
      if ((last ? i + step : i) < tiles)
        fetch(last ? next : tile, next_slice, own + (buffer ^ 1) * BUFFER,
              own_m + (turn ^ 1) * M_BYTES);
      copy_commit();
      const float *m = (const float *)(memory + offset + 2 * BUFFER + turn * M_BYTES);
      each_tap(
          descriptor(own + buffer * BUFFER, CHUNK, ROW_OF_PIXELS), kernel,
          [&](int row) {
            if (!STREAMED) return;
            if (row == 1) copy_wait<2>(); // all but row 2 and the next halo
            else copy_wait<1>();
            proxy_fence();
            block_sync();
            if (row == 2) load_row(weights, w, 0, next_slice);
            if (row == 2) copy_commit();
          },
          [&](int tap, float (&sums)[WIDTH / 2]) { use(tap, sums, m); });
    }
    if (i < tiles) end(tile, memory + offset + (buffer ^ 1) * BUFFER, group);
  }
  copy_wait<0>();
}
