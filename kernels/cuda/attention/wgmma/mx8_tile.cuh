/* Rows of K or V in mx8 to a tile of bf16 in shared memory (wgmma.cuh), for the warpgroup kernels. */
#ifndef SPANGATE_MX8_TILE_CUH
#define SPANGATE_MX8_TILE_CUH

#include "attention_plan.cuh"
#include "mx8.cuh"
#include "wgmma.cuh"

/* Where shared memory has the numbers and the scales of 16 tokens' K or V. */
struct Mx8Rows {
  uint32 numbers, scales;
};

/*
 * A warp writes 16 rows of a tile, the first in row `firstRow`, a multiple of 16. Row r is that of token start + r; those
 * outside [from, end) become zeros. Token numbers past 15 are read as 15: such rows are outside, or masked later.
 *
 * A lane has 16 values at a time. Eight lanes have the halves of two neighbouring rows, one of each, so that they meet
 * neither in the banks that they read nor in those that they write: the swizzle gives the even vectors of one row the
 * places of the other's odd ones.
 */
template <int kTileHalfBytes>
__device__ __forceinline__ void write_mx8_rows(uint32 tile, int firstRow, const Mx8Rows &rows, int start, int from,
                                               int end) {
  constexpr int kTileHalves = kHeadDim / 64, kGroups = kHeadDim / kMx8Group;
  const int lane = threadIdx.x & 31, column = lane % 4;
#pragma unroll
  for (int i = 0; i < 2 * kTileHalves; i++) {
    const int r = i / kTileHalves * 8 + lane / 4;
    const int half = kTileHalves == 2 ? (lane / 4 ^ i) & 1 : 0;
    const int token = min(start + r, kMx8PartTokens - 1), d = half * 64 + column * 16;
    const uint4 numbers = load_shared4(rows.numbers + token * kHeadDim + d);
    const uint32 power = mx8_power(load_shared_byte(rows.scales + token * kGroups + d / kMx8Group));
    uint4 low = mx8_eight(numbers.x, numbers.y, power), high = mx8_eight(numbers.z, numbers.w, power);
    if (r < from || r >= end) low = high = make_uint4(0, 0, 0, 0);
    const int row = firstRow + r;
    const uint32 to = tile + half * kTileHalfBytes + row * 128;
    store_shared4(to + ((2 * column ^ row) & 7) * 16, low);
    store_shared4(to + ((2 * column + 1 ^ row) & 7) * 16, high);
  }
}

#endif
