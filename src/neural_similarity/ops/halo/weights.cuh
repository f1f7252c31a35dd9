// A kernel's weights in shared memory, by slices of the channels that are summed over. The including
// file sets DEPTH, these channels, COLUMNS, those of the result, SLICE_MOST, and MIRRORED: tap t of
// position p is its pixel p + t, or p - t.
//
// A tap's kernel lies as [chunk of 8 input channels][filter][channel], which wgmma reads by rows
// where input channels are summed over, and by columns where filters are.
constexpr int SLICE = DEPTH < SLICE_MOST ? DEPTH : SLICE_MOST, SLICES = DEPTH / SLICE;
constexpr int WIDTH = COLUMNS < 64 ? COLUMNS : 64, THREADS = WARPGROUP * GROUPS;
constexpr int FILTERS = MIRRORED ? SLICE : WIDTH, INPUTS = MIRRORED ? WIDTH : SLICE;
constexpr int KERNEL_CHUNK = FILTERS * PIECE, TAP = INPUTS / 8 * KERNEL_CHUNK;
constexpr int ROW_OF_TAPS = 3 * TAP, WEIGHTS = 3 * ROW_OF_TAPS;
constexpr int KERNEL_STEP = MIRRORED ? 2 * 8 * PIECE : 2 * KERNEL_CHUNK; // 16 further numbers of k
constexpr bool EVEN = ROW_OF_TAPS / PIECE % THREADS == 0;

DEVICE u64 kernel_descriptor(u32 weights) {
  return MIRRORED ? descriptor(weights, 8 * PIECE, KERNEL_CHUNK)
                  : descriptor(weights, KERNEL_CHUNK, 8 * PIECE);
}

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
    if (EVEN || chunk < INPUTS / 8)
      copy<PIECE>(weights + tap * TAP + chunk * KERNEL_CHUNK + filter * PIECE,
                  w + (filter * TAPS + tap) * CHANNELS + chunk * 8, true);
  }
}
