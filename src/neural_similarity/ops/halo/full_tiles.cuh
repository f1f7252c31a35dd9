// Products of what a full M mixes with every tap of the kernel, UNIT channels at a time.
//
// Blocks stay and take one tile after another: a warpgroup a tile, WIDTH columns of the result.
//
//     | weights: PLACES × 9 taps × UNIT × WIDTH | per warpgroup: halo 0 | halo 1 | M | mixed |
//
// With up to 64 channels every unit of the weights has its place, and they are loaded once. Of more,
// the next unit is loaded while this one is used.
static_assert(SLICE == UNIT, "weights lie by units");
constexpr bool STREAMED = DEPTH > 64;
constexpr int PLACES = STREAMED ? 2 : SLICES;

// Stores y(p) = Σ_s W_s u_s(p), or with MIRRORED Σ_s W_sᵀ u_s(p), of u as in mixing.cuh.
template <class M>
DEVICE void store_products(const u16 *maps, const u16 *w, const float *m, u16 *to, Map map,
                           unsigned char *memory) {
  constexpr int GROUP_BYTES = 2 * UNIT_HALO + M::BYTES + MIXED;
  int group = warp_uniform(thread_index() / WARPGROUP), thread = thread_index() % WARPGROUP;
  int tiles = tile_count(map), step = block_count() * GROUPS, buffer = 0;
  unsigned char *own = memory + PLACES * WEIGHTS + group * GROUP_BYTES;
  unsigned char *own_m = own + 2 * UNIT_HALO, *mixed = own_m + M::BYTES;
  u32 weights = shared_address(memory), halos = shared_address(own);
  u64 kernel = kernel_descriptor(weights);
  u64 sums_of_taps = descriptor(shared_address(mixed), MIXED_CHUNK, 8 * PIECE);
  auto load_weights = [&](int unit) {
#pragma unroll
    for (int row = 0; row < 3; row++)
      load_row(weights + unit % PLACES * WEIGHTS, w, row, unit);
  };
  auto load_unit = [&](Tile tile, int unit, int buffer) {
    load_halo<DEPTH, UNIT / 8>(halos + buffer * UNIT_HALO, maps + unit * UNIT, tile, map, thread);
  };
  auto load_m = [&](Tile tile) { M::load(shared_address(own_m), m, tile, map, thread); };
  int i = block_index() * GROUPS + group;
  for (int unit = 0; unit < (STREAMED ? 1 : SLICES); unit++) load_weights(unit);
  if (i < tiles) load_unit(tile_at(i, map), 0, 0), load_m(tile_at(i, map));
  copy_commit();
  copy_wait<0>();
  proxy_fence();
  block_sync();
  // Where weights are streamed, all groups meet at every unit, with or without a tile.
  for (; STREAMED ? i - group < tiles : i < tiles; i += step) {
    Tile tile = tile_at(i, map), next = tile_at(i + step, map);
    float total[WIDTH / 2];
#pragma unroll 1
    for (int unit = 0; unit < SLICES; unit++, buffer ^= 1) {
      // This unit is there, and all have used the last one.
      copy_wait<0>();
      product_wait<0>();
      proxy_fence();
      if (STREAMED) block_sync();
      else group_sync(group);
      bool last = unit == SLICES - 1;
      if (!last && i < tiles) load_unit(tile, unit + 1, buffer ^ 1);
      if (STREAMED) load_weights(last ? 0 : unit + 1);
      mix<M, MIRRORED>(mixed, own + buffer * UNIT_HALO, (const float *)own_m, thread);
      proxy_fence();
      group_sync(group);
      copy_commit();
      product_fence();
#pragma unroll
      for (int s = 0; s < TAPS; s++)
        product<MIRRORED>(total, moved(sums_of_taps, s * MIXED_TAP),
                          moved(kernel, unit % PLACES * WEIGHTS + s * TAP), unit + s > 0);
      product_commit();
    }
    // All have mixed the last unit.
    if (i + step < tiles) load_unit(next, 0, buffer), load_m(next);
    copy_commit();
    product_wait<0>();
    settle(total);
    u16 *columns = to + column_index() * WIDTH;
    if (i < tiles) Stage<WIDTH>::template store<COLUMNS>(columns, total, mixed, tile, map, group, thread);
  }
  copy_wait<0>();
}
