/*
 * The four warps of attention_wgmma.cu that write q, each for two tiles of 16 packed rows. Of the two tiles of q in
 * shared memory one is read while the other is turned for the next slice.
 */
#ifndef SPANGATE_WGMMA_QUERIES_CUH
#define SPANGATE_WGMMA_QUERIES_CUH

#include "wgmma_ring.cuh"

/*
 * Rows of an item in the lanes of a warp that writes q: of its two tiles of 16 packed rows, those of the first in lanes
 * 0 to 15, of the second in 16 to 31.
 */
struct QueryRow {
  int itemRow, row, position; /* row of the step; -1: none */
  int turned;                 /* row of the table of turns, or kAbsent: takes no part in the slice */

  __device__ __forceinline__ void load(const PlanArguments &a, const PlanUnit &unit, int warp) {
    const int lane = threadIdx.x & 31, inTile = lane % kTileRows;
    itemRow = (warp + lane / kTileRows * kQueryWarps) * unit.rowsPerTile + inTile;
    const bool exists = inTile < unit.rowsPerTile && itemRow < unit.item.rowCount;
    row = exists ? a.rows[unit.item.firstRow + itemRow].row : -1;
    position = exists ? a.positions[row] : 0;
  }
  __device__ __forceinline__ void enter_slice(const PlanArguments &a, const PlanSlice &slice) {
    const int i = itemRow - slice.firstRow;
    turned = row < 0 ? kAbsent : 0;
    if (a.rotaryDim == 0 || row < 0) return;
    turned = i >= 0 && i < slice.rowCount ? position - a.offsets[slice.firstOffset + i] : kAbsent;
  }

  static constexpr int kAbsent = 1 << 31;
};
static_assert(2 * kQueryWarps * kTileRows == kPackedRows, "a warp that writes q has two tiles");

/* Sixteen dimensions of a packed row on their way through a lane: from `first` and from `second` on, eight each. */
struct QueryPart {
  uint4 x, y;
  float4 turn[4]; /* (cos, sin) of two pairs each */
  int packed;     /* -1: none */

  /* @param group of rows that lanes take together: kAtOnce packed rows of one of the warp's tiles */
  __device__ __forceinline__ void load(const PlanArguments &a, const PlanUnit &unit, const QueryRow &own, int warp,
                                       int group, int first, int second, bool turns) {
    const int tile = group / kGroups, inTile = group % kGroups * kAtOnce + int(threadIdx.x & 31) / kParts;
    const int inverse = (65536 + unit.headCount - 1) / unit.headCount, r = inTile * inverse >> 16;
    const int from = min(tile * kTileRows + r, 31), head = unit.firstHead + inTile - r * unit.headCount;
    const int row = __shfl_sync(kAllLanes, own.row, from), turned = __shfl_sync(kAllLanes, own.turned, from);
    const bool exists = r < unit.rowsPerTile && turned != QueryRow::kAbsent;
    packed = exists ? (warp + tile * kQueryWarps) * kTileRows + inTile : -1;
    /* Rows that do not exist read the first one: without conditions no load waits for another. */
    const size_t place = exists ? size_t(row) * (a.queryHeads + 2 * a.kvHeads) + head : 0;
    const bf16 *q = a.qkv + place * kHeadDim;
    x = *reinterpret_cast<const uint4 *>(q + first);
    y = *reinterpret_cast<const uint4 *>(q + second);
    if (!turns) return;
    const float2 *from0 = a.turns + (long long)(exists ? turned : 0) * (a.rotaryDim / 2) + first;
#pragma unroll
    for (int i = 0; i < 4; i++) turn[i] = *reinterpret_cast<const float4 *>(from0 + 2 * i);
  }

  __device__ __forceinline__ void store(uint32 tile, int first, int second, bool turns) {
    if (packed < 0) return;
    if (turns) {
      turn_pairs(x.x, y.x, turn[0]);
      turn_pairs(x.y, y.y, turn[1]);
      turn_pairs(x.z, y.z, turn[2]);
      turn_pairs(x.w, y.w, turn[3]);
    }
    store_shared4(tile + tile_byte(packed, first, kHalfBytes), x);
    store_shared4(tile + tile_byte(packed, second, kHalfBytes), y);
  }

  /* Lanes of a packed row, packed rows at once, groups of these in a tile of 16. */
  static constexpr int kParts = kHeadDim / 16, kAtOnce = 32 / kParts, kGroups = kTileRows / kAtOnce;
};

/* The warps that write q; `warp` counts them. One tile of q for each slice, or for each unit without RoPE. */
__device__ __forceinline__ void write_queries(const PlanArguments &a, uint32 shared, int warp) {
  /* Pairs are (i, i + rotaryDim / 2); rotaryDim is a multiple of 16. */
  const int part = int(threadIdx.x & 31) % QueryPart::kParts, turning = a.rotaryDim / 16;
  const bool turns = part < turning;
  const int first = turns ? part * 8 : turning * 16 + (part - turning) * 16;
  const int second = first + (turns ? a.rotaryDim / 2 : 8);
  RingPlace<2> ring;
  for (UnitWalk units(a); !units.done(); units.round++) {
    const PlanUnit unit = plan_unit_at(a, units.index());
    QueryRow own;
    own.load(a, unit, warp);
    const int count = a.rotaryDim == 0 ? min(unit.item.sharedSlices, 1) : unit.item.sharedSlices;
#pragma unroll 1
    for (int s = 0; s < count; s++) {
      own.enter_slice(a, a.slices[unit.item.firstSlice + s]);
      const uint32 tile = shared + ring.slot * kTileBytes;
      barrier_wait(shared + kQueryEmptyAt + ring.slot * 8, ring.parity ^ 1);
#pragma unroll 1
      for (int group = 0; group < 2 * QueryPart::kGroups; group += 2) {
        if ((warp + group / QueryPart::kGroups * kQueryWarps) >= unit.tileCount) break;
        QueryPart parts[2]; /* their loads do not wait for each other */
#pragma unroll
        for (int i = 0; i < 2; i++) parts[i].load(a, unit, own, warp, group + i, first, second, turns);
#pragma unroll
        for (int i = 0; i < 2; i++) parts[i].store(tile, first, second, turns);
      }
      order_before_products();
      barrier_arrive(shared + kQueryFullAt + ring.slot * 8);
      ring.advance();
    }
  }
}

#endif
