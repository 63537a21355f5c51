/*
 * Products of a warpgroup over 8-bit floats (e4m3); sm_90a alone. Tiles are rows of 128 bytes with the 128-byte swizzle,
 * as wgmma.cuh has them, and so are descriptors and accumulators; a product takes 32 of the summed dimension, which are
 * 32 bytes further along a row.
 */
#ifndef SPANGATE_WGMMA_E4M3_CUH
#define SPANGATE_WGMMA_E4M3_CUH

#include "wgmma.cuh"

#define D4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define D8(d, n) D4(d, n), D4(d, n + 1)
#define D16(d, n) D8(d, n), D8(d, n + 2)

/* d [64][8] = a [64][32] b [8][32]^T, or += with `adds`; both in shared memory. */
__device__ __forceinline__ void multiply_bytes(float (&d)[1][4], uint64 a, uint64 b, bool adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, adds, 1, 1;\n}"
      : D4(d, 0)
      : "l"(a), "l"(b), "r"(int(adds)));
}

/* The same for b [16][32], [32][32] and [64][32]. */
__device__ __forceinline__ void multiply_bytes(float (&d)[2][4], uint64 a, uint64 b, bool adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, adds, 1, 1;\n}"
      : D8(d, 0)
      : "l"(a), "l"(b), "r"(int(adds)));
}

__device__ __forceinline__ void multiply_bytes(float (&d)[4][4], uint64 a, uint64 b, bool adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, %16, %17, adds, 1, 1;\n}"
      : D16(d, 0)
      : "l"(a), "l"(b), "r"(int(adds)));
}

__device__ __forceinline__ void multiply_bytes(float (&d)[8][4], uint64 a, uint64 b, bool adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, adds, "
      "1, 1;\n}"
      : D16(d, 0), D16(d, 4)
      : "l"(a), "l"(b), "r"(int(adds)));
}

#undef D4
#undef D8
#undef D16

#endif
