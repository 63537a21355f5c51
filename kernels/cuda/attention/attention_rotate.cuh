/*
 * The q of a tile in a warp's registers, rotated for a slice (attention_plan.cuh, ROTATION). A lane remembers by which
 * position it rotated each row, and rotates a row again only when the offset changes.
 */
#ifndef SPANGATE_ATTENTION_TURN_CUH
#define SPANGATE_ATTENTION_TURN_CUH

#include "attention_walk.cuh"

/* A operands of 16 dimensions each. */
using Queries = uint32[kHeadDim / 16][4];

/* The packed rows g and g + 8 of a lane, g = lane / 4. */
struct LaneRows {
  int tileRow[2]; /* row of the tile; the lane with that number holds its values */
  int itemRow[2];
  const bf16 *q[2]; /* nullptr: padding */
  int position[2];
  int rotated[2]; /* by which position q was rotated last */
};
constexpr int kNotRotated = 0x80000000;

__device__ __forceinline__ LaneRows lane_rows(const PlanArguments &a, const PlanUnit &unit, int tile,
                                              const TileRow &tileRow) {
  LaneRows rows;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int packed = (threadIdx.x & 31) / 4 + 8 * r, of = packed / unit.headCount;
    const int row = __shfl_sync(kAllLanes, tileRow.row, of);
    const size_t head = size_t(row) * (a.queryHeads + 2 * a.kvHeads) + unit.firstHead + packed % unit.headCount;
    rows.tileRow[r] = of;
    rows.itemRow[r] = tile * unit.rowsPerTile + of;
    rows.q[r] = row < 0 ? nullptr : a.qkv + head * kHeadDim;
    rows.position[r] = __shfl_sync(kAllLanes, tileRow.position, of);
    rows.rotated[r] = kNotRotated;
  }
  return rows;
}

/* Rotates heads where both dimensions of each pair, i and i + kHeadDim / 2, lie in the same lane. */
__device__ __forceinline__ void rotate_row(int r, const bf16 *from, const float2 *rotations, bool isRotated,
                                           Queries &q) {
  constexpr int kHalf = kHeadDim / 16; /* groups of eight dimensions in half a head */
  const int column = (threadIdx.x & 3) * 2;
  uint32 low[kHalf], high[kHalf];
  float4 rotation[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; i++) {
    low[i] = *reinterpret_cast<const uint32 *>(from + i * 8 + column);
    high[i] = *reinterpret_cast<const uint32 *>(from + (i + kHalf) * 8 + column);
    rotation[i] = make_float4(1, 0, 1, 0);
    if (isRotated) rotation[i] = *reinterpret_cast<const float4 *>(rotations + i * 8 + column);
  }
#pragma unroll
  for (int i = 0; i < kHalf; i++) {
    const float x[2] = {low_float(low[i]), high_float(low[i])}, y[2] = {low_float(high[i]), high_float(high[i])};
    const float4 t = rotation[i];
    q[i / 2][i % 2 * 2 + r] = pack_bf16(x[0] * t.x - y[0] * t.y, x[1] * t.z - y[1] * t.w);
    const int j = i + kHalf;
    q[j / 2][j % 2 * 2 + r] = pack_bf16(y[0] * t.x + x[0] * t.y, y[1] * t.z + x[1] * t.w);
  }
}

/* Rotates heads of which RoPE rotates only a part: a pair may lie in two lanes. */
__device__ __forceinline__ void rotate_in_shared(const PlanArguments &a, const PlanUnit &unit, int tile,
                                               const TileRow &tileRow, const Step &step, bf16 *scratch, Queries &q) {
  const int offset = step.offsets[threadIdx.x % kTileRows];
  write_tile_queries<kStride>(a, unit, tile, tileRow, step, offset, scratch);
  __syncwarp();
#pragma unroll
  for (int d = 0; d < kHeadDim; d += 16) load_matrices(q[d / 16], scratch + row_fragment_offset() + d);
  __syncwarp();
}

/* Loads q of the rows that take part in the step's slice, rotated for it. */
__device__ __forceinline__ void rotate_queries(const PlanArguments &a, const PlanUnit &unit, int tile,
                                             const TileRow &tileRow, const Step &step, bf16 *scratch, LaneRows &rows,
                                             Queries &q) {
  if constexpr (kHeadDim > 128) {
    /* A lane that rotates a row of so long heads by itself would need more registers than there are. */
    rotate_in_shared(a, unit, tile, tileRow, step, scratch, q);
  } else {
    if (a.rotaryDim != 0 && a.rotaryDim != kHeadDim) {
      return rotate_in_shared(a, unit, tile, tileRow, step, scratch, q);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int inSlice = rows.itemRow[r] - step.firstRow;
      if (rows.q[r] == nullptr || inSlice < 0 || inSlice >= step.rowCount) continue;
      const int rotated = a.rotaryDim == 0 ? 0 : rows.position[r] - step.offsets[rows.tileRow[r]];
      if (rotated == rows.rotated[r]) continue;
      rows.rotated[r] = rotated;
      rotate_row(r, rows.q[r], a.rotations + (long long)rotated * (kHeadDim / 2), a.rotaryDim != 0, q);
    }
    __syncwarp();
  }
}

#endif
