/*
 * Matrix products of a warpgroup (128 threads) and the barriers around them; sm_90a alone.
 *
 * TILES. A tile in shared memory is [headDim / 64][rows][64] bf16: rows of 128 bytes, of which the 16-byte vector c of
 * row r stands at place c ^ (r % 8) (the 128-byte swizzle), each half from a multiple of 1,024 bytes on.
 *
 * DESCRIPTORS (PTX ISA, "matrix descriptor"): start address / 16 in bits 0-13, leading byte offset / 16 in 16-29,
 * stride byte offset / 16 in 32-45, swizzle 1 (128 bytes) in 62-63. Eight rows are 1,024 bytes: the stride. A product
 * takes 16 of the summed dimension: along a row (q, K) that is 32 bytes further, over rows (V) 2,048; only V has a
 * leading offset, from 64 columns to the next 64.
 *
 * ACCUMULATORS of m64nN: thread t has rows 16 * (t / 32) + t % 32 / 4 and that + 8; d[n][2 r + i] is row r of these,
 * column 8 n + 2 * (t % 4) + i. An A operand in registers has the same places for 16 columns.
 */
#ifndef SPANGATE_WGMMA_CUH
#define SPANGATE_WGMMA_CUH

#include "bulk_copies.cuh"
#include "mma.cuh"

__device__ __forceinline__ uint64 matrix_descriptor(uint32 address, uint32 leadingBytes) {
  return uint64(1) << 62 | uint64(1024 >> 4) << 32 | uint64(leadingBytes >> 4) << 16 | (address >> 4);
}

/* Byte of column d in a row of a tile, given the bytes of one half. */
__device__ __forceinline__ int tile_byte(int row, int d, int halfBytes) {
  return d / 64 * halfBytes + row * 128 + ((d / 8 ^ row) & 7) * 16;
}

/* Transposes among four lanes: each has one word of each of four groups; lane q gets all words of group q. */
__device__ __forceinline__ uint4 transpose_words(const uint32 (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  const uint32 r0 = __shfl_xor_sync(kAllLanes, odd ? v[0] : v[1], 1);
  const uint32 r1 = __shfl_xor_sync(kAllLanes, odd ? v[2] : v[3], 1);
  const uint32 u0 = odd ? r0 : v[0], u1 = odd ? v[1] : r0, u2 = odd ? r1 : v[2], u3 = odd ? v[3] : r1;
  const uint32 s0 = __shfl_xor_sync(kAllLanes, high ? u0 : u2, 2);
  const uint32 s1 = __shfl_xor_sync(kAllLanes, high ? u1 : u3, 2);
  return high ? make_uint4(s0, s1, u2, u3) : make_uint4(u0, u1, s0, s1);
}

/* Makes registers ready for products; also needed before the first product after other instructions wrote them. */
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Waits until at most N groups of products are still running. */
template <int N>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving reads and writes of `values` across this point. */
template <int N>
__device__ __forceinline__ void pin(float (&values)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    asm volatile("" : "+f"(values[n][0]), "+f"(values[n][1]), "+f"(values[n][2]), "+f"(values[n][3])::"memory");
  }
}

#define D4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define D16(d, n) D4(d, n), D4(d, n + 1), D4(d, n + 2), D4(d, n + 3)
#define D32(d) D16(d, 0), D16(d, 4)
#define D64(d) D32(d), D16(d, 8), D16(d, 12)
#define REGISTERS_32                                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64                                                                                              \
  REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
               "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/*
 * d [64][128] = a [64][16] b [128][16]^T, or += with `adds`; both in shared memory, each row along the summed
 * dimension.
 */
__device__ __forceinline__ void multiply_rows(float (&d)[16][4], uint64 a, uint64 b, bool adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" REGISTERS_64 "}, %64, %65, adds, 1, 1, 0, 0;\n}"
      : D64(d)
      : "l"(a), "l"(b), "r"(int(adds)));
}

/* The same product for b [64][16]. */
__device__ __forceinline__ void multiply_rows(float (&d)[8][4], uint64 a, uint64 b, bool adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32 "}, %32, %33, adds, 1, 1, 0, 0;\n}"
      : D32(d)
      : "l"(a), "l"(b), "r"(int(adds)));
}

/* d [64][N] += a [64][16] in registers, b [16][N] in shared memory; N is 128 or 64. */
__device__ __forceinline__ void multiply_columns(float (&d)[16][4], const uint32 *a, uint64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" REGISTERS_64
      "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : D64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void multiply_columns(float (&d)[8][4], const uint32 *a, uint64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
      : D32(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef D4
#undef D16
#undef D32
#undef D64
#undef REGISTERS_32
#undef REGISTERS_64

/* Loads and stores of shared memory by its address. */
__device__ __forceinline__ uint4 load_shared4(uint32 from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_shared4(uint32 to, const uint4 &x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ uint32 load_shared1(uint32 from) {
  uint32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ uint32 load_shared_byte(uint32 from) {
  uint32 x;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared1(uint32 to, uint32 x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
/* Sets the registers of a warpgroup's threads from here on; all of its warps must call it. */
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/* Makes a tensor map (128 bytes, worker/native/cuda/tensor-map.ts) visible that was written before this launch. */
__device__ __forceinline__ void acquire_tensor_map(const void *map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
/* Starts the copy of the map's box at (column, row); its bytes count for the barrier. */
__device__ __forceinline__ void copy_box(uint32 to, const void *map, int column, int row, uint32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

/* Orders what this thread wrote to shared memory, or waited for, before the reads of products that follow. */
__device__ __forceinline__ void order_before_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Numbered barriers among `threads` threads; threads that only arrive are counted too. */
__device__ __forceinline__ void meet(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void signal(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#endif
