// Products of a tile's halo with every tap of the kernel.
//
// Blocks stay and take one tile after another: a warpgroup a tile, WIDTH columns of the result.
//
//     | weights: 9 taps × SLICE × WIDTH | per warpgroup: halo 0 | halo 1 | own 0 | own 1 |
//
// With up to 64 channels the weights are loaded once. More go in slices of 64: the three rows of
// taps are three places, and a row of the next slice is loaded when the row in its place is used.
constexpr bool STREAMED = SLICES > 1;
constexpr int HALO = SLICE / 8 * CHUNK;
constexpr int BUFFER = HALO > Stage<WIDTH>::BYTES ? HALO : Stage<WIDTH>::BYTES;
static_assert(!STREAMED || EVEN, "a branch would stall products");

DEVICE void start_tap(float (&sums)[WIDTH / 2], u64 halo, u64 kernel, int tap) {
  int seen = MIRRORED ? TAPS - 1 - tap : tap, pixel = seen / 3 * SIDE + seen % 3;
  product_fence();
#pragma unroll
  for (int k = 0; k < SLICE / 16; k++)
    product<MIRRORED>(sums, moved(halo, pixel * PIECE + 2 * k * CHUNK),
                      moved(kernel, tap * TAP + k * KERNEL_STEP), k > 0);
  product_commit();
}

// use(tap, sums) for every tap of a slice, while the next tap's product is under way.
template <class Slice, class Use> DEVICE void each_tap(Slice slice, Use use) {
  float sums[2][WIDTH / 2];
  start_tap(sums[0], slice.halo, slice.kernel, 0);
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++) {
    if (tap < TAPS - 1) {
      if (tap % 3 == 2) slice.before_row(tap / 3 + 1);
      start_tap(sums[(tap + 1) & 1], slice.halo, slice.kernel, tap + 1);
      product_wait<1>();
    } else product_wait<0>();
    settle(sums[tap & 1]);
    use(tap, sums[tap & 1]);
  }
}

// A slice of a tile in shared memory: `halo` and `kernel` are descriptors, `pixels` is the halo's
// memory and `own` the tile's further one. `before_row(i)` is due before products of row i > 0.
template <class Before> struct Slice {
  int index;
  u64 halo, kernel;
  unsigned char *pixels, *own;
  Before before_row;
};
template <class Before> Slice(int, u64, u64, unsigned char *, unsigned char *, Before) -> Slice<Before>;

// fetch(tile, slice, halo, own) starts the copies of a slice, OWN_BYTES of the tile's own with the
// first; begin(tile, there) and use(tile, slice, there) take its products, end(tile, memory for the stage,
// group) stores its results.
template <int OWN_BYTES, class Fetch, class Begin, class Use, class End>
DEVICE void each_tile(unsigned char *memory, const u16 *w, Map map, Fetch fetch, Begin begin,
                      Use use, End end) {
  constexpr int GROUP_BYTES = 2 * BUFFER + 2 * OWN_BYTES;
  int group = warp_uniform(thread_index() / WARPGROUP), offset = WEIGHTS + group * GROUP_BYTES;
  int tiles = tile_count(map), step = block_count() * GROUPS;
  int i = block_index() * GROUPS + group, buffer = 0, turn = 0;
  u32 weights = shared_address(memory), halos = weights + offset, owns = halos + 2 * BUFFER;
  u64 kernel = kernel_descriptor(weights);
#pragma unroll
  for (int row = 0; row < (STREAMED ? 1 : 3); row++) load_row(weights, w, row, 0);
  Tile next = tile_at(i, map);
  if (i < tiles) fetch(next, 0, halos, owns);
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
        fetch(last ? next : tile, next_slice, halos + (buffer ^ 1) * BUFFER,
              owns + (turn ^ 1) * OWN_BYTES);
      copy_commit();
      auto before_row = [&](int row) {
        if (!STREAMED) return;
        if (row == 1) copy_wait<2>(); // all but row 2 and the next halo
        else copy_wait<1>();
        proxy_fence();
        block_sync();
        if (row == 2) load_row(weights, w, 0, next_slice);
        if (row == 2) copy_commit();
      };
      use(tile, Slice{slice, descriptor(halos + buffer * BUFFER, CHUNK, ROW_OF_PIXELS), kernel,
                      memory + offset + buffer * BUFFER,
                      memory + offset + 2 * BUFFER + turn * OWN_BYTES, before_row},
          i < tiles);
    }
    if (i < tiles) end(tile, memory + offset + (buffer ^ 1) * BUFFER, group);
  }
  copy_wait<0>();
}
