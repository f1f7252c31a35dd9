// The kernel W₂ (9, 9, HIDDEN) of the predictor's second convolution in shared memory, for all groups of
// a block: of every tap 16 filters, the last 7 of them zero.
//
//     | tap 0: chunk of 8 hidden channels: filters × 8 | next chunk | ... | tap 1: ...
constexpr int LAST_FILTERS = 16, LAST_CHUNK = LAST_FILTERS * PIECE, LAST_TAP = HIDDEN / 8 * LAST_CHUNK;

DEVICE void load_last(u32 to, const u16 *w2) {
  constexpr int CHUNKS = HIDDEN / 8;
  for (int k = thread_index(); k < TAPS * LAST_FILTERS * CHUNKS; k += GROUPS * WARPGROUP) {
    int chunk = k % CHUNKS, tap = k / CHUNKS % TAPS, filter = k / CHUNKS / TAPS;
    copy<PIECE>(to + tap * LAST_TAP + chunk * LAST_CHUNK + filter * PIECE,
                w2 + (filter < TAPS ? (filter * TAPS + tap) * HIDDEN + chunk * 8 : 0), filter < TAPS);
  }
}
