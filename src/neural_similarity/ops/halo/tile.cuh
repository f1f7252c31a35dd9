// Tiles of 8 × 8 positions, the 64 rows of a warpgroup's product, and their maps in shared memory.
//
// A halo is a tile with the pixels around it, by chunks of 8 channels. Of one chunk:
//
//      0   1   2  ...   8   9     pixels of 16 bytes; the tile is 11-18, 21-28, ... 81-88
//     10  11  12  ...  18  19
//      :   :   :        :   :
//     90  91  92  ...  98  99     the next chunk begins at 101, so that the 8 chunks of a pixel
//                                 are written to 8 different sixteenths of the 128 bytes of banks
//
// Eight pixels of a row are 128 adjacent bytes: a core matrix of wgmma, 8 rows of 16 bytes. So a
// tap is an address: its operand begins at its pixel for the tile's first position, the next eight
// rows of the product lie one row of pixels on, the next 8 numbers of k (or, where positions are k,
// the next 8 columns) one chunk on. Pixels outside the map are zero.
constexpr int TAPS = 9, TILE = 8, SIDE = TILE + 2, ROWS = TILE * TILE;
constexpr int PIECE = 16, ROW_OF_PIXELS = SIDE * PIECE, CHUNK = (SIDE * SIDE + 1) * PIECE;
constexpr int TILE_CHUNK = (ROWS + 1) * PIECE; // of a tile without a halo
constexpr int WARPGROUP = 128;

struct Map { int images, height, width; };
struct Tile { int image, row, column; };

DEVICE int tile_count(Map map) {
  return map.images * ((map.height + TILE - 1) / TILE) * ((map.width + TILE - 1) / TILE);
}
DEVICE Tile tile_at(int i, Map map) {
  int down = (map.height + TILE - 1) / TILE, across = (map.width + TILE - 1) / TILE;
  return {i / (down * across), i / across % down * TILE, i % across * TILE};
}
DEVICE bool within(int i, int size) { return (u32)i < (u32)size; }
// In a map of one number a pixel. No tensor has 2^31 numbers or more: launch.py declines those.
DEVICE int pixel_index(int image, int row, int column, Map map) {
  return (image * map.height + row) * map.width + column;
}

// A matrix in shared memory: the distances of 8 further numbers along k, and of 8 rows (columns).
DEVICE u64 descriptor(u32 at, u32 along_k, u32 across_k) {
  return (u64)(at >> 4) | (u64)(along_k >> 4) << 16 | (u64)(across_k >> 4) << 32;
}
DEVICE u64 moved(u64 matrix, int bytes) { return matrix + (bytes >> 4); } // below 2^18: no carry

// The halo of CHUNKS chunks of maps of PIXEL channels. Row by row: what differs between rows is a
// constant, so that addresses cost little.
template <int PIXEL, int CHUNKS>
DEVICE void load_halo(u32 to, const u16 *maps, Tile tile, Map map, int thread) {
  int chunk = thread % CHUNKS, side = thread / CHUNKS, column = tile.column + side - 1;
  if (side >= SIDE) return;
  int from = pixel_index(tile.image, tile.row - 1, column, map) * PIXEL + chunk * 8;
  to += chunk * CHUNK + side * PIECE;
#pragma unroll
  for (int i = 0; i < SIDE; i++, from += map.width * PIXEL) {
    bool there = within(column, map.width) && within(tile.row - 1 + i, map.height);
    copy<PIECE>(to + i * ROW_OF_PIXELS, maps + (there ? from : 0), there);
  }
}

// The tile without its halo: positions × 8, by chunks.
template <int PIXEL, int CHUNKS>
DEVICE void load_tile(u32 to, const u16 *maps, Tile tile, Map map, int thread) {
#pragma unroll
  for (int k = thread; k < ROWS * CHUNKS; k += WARPGROUP) {
    int chunk = k % CHUNKS, position = k / CHUNKS;
    int row = tile.row + position / TILE, column = tile.column + position % TILE;
    bool there = row < map.height && column < map.width;
    int from = pixel_index(tile.image, row, column, map) * PIXEL + chunk * 8;
    copy<PIECE>(to + chunk * TILE_CHUNK + position * PIECE, maps + (there ? from : 0), there);
  }
}

