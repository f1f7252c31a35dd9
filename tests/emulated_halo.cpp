// The halo kernels on a CPU: a block's warps take turns, from barrier to barrier. Copies and
// matrix products are carried out as late as the waits for them allow, operands are fetched by
// their descriptors (PTX ISA, wgmma without swizzle), and memory that is not there yet is NaN.
// tests/emulated_halo.py compiles this with -DSOURCE, a kernel's file, and -DNAME, its name.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <ucontext.h>
#include <utility>
#include <vector>

#define HALO_DEVICE // takes the place of device.cuh
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(16) Piece { u32 a, b, c, d; };
struct alignas(8) Pair { float a, b; };
#define DEVICE inline
#define KERNEL(threads) void
#define SHARED unsigned char *memory = SHARED_MEMORY;

constexpr int MOST_SHARED = 232448, STACK = 1 << 16, WARPS = 32, BARRIERS = 16;
alignas(1024) static unsigned char SHARED_MEMORY[1 << 18];
static int writers[MOST_SHARED / 16]; // whose copy a piece holds that no fence has shown yet
static int shared_bytes, block_x, block_y, blocks_x, running;
static long copied; // bytes of the tensors that were copied to shared memory, in all runs
static std::string problem;

struct Copy { u32 to; const void *from; int bytes; bool there; };
struct Sums { float *at; std::vector<float> values; int pending; };
struct Product { float *sums; std::function<float(int row, int column)> value; bool adds; };
struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[STACK]};
  bool done = false, fenced = false;
  int barrier = -1;
  long turn = 0;
  std::vector<Copy> copying;
  std::deque<std::vector<Copy>> copies;
  std::vector<u32> landed;
  std::vector<Product> multiplying;
  std::deque<std::vector<Product>> products;
  std::map<float *, Sums> sums; // those that products under way will change
};
static ucontext_t scheduler;
static std::vector<std::unique_ptr<Thread>> threads;
static struct { int arrived; long turn; } barriers[BARRIERS + WARPS];
static u32 fragments[1024][4];
static float shuffled[1024];

static Thread &self() { return *threads[running]; }
static void leave() { swapcontext(&self().context, &scheduler); }
static void fail(const std::string &what) {
  if (problem.empty()) problem = what;
  for (;;) leave();
}
static void arrive(int barrier, int expected) {
  auto &mine = barriers[barrier];
  if (++mine.arrived == expected) mine.arrived = 0, mine.turn++;
  else {
    self().barrier = barrier, self().turn = mine.turn;
    leave();
  }
}

DEVICE int thread_index() { return running; }
DEVICE int block_index() { return block_x; }
DEVICE int column_index() { return block_y; }
DEVICE int block_count() { return blocks_x; }
DEVICE u32 shared_address(const void *p) { return (unsigned char *)p - SHARED_MEMORY; }
DEVICE int warp_uniform(int v) { return v; }
DEVICE void group_sync(int group) { arrive(1 + group, 128); }
DEVICE void block_sync() { arrive(0, threads.size()); }
static void warp_sync() { arrive(BARRIERS + running / 32, 32); }

template <int BYTES> DEVICE void copy(u32 to, const void *from, bool there) {
  if (to % BYTES || (there && (uintptr_t)from % BYTES)) fail("a copy is not aligned");
  if ((int)to + BYTES > shared_bytes) fail("a copy ends beyond shared memory");
  memset(SHARED_MEMORY + to, 0xff, BYTES);
  self().copying.push_back({to, from, BYTES, there});
}
DEVICE void copy_commit() {
  self().copies.push_back(std::move(self().copying));
  self().copying = {};
}
template <int LEFT> DEVICE void copy_wait() {
  for (; self().copies.size() > LEFT; self().copies.pop_front())
    for (auto &one : self().copies.front()) {
      copied += one.there ? one.bytes : 0;
      if (one.there) memcpy(SHARED_MEMORY + one.to, one.from, one.bytes);
      else memset(SHARED_MEMORY + one.to, 0, one.bytes);
      writers[one.to / 16] = running + 1;
      self().landed.push_back(one.to / 16);
    }
}
DEVICE void proxy_fence() {
  for (u32 piece : self().landed)
    if (writers[piece] == running + 1) writers[piece] = 0;
  self().landed.clear();
}

