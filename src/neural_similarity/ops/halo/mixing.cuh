// What a full M mixes of a tile's halo: u_s(p) = Σ_t M_st(p) x_t(p), x_t(p) = x(p + t), of UNIT channels
// at a time, in shared memory for the matrix products of all kernel taps s.
//
//     | s = 0: chunk of 8 channels 0: positions × 8 | chunk 1 | s = 1: ...
//
// A thread has one position and chunk. Its nine taps lie in registers and serve all nine sums, which
// are float32 and rounded once. With MIRRORED, x_t(p) = x(p - t), and M is that of pixel p - t.
constexpr int UNIT = 16, MIXED_CHUNK = ROWS * PIECE, MIXED_TAP = UNIT / 8 * MIXED_CHUNK;
constexpr int MIXED = TAPS * MIXED_TAP, UNIT_HALO = UNIT / 8 * CHUNK;

template <class M, bool MIRRORED>
DEVICE void mix(unsigned char *mixed, const unsigned char *halo, const float *own_m, int thread) {
  int position = thread % ROWS, row = position / TILE, column = position % TILE;
  int chunk = thread / ROWS, pixel = row * SIDE + column;
  own_m += M::at(row, column);
  float seen[TAPS][8];
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++) {
    int at = MIRRORED ? TAPS - 1 - tap : tap, shift = at / 3 * SIDE + at % 3;
    Piece piece = *(const Piece *)(halo + chunk * CHUNK + (pixel + shift) * PIECE);
    u32 pairs[4] = {piece.a, piece.b, piece.c, piece.d};
#pragma unroll
    for (int c = 0; c < 8; c++) seen[tap][c] = c % 2 ? high(pairs[c / 2]) : low(pairs[c / 2]);
  }
#pragma unroll 3 // all nine would need more registers than there are
  for (int s = 0; s < TAPS; s++) {
    float sums[8] = {};
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
      float factor = own_m[s * TAPS + tap - (MIRRORED ? M::step(tap) : 0)];
#pragma unroll
      for (int c = 0; c < 8; c++) sums[c] += factor * seen[tap][c];
    }
    *(Piece *)(mixed + s * MIXED_TAP + chunk * MIXED_CHUNK + position * PIECE) = {
        pack(sums[0], sums[1]), pack(sums[2], sums[3]), pack(sums[4], sums[5]),
        pack(sums[6], sums[7])};
  }
}