// The kernels of a layer, compiled with PREDICTED, get the raw numbers r of its predictor in the place
// of M, m_t = 1 + g_t r_t, and gains g: float32, or with NARROW_GAINS of the maps' type.
#ifdef NARROW_GAINS
typedef u16 Gain;
#else
typedef float Gain;
#endif
DEVICE float gain_at(const float *gains, int tap) { return gains[tap]; }
DEVICE float gain_at(const u16 *gains, int tap) { return low(gains[tap]); }
#ifdef PREDICTED
DEVICE float similarity(float r, const Gain *gains, int tap) { return 1 + gain_at(gains, tap) * r; }
#else
DEVICE float similarity(float m, const Gain *, int) { return m; }
#endif

// M (n, h, w, ENTRIES) at a tile and RING pixels around it. Copies are of 16 bytes where all rows of
// M are aligned to that, else of the 4 bytes of a number. A ring begins one column before the tile,
// 4 columns before which a piece begins: of the row from there, pieces from FIRST on are copied.
template <int ENTRIES, int RING> struct Similarities {
  static constexpr int HEIGHT = TILE + 2 * RING, SKIPPED = RING ? 3 * ENTRIES : 0;
  static constexpr int FIRST = SKIPPED / 4, OFFSET = SKIPPED % 4, NUMBERS = HEIGHT * ENTRIES;
  static constexpr int PIECES = (OFFSET + NUMBERS + 3) / 4;
  static constexpr int PITCH = ((PIECES + 1) / 2 | 1) * 8; // so that four rows are in different banks
  static constexpr int BYTES = HEIGHT * PITCH * 4;

  template <int SIZE>
  static DEVICE void load_pieces(u32 to, const float *m, Tile tile, Map map, int thread) {
    constexpr int COUNT = SIZE == 4 ? NUMBERS : PIECES;
    int begin = (tile.column - RING) * ENTRIES - (SIZE == 4 ? 0 : OFFSET);
    int rows = pixel_index(tile.image, tile.row - RING, 0, map) * ENTRIES;
    to += SIZE == 4 ? OFFSET * 4 : 0;
#pragma unroll
    for (int piece = thread; piece < COUNT; piece += WARPGROUP) {
      int number = begin + piece * (SIZE / 4), from = rows + number;
#pragma unroll
      for (int i = 0; i < HEIGHT; i++, from += map.width * ENTRIES) {
        bool there = within(number, map.width * ENTRIES) && within(tile.row - RING + i, map.height);
        copy<SIZE>(to + i * PITCH * 4 + piece * SIZE, m + (there ? from : 0), there);
      }
    }
  }
  static DEVICE void load(u32 to, const float *m, Tile tile, Map map, int thread) {
    thread = WARPGROUP - 1 - thread; // the last threads have no part of the halo
    if (map.width % 4 == 0) load_pieces<16>(to, m, tile, map, thread);
    else load_pieces<4>(to, m, tile, map, thread);
  }
  // The index of M for a position of the tile, or of its ring.
  static DEVICE int at(int row, int column) {
    return (row + RING) * PITCH + (column + RING) * ENTRIES + OFFSET;
  }
  static constexpr DEVICE int step(int tap) { return (tap / 3 - 1) * PITCH + (tap % 3 - 1) * ENTRIES; }
};

// The sums of a warpgroup as rows of 16 bytes by way of shared memory, in PITCH bytes a position.
template <int WIDTH> struct Stage {
  static constexpr int PITCH = WIDTH * 2 + PIECE, BYTES = ROWS * PITCH, PIECES = WIDTH / 8;

  template <int PIXEL>
  static DEVICE void store(u16 *maps, float (&sums)[WIDTH / 2], unsigned char *stage, Tile tile,
                           Map map, int group, int thread) {
    int warp = thread / 32, lane = thread % 32;
    group_sync(group); // all have read what is in the stage's memory
#pragma unroll
    for (int j = 0; j < WIDTH / 2; j += 2) {
      int position = warp * 16 + lane / 4 + j / 2 % 2 * 8, channel = j / 4 * 8 + lane % 4 * 2;
      *(u32 *)(stage + position * PITCH + channel * 2) = pack(sums[j], sums[j + 1]);
    }
    group_sync(group);
#pragma unroll
    for (int k = thread; k < ROWS * PIECES; k += WARPGROUP) {
      int position = k / PIECES, piece = k % PIECES;
      int row = tile.row + position / TILE, column = tile.column + position % TILE;
      if (row < map.height && column < map.width)
        *(Piece *)(maps + pixel_index(tile.image, row, column, map) * PIXEL + piece * 8) =
            *(Piece *)(stage + position * PITCH + piece * PIECE);
    }
  }
};