static float number(u16 v) {
#ifdef FLOAT16
  _Float16 f;
  memcpy(&f, &v, 2);
  return f;
#else
  u32 u = (u32)v << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
#endif
}
static u16 rounded(float f) {
#ifdef FLOAT16
  _Float16 h = f;
  u16 v;
  memcpy(&v, &h, 2);
  return v;
#else
  u32 u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
#endif
}
DEVICE float low(u32 v) { return number(v); }
DEVICE float high(u32 v) { return number(v >> 16); }
DEVICE u32 pack(float low, float high) { return rounded(low) | (u32)rounded(high) << 16; }

static float fetch(u32 at) {
  if ((int)at + 2 > shared_bytes) fail("a descriptor leads beyond shared memory");
  if (writers[at / 16]) fail("a product reads a copy before the fence");
  u16 v;
  memcpy(&v, SHARED_MEMORY + at, 2);
  return number(v);
}
// Element (row, k) of a matrix whose rows are columns for B.
static float element(u64 matrix, int row, int k, bool by_column) {
  u32 start = (matrix & 0x3fff) << 4, along = (matrix >> 16 & 0x3fff) << 4;
  u32 across = (matrix >> 32 & 0x3fff) << 4;
  u32 inside = by_column ? row % 8 * 2 + k % 8 * 16 : row % 8 * 16 + k % 8 * 2;
  return fetch(start + row / 8 * across + k / 8 * along + inside);
}

DEVICE void product_fence() { self().fenced = true; }
static void start(float *at, int count, std::function<float(int, int)> value, bool adds) {
  if (!self().fenced) fail("a product starts without a fence");
  auto [found, fresh] = self().sums.try_emplace(at, Sums{at, {at, at + count}, 0});
  found->second.pending++;
  for (int j = 0; j < count; j++) at[j] = NAN; // not to be read before the wait
  self().multiplying.push_back({at, std::move(value), adds});
}
template <bool BY_COLUMN, int COUNT>
DEVICE void product(float (&d)[COUNT], u64 left, u64 right, bool sum) {
  start(d, COUNT, [=](int row, int column) {
    float s = 0;
    for (int k = 0; k < 16; k++)
      s += element(left, row, k, false) * element(right, column, k, BY_COLUMN);
    return s;
  }, sum);
}
template <int COUNT> DEVICE void product(float (&d)[COUNT], const u32 (&left)[4], u64 right) {
  memcpy(fragments[running], left, 16);
  warp_sync();
  std::vector<u32> rows; // a thread's two rows: 8 pairs each
  for (int half = 0; half < 2; half++)
    for (int pair = 0; pair < 8; pair++)
      rows.push_back(fragments[running / 4 * 4 + pair % 4][half + pair / 4 * 2]);
  warp_sync();
  start(d, COUNT, [=](int row, int column) {
    float s = 0;
    for (int k = 0; k < 16; k++) {
      u32 pair = rows[row % 16 / 8 * 8 + k / 2];
      s += number(k % 2 ? pair >> 16 : pair) * element(right, column, k, true);
    }
    return s;
  }, true);
}
DEVICE void product_commit() {
  self().products.push_back(std::move(self().multiplying)), self().multiplying = {};
  self().fenced = false;
}
template <int LEFT> DEVICE void product_wait() {
  int lane = running % 32, first = running % 128 / 32 * 16 + lane / 4;
  for (; self().products.size() > LEFT; self().products.pop_front())
    for (auto &one : self().products.front()) {
      auto &sums = self().sums.at(one.sums);
      for (size_t j = 0; j < sums.values.size(); j++)
        sums.values[j] = (one.adds ? sums.values[j] : 0) +
                         one.value(first + j / 2 % 2 * 8, j / 4 * 8 + lane % 4 * 2 + j % 2);
      if (--sums.pending) continue;
      memcpy(one.sums, sums.values.data(), sums.values.size() * 4);
      self().sums.erase(one.sums);
    }
}
template <int COUNT> DEVICE void settle(float (&)[COUNT]) {}
DEVICE void load_transposed(u32 (&r)[4], u32 m0, u32 m1, u32 m2, u32 m3) {
  int lane = running % 32, i = 0;
  for (u32 matrix : {m0, m1, m2, m3}) {
    u16 pair[2];
    for (int k = 0; k < 2; k++)
      memcpy(&pair[k], SHARED_MEMORY + matrix + (lane % 4 * 2 + k) * 16 + lane / 4 * 2, 2);
    r[i++] = pair[0] | (u32)pair[1] << 16;
  }
}
DEVICE float quad_sum(float v) {
  shuffled[running] = v;
  warp_sync();
  const float *quad = shuffled + running / 4 * 4;
  float sum = (quad[0] + quad[1]) + (quad[2] + quad[3]);
  warp_sync();
  return sum;
}

