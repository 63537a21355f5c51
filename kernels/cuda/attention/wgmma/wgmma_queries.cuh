/*
 * The four warps of attention_wgmma.cu that write q, each for two tiles of 16 packed rows. There are two tiles of q in
 * shared memory: while one is read, the other is rotated for the next slice.
 */
#ifndef SPANGATE_WGMMA_QUERIES_CUH
#define SPANGATE_WGMMA_QUERIES_CUH

#include "query_tile.cuh"
#include "wgmma_ring.cuh"

/*
 * The rows of an item, as the lanes of a warp that writes q hold them: lanes 0 to 15 have the rows of the first of its
 * two tiles of 16 packed rows, lanes 16 to 31 those of the second.
 */
struct QueryRow {
  int itemRow, row, position; /* row of the step, or -1: none */
  int rotated;                 /* row of the table of rotations, or kNotRead: takes no part in the slice */

  __device__ __forceinline__ void load(const PlanArguments &a, const PlanUnit &unit, int warp) {
    const int lane = threadIdx.x & 31, inTile = lane % kTileRows;
    itemRow = (warp + lane / kTileRows * kQueryWarps) * unit.rowsPerTile + inTile;
    const bool exists = inTile < unit.rowsPerTile && itemRow < unit.item.rowCount;
    row = exists ? a.rows[unit.item.firstRow + itemRow].row : -1;
    position = exists ? a.positions[row] : 0;
  }
  __device__ __forceinline__ void enter_slice(const PlanArguments &a, const PlanSlice &given) {
    const LargeSlice slice(given);
    const int i = itemRow - slice.firstRow;
    rotated = row < 0 ? kNotRead : 0;
    if (a.rotaryDim == 0 || row < 0) return;
    rotated = i >= 0 && i < slice.rowCount ? position - a.offsets[slice.firstOffset + i] : kNotRead;
  }
};
static_assert(2 * kQueryWarps * kTileRows == kPackedRows, "a warp that writes q has two tiles");

/*
 * The warps that write q, numbered by `warp`. They write one tile of q for each slice; without RoPE, one for each unit.
 */
class QueryWriter {
 public:
  __device__ __forceinline__ QueryWriter(const PlanArguments &a, uint32 shared, int warp)
      : a(a), shared(shared), warp(warp), queries(a) {}

  __device__ __forceinline__ void write_all() {
#pragma unroll 1
    for (UnitWalk units(a); !units.done(); units.visit++) write_unit(plan_unit_at(a, units.index()));
  }

 private:
  const PlanArguments &a;
  uint32 shared;
  int warp;
  QueryTile queries;
  RingPlace<2> ring;

  __device__ __forceinline__ void write_unit(const PlanUnit &unit) {
    const int count = a.rotaryDim == 0 ? min(unit.item.sharedSlices, 1) : unit.item.sharedSlices;
    if (count == 0) return;
    QueryRow own;
    own.load(a, unit, warp);
    const PlanSlice *slices = a.slices + unit.item.firstSlice;
    own.enter_slice(a, slices[0]);
    /* A slice's words are loaded two slices ahead, its offsets one slice ahead. */
    PlanSlice next = slices[min(1, count - 1)];
#pragma unroll 1
    for (int s = 0; s < count; s++) {
      const int rotated = own.rotated;
      own.enter_slice(a, next);
      next = slices[min(s + 2, count - 1)];
#pragma unroll
      for (int tile = 0; tile < 2; tile++) write_tile(unit, own.row, rotated, tile);
      order_before_products();
      barrier_arrive(shared + kQueryFullAt + ring.slot * 8);
      ring.advance();
    }
  }

  /* @param tile 0 or 1: which of the warp's two @param row, rotated as in the lane's QueryRow */
  __device__ __forceinline__ void write_tile(const PlanUnit &unit, int row, int rotated, int tile) {
    const int itemTile = warp + tile * kQueryWarps;
    const uint32 to = shared + ring.slot * kTileBytes + itemTile * kTileRows * 128;
    const auto ready = [&] { barrier_wait(shared + kQueryEmptyAt + ring.slot * 8, ring.parity ^ 1); };
    const auto rowAt = [&](int r) {
      const int at = tile * kTileRows + min(r, kTileRows - 1);
      return TurnedRow{__shfl_sync(kAllLanes, row, at), __shfl_sync(kAllLanes, rotated, at)};
    };
    if (tile > 0 && itemTile >= unit.tileCount) return;
    if (QueryTile::is_alike(unit)) {
      queries.write<1, kHalfBytes>(unit, to, rowAt, ready);
    } else {
      queries.write<QueryTile::kRows, kHalfBytes>(unit, to, rowAt, ready);
    }
  }
};

#endif
