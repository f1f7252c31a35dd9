// The instructions of sm_90a that the kernels need, by name: copies, barriers, matrix products.
// tests/halo_emulator.h has the same functions for a CPU, and takes the place of this file there.
#ifndef HALO_DEVICE
#define HALO_DEVICE

typedef unsigned short u16; // bfloat16, or float16 with -DFLOAT16
typedef unsigned int u32;   // an address in shared memory, or two such numbers
typedef unsigned long long u64;
struct alignas(16) Piece { u32 a, b, c, d; }; // 16 bytes: 8 channels of a pixel
struct alignas(8) Pair { float a, b; };

#define DEVICE __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define SHARED extern __shared__ __align__(128) unsigned char memory[];

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }
DEVICE int column_index() { return blockIdx.y; }
DEVICE int block_count() { return gridDim.x; }
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// The same for a warp's threads, which the compiler then knows.
DEVICE int warp_uniform(int v) { return __shfl_sync(~0u, v, 0); }

// Asynchronous copies of 16 or 4 bytes to shared memory; zeros where not `there`.
template <int BYTES> DEVICE void copy(u32 to, const void *from, bool there) {
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 4 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Matrix products read shared memory through a proxy of their own, which does not see a thread's
// copies before this.
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); }
DEVICE void block_sync() { __syncthreads(); }

DEVICE void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// After a wait: the compiler sees no dependence of the sums on it, and may read them before.
template <int COUNT> DEVICE void settle(float (&sums)[COUNT]) {
#pragma unroll
  for (int j = 0; j < COUNT; j++) asm volatile("" : "+f"(sums[j])::"memory");
}

#ifdef FLOAT16
#define TYPE "f16"
DEVICE float low(u32 v) {
  float f;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(f) : "r"(v));
  return f;
}
DEVICE float high(u32 v) {
  float f;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}" : "=f"(f) : "r"(v));
  return f;
}
#else
#define TYPE "bf16"
DEVICE float low(u32 v) { return __uint_as_float(v << 16); }
DEVICE float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
#endif
DEVICE u32 pack(float low, float high) {
  u32 v;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

// wgmma: sums (64 × n, float32) += A (64 × 16)·B (16 × n), n = 16, 32 or 64. Thread t of the group has
// the sums of rows 16·(t/32) + t%32/4 (+ 8 for j/2 odd) and columns 8·(j/4) + 2·(t%4) + j%2.
#define SUMS8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
                 "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS16 SUMS8(0)
#define SUMS32 SUMS8(0), SUMS8(8)
#define SUMS64 SUMS8(0), SUMS8(8), SUMS8(16), SUMS8(24)
#define FIRST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define FIRST16 FIRST8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES16 "{" FIRST8 "}"
#define NAMES32 "{" FIRST16 "}"
#define NAMES64 "{" FIRST16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." TYPE "." TYPE " " NAMES##n ", "

// Both operands by their descriptors; B has 8 adjacent numbers along its columns with BY_COLUMN,
// else along k. Without `adds` the sums start at 0.
#define SHARED_PRODUCT(n, a, b, adds, by)                                                         \
  template <bool BY_COLUMN>                                                                       \
  DEVICE void product(float (&d)[n / 2], u64 left, u64 right, bool sum) {                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " adds ", 0;\n" WGMMA(n) a ", " b                  \
                 ", p, 1, 1, 0, " by ";}"                                                          \
                 : SUMS##n : "l"(left), "l"(right), "r"((int)sum), "n"((int)BY_COLUMN));           \
  }
SHARED_PRODUCT(16, "%8", "%9", "%10", "%11")
SHARED_PRODUCT(32, "%16", "%17", "%18", "%19")
SHARED_PRODUCT(64, "%32", "%33", "%34", "%35")

// A from registers, four pairs of a thread: rows t%32/4 and + 8, k = 2·(t%4) and both again + 8.
#define REGISTER_PRODUCT(n, a, b)                                                                  \
  DEVICE void product(float (&d)[n / 2], const u32 (&left)[4], u64 right) {                        \
    asm volatile(WGMMA(n) a ", " b ", 1, 1, 1, 1;"                                                 \
                 : SUMS##n : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));  \
  }
REGISTER_PRODUCT(16, "{%8,%9,%10,%11}", "%12")
REGISTER_PRODUCT(32, "{%16,%17,%18,%19}", "%20")
REGISTER_PRODUCT(64, "{%32,%33,%34,%35}", "%36")

// Four 8 × 8 matrices whose rows are 16 bytes apart, transposed into A's registers.
DEVICE void load_transposed(u32 (&r)[4], u32 m0, u32 m1, u32 m2, u32 m3) {
  int lane = thread_index() & 31, quarter = lane >> 3;
  u32 at = (quarter & 2 ? (quarter & 1 ? m3 : m2) : (quarter & 1 ? m1 : m0)) + (lane & 7) * 16;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEVICE float quad_sum(float v) { // over the four threads that share rows of the sums
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
#endif