#include SOURCE

template <class... Arguments, size_t... I>
static void call(void (*kernel)(Arguments...), void **arguments, std::index_sequence<I...>) {
  kernel(*(Arguments *)arguments[I]...);
}
static void **given;
static void body() {
  auto spread = []<class... A>(void (*kernel)(A...)) {
    call(kernel, given, std::index_sequence_for<A...>());
  };
  spread(NAME);
  for (auto &copies : self().copies)
    if (!copies.empty()) fail("a thread ends before its copies");
  self().done = true;
  leave();
}

// One block: `backwards`, its threads run from the last to the first.
static void run_block(int count, bool backwards) {
  memset(SHARED_MEMORY, 0xff, sizeof SHARED_MEMORY);
  memset(writers, 0, sizeof writers);
  memset(barriers, 0, sizeof barriers);
  threads.clear();
  for (int i = 0; i < count; i++) {
    auto &one = *threads.emplace_back(new Thread);
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.get();
    one.context.uc_stack.ss_size = STACK;
    makecontext(&one.context, body, 0);
  }
  auto runs = [&](int i) {
    auto &one = *threads[running = backwards ? count - 1 - i : i];
    if (one.done || (one.barrier >= 0 && barriers[one.barrier].turn == one.turn)) return false;
    one.barrier = -1;
    swapcontext(&scheduler, &one.context);
    return true;
  };
  // A warp runs as far as it can without the others.
  for (bool ran = true; ran && problem.empty();) {
    ran = false;
    for (int first = 0; first < count; first += 32)
      for (bool again = true; again && problem.empty(); ran |= again) {
        again = false;
        for (int i = first; i < first + 32 && problem.empty(); i++) again |= runs(i);
      }
  }
  for (auto &one : threads)
    if (!one->done && problem.empty()) problem = "threads wait for each other";
  for (int i = shared_bytes; i < (int)sizeof SHARED_MEMORY; i++)
    if (SHARED_MEMORY[i] != 0xff && problem.empty()) problem = "a store beyond shared memory";
}

extern "C" long copied_bytes() { return copied; }
extern "C" const char *run(int columns, int rows, int count, int bytes, void **arguments,
                           bool backwards) {
  problem.clear(), shared_bytes = bytes, blocks_x = columns, given = arguments;
  if (bytes > MOST_SHARED) return "there is not so much shared memory";
  for (block_y = 0; block_y < rows && problem.empty(); block_y++)
    for (block_x = 0; block_x < columns && problem.empty(); block_x++) run_block(count, backwards);
  return problem.c_str();
}
