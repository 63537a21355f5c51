/*
 * The warps of attention_packed_wgmma.cu that write q. Of the two tiles of q in shared memory one is read while the other
 * is turned for the slices that come next: `turns` of a slice says by what each row of the item is turned for it and those
 * that follow, up to the next slice that has `turns`.
 */
#ifndef SPANGATE_PACKED_QUERIES_CUH
#define SPANGATE_PACKED_QUERIES_CUH

#include "packed_ring.cuh"

/* A number of each row of an item: of row `lane`, of row lane + 32. */
struct RowValues {
  static constexpr int kCount = kItemTiles * kTileRows / 32;
  int of[kCount];

  __device__ __forceinline__ static int row(int i) { return int(threadIdx.x & 31) + 32 * i; }

  /* Of row r, another one for each lane. */
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

/*
 * A lane has sixteen dimensions, from `first` and from `second` on eight each, of kRows packed rows that follow each other:
 * most often these are heads of one row, and so turned alike.
 */
class QueryWriter {
 public:
  __device__ __forceinline__ QueryWriter(const PlanArguments &a, uint32 shared, int warp)
      : a(a), shared(shared), firstTile(warp) {
    /* Pairs are (i, i + rotaryDim / 2); rotaryDim is a multiple of 16. */
    const int part = int(threadIdx.x & 31) % kLanes, turning = a.rotaryDim / 16;
    turns = part < turning;
    first = turns ? part * 8 : turning * 16 + (part - turning) * 16;
    second = first + (turns ? a.rotaryDim / 2 : 8);
  }

  __device__ __forceinline__ void write_all() {
    UnitWalk units(a);
#pragma unroll 1
    for (bool isFirst = true; !units.done(); units.round++) {
      const PlanUnit unit = plan_unit_at(a, units.index());
#pragma unroll
      for (int i = 0; i < RowValues::kCount; i++) {
        const int r = RowValues::row(i);
        rows.of[i] = r < unit.item.rowCount ? a.rows[unit.item.firstRow + r].row : -1;
      }
#pragma unroll
      for (int i = 0; i < RowValues::kCount; i++) positions.of[i] = rows.of[i] < 0 ? 0 : a.positions[rows.of[i]];
      if (isFirst) wait_for_previous(); /* what the plan says is older */
      isFirst = false;
      write_unit(unit);
    }
  }

 private:
  static constexpr int kLanes = kHeadDim / 16, kRows = kTileRows * kLanes / 32;

  const PlanArguments &a;
  uint32 shared;
  int first, second;
  bool turns;
  int firstTile; /* the warp has this tile and every kQueryWarps-th after it, other ones each time */
  RowValues rows, positions;
  RingPlace<2> ring;

  /* `turns`: of a slice (attention_plan.cuh) */
  __device__ __forceinline__ void load_offsets(RowValues &offsets, int turns) const {
    int from = 0, end = kItemTiles * kTileRows;
    const int *first = a.offsets + turns - 1;
    if (turns < 0) {
      first = a.offsets - turns - 1;
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
      const int place = at < unit.item.sliceCount ? a.slices[unit.item.firstSlice + at].turns : 0;
      uint32 left = __ballot_sync(kAllLanes, place != 0);
      if (left == 0) continue;
      RowValues next;
      load_offsets(next, __shfl_sync(kAllLanes, place, __ffs(left) - 1));
#pragma unroll 1
      while (left != 0) {
        const RowValues offsets = next;
        left &= left - 1;
        /* They come while q is turned by those before. */
        if (left != 0) load_offsets(next, __shfl_sync(kAllLanes, place, __ffs(left) - 1));
        write_tiles(unit, offsets);
        if (a.rotaryDim == 0) return; /* once for all slices */
      }
    }
  }

  __device__ __forceinline__ void write_tiles(const PlanUnit &unit, const RowValues &offsets) {
    RowValues turned; /* row of the table of turns, or kNotRead */
#pragma unroll
    for (int i = 0; i < RowValues::kCount; i++) {
      turned.of[i] = offsets.of[i] == kNotRead ? kNotRead : positions.of[i] - offsets.of[i];
    }
    int tile = firstTile;
    firstTile = firstTile == 0 ? kQueryWarps - 1 : firstTile - 1;
#pragma unroll 1
    do {
      write_tile(unit, turned, tile);
      tile += kQueryWarps;
    } while (tile < unit.tileCount);
    order_before_products();
    barrier_arrive(shared + kQueryFullAt + ring.slot * 8);
    ring.advance();
  }

  /* Warps whose tile does not exist wait as well, or they would run ahead of the others. */
  __device__ __forceinline__ void write_tile(const PlanUnit &unit, const RowValues &allTurned, int tile) {
    const int inverse = (65536 + unit.headCount - 1) / unit.headCount;
    const int firstRow = int(threadIdx.x & 31) / kLanes * kRows;
    int places[kRows], turned[kRows];
#pragma unroll
    for (int j = 0; j < kRows; j++) {
      const int r = (firstRow + j) * inverse >> 16, head = unit.firstHead + firstRow + j - r * unit.headCount;
      const int itemRow = (tile * unit.rowsPerTile + r) % (kItemTiles * kTileRows), row = rows.at(itemRow);
      turned[j] = allTurned.at(itemRow);
      if (r >= unit.rowsPerTile || tile >= unit.tileCount || row < 0) turned[j] = kNotRead;
      places[j] = turned[j] == kNotRead ? 0 : row * (a.queryHeads + 2 * a.kvHeads) + head;
    }
    /* Without conditions, so that no load waits for another. */
    uint4 x[kRows], y[kRows];
#pragma unroll
    for (int j = 0; j < kRows; j++) {
      x[j] = *reinterpret_cast<const uint4 *>(a.qkv + size_t(places[j]) * kHeadDim + first);
      y[j] = *reinterpret_cast<const uint4 *>(a.qkv + size_t(places[j]) * kHeadDim + second);
    }
    float4 turn[4] = {}; /* (cos, sin) of two pairs each */
    if (turns) load_turn(turn, turned[0] == kNotRead ? 0 : turned[0]);
    const uint32 to = shared + ring.slot * kTileBytes + tile * kTileRows * 128;
    barrier_wait(shared + kQueryEmptyAt + ring.slot * 8, ring.parity ^ 1);
#pragma unroll
    for (int j = 0; j < kRows; j++) {
      if (turned[j] == kNotRead) continue;
      if (turns) {
        if (j > 0 && turned[j] != turned[j - 1]) load_turn(turn, turned[j]);
        turn_pairs(x[j].x, y[j].x, turn[0]);
        turn_pairs(x[j].y, y[j].y, turn[1]);
        turn_pairs(x[j].z, y[j].z, turn[2]);
        turn_pairs(x[j].w, y[j].w, turn[3]);
      }
      store_shared4(to + tile_byte(firstRow + j, first, kHalfBytes), x[j]);
      store_shared4(to + tile_byte(firstRow + j, second, kHalfBytes), y[j]);
    }
  }

  __device__ __forceinline__ void load_turn(float4 (&turn)[4], int turned) const {
    const float2 *from = a.turns + (long long)turned * (a.rotaryDim / 2) + first;
#pragma unroll
    for (int i = 0; i < 4; i++) turn[i] = *reinterpret_cast<const float4 *>(from + 2 * i);
  }
};

#endif
