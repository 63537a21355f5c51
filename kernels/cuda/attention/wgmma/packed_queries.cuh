/*
 * The warps of attention_packed_wgmma.cu that write q. There are two tiles of q in shared memory: while one is read,
 * the other is rotated for the slices that come next. The `rotation` of a slice says by how much each row of the item
 * is rotated for that slice and those after it, up to the next slice that has a `rotation`.
 */
#ifndef SPANGATE_PACKED_QUERIES_CUH
#define SPANGATE_PACKED_QUERIES_CUH

#include "packed_ring.cuh"
#include "query_tile.cuh"

/* One number for each row of an item; a lane holds those of rows `lane` and lane + 32. */
struct RowValues {
  static constexpr int kCount = kItemTiles * kTileRows / 32;
  int of[kCount];

  __device__ __forceinline__ static int row(int i) { return int(threadIdx.x & 31) + 32 * i; }

  /* The number of row r, where each lane may ask for another row. */
  __device__ __forceinline__ int at(int r) const {
    int found = 0;
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const int value = __shfl_sync(kAllLanes, of[i], r & 31);
      if (r >> 5 == i) found = value;
    }
    return found;
  }
};

class QueryWriter {
 public:
  __device__ __forceinline__ QueryWriter(const PlanArguments &a, uint32 shared, int warp)
      : a(a), shared(shared), queries(a), firstTile(warp) {}

  __device__ __forceinline__ void write_all() {
    UnitWalk units(a);
#pragma unroll 1
    for (bool isFirst = true; !units.done(); units.visit++) {
      const PlanUnit unit = plan_unit_at(a, units.index());
#pragma unroll
      for (int i = 0; i < RowValues::kCount; i++) {
        const int r = RowValues::row(i);
        rows.of[i] = r < unit.item.rowCount ? a.rows[unit.item.firstRow + r].row : -1;
      }
#pragma unroll
      for (int i = 0; i < RowValues::kCount; i++) positions.of[i] = rows.of[i] < 0 ? 0 : a.positions[rows.of[i]];
      if (isFirst) wait_for_previous(); /* the plan was written before that kernel began */
      isFirst = false;
      write_unit(unit);
    }
  }

 private:
  const PlanArguments &a;
  uint32 shared;
  QueryTile queries;
  int firstTile; /* the first of the warp's tiles, which are kQueryWarps apart; it changes with each write */
  RowValues rows, positions;
  RingPlace<2> ring;

  /* @param rotation of a slice (attention_plan.cuh) */
  __device__ __forceinline__ void load_offsets(RowValues &offsets, int rotation) const {
    int from = 0, end = kItemTiles * kTileRows;
    const int *first = a.offsets + rotation - 1;
    if (rotation < 0) {
      first = a.offsets - rotation - 1;
      const int ends = *first;
      from = ends & 0xffff, end = ends >> 16, first += 1 - from;
    }
#pragma unroll
    for (int i = 0; i < RowValues::kCount; i++) {
      const int r = RowValues::row(i);
      offsets.of[i] = kNotRead;
      if (rows.of[i] < 0) continue;
      if (a.rotaryDim == 0) {
        offsets.of[i] = positions.of[i];
      } else if (r >= from && r < end) {
        offsets.of[i] = first[r];
      }
    }
  }

  __device__ __forceinline__ void write_unit(const PlanUnit &unit) {
#pragma unroll 1
    for (int batch = 0; batch < unit.item.sliceCount; batch += 32) {
      const int at = batch + int(threadIdx.x & 31);
      const int place = at < unit.item.sliceCount ? a.slices[unit.item.firstSlice + at].rotation : 0;
      uint32 left = __ballot_sync(kAllLanes, place != 0);
      if (left == 0) continue;
      RowValues next;
      load_offsets(next, __shfl_sync(kAllLanes, place, __ffs(left) - 1));
#pragma unroll 1
      while (left != 0) {
        const RowValues offsets = next;
        left &= left - 1;
        /* These loads run while q is rotated by the offsets before. */
        if (left != 0) load_offsets(next, __shfl_sync(kAllLanes, place, __ffs(left) - 1));
        write_tiles(unit, offsets);
        if (a.rotaryDim == 0) return; /* without RoPE one q serves all slices */
      }
    }
  }

  __device__ __forceinline__ void write_tiles(const PlanUnit &unit, const RowValues &offsets) {
    RowValues rotated; /* row of the table of rotations, or kNotRead */
#pragma unroll
    for (int i = 0; i < RowValues::kCount; i++) {
      rotated.of[i] = offsets.of[i] == kNotRead ? kNotRead : positions.of[i] - offsets.of[i];
    }
    int tile = firstTile;
    firstTile = firstTile == 0 ? kQueryWarps - 1 : firstTile - 1;
#pragma unroll 1
    do {
      write_tile(unit, rotated, tile);
      tile += kQueryWarps;
    } while (tile < unit.tileCount);
    order_before_products();
    barrier_arrive(shared + kQueryFullAt + ring.slot * 8);
    ring.advance();
  }

  /* A warp whose tile does not exist waits as well, or it would run ahead of the others. */
  __device__ __forceinline__ void write_tile(const PlanUnit &unit, const RowValues &rotated, int tile) {
    const uint32 to = shared + ring.slot * kTileBytes + tile * kTileRows * 128;
    const int first = tile * unit.rowsPerTile;
    const bool exists = tile < unit.tileCount;
    const auto ready = [&] { barrier_wait(shared + kQueryEmptyAt + ring.slot * 8, ring.parity ^ 1); };
    if (QueryTile::is_alike(unit)) {
      const auto rowAt = [&](int r) {
        const int at = (first + r) & 31;
        const int row = __shfl_sync(kAllLanes, rows.of[0], at);
        return TurnedRow{exists ? row : -1, __shfl_sync(kAllLanes, rotated.of[0], at)};
      };
      queries.write<1, kHalfBytes>(unit, to, rowAt, ready);
    } else {
      const auto rowAt = [&](int r) {
        const int at = (first + r) % (kItemTiles * kTileRows), row = rows.at(at);
        return TurnedRow{exists ? row : -1, rotated.at(at)};
      };
      queries.write<QueryTile::kRows, kHalfBytes>(unit, to, rowAt, ready);
    }
  }
};

#endif
