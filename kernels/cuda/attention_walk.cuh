/*
 * A warp's walk over the units of its thread block, and the ring of shared memory that it fills as it walks.
 *
 * A step is up to 16 tokens for a warp. Steps of shared slices are cooperative: each warp copies a quarter of a tile of
 * 64 tokens, and all warps read all of it. Steps of private slices belong to one tile, whose warps take turns. The walk
 * runs ahead of the use, across slices and units, so that copies are always under way; each step leaves a record beside
 * its tokens for when it is used.
 */
#ifndef SPANGATE_ATTENTION_WALK_CUH
#define SPANGATE_ATTENTION_WALK_CUH

#include "attention_plan.cuh"

constexpr int kWarps = 4;
constexpr int kStepTokens = 16, kSharedTokens = kStepTokens * kWarps;
/* Rows in shared memory are 16 bytes longer: an odd number of 16-byte chunks, so eight rows lie in different banks. */
constexpr int kStride = kHeadDim + 8;
constexpr int kPartSize = kStepTokens * kStride, kSlotSize = 2 * kPartSize; /* K, then V */
constexpr int kMaxSlots = 3;

/* What a warp does in a unit: one of the `size` warps of a tile; no tile: it copies only. */
struct Team {
  int tile, size, part;
};

__device__ __forceinline__ Team team_of(const PlanUnit &unit) {
  const int warp = threadIdx.x >> 5;
  if (unit.tileCount == 1) return {0, 4, warp};
  if (unit.tileCount == 2) return {warp >> 1, 2, warp & 1};
  return {warp, 1, 0};
}

struct alignas(16) Step {
  int unit;     /* number of the block's unit; kNoUnit: the walk is over */
  int isShared;
  int index;    /* of the slice in the item */
  int token;    /* in the slice: first of the step, or of all four warps' steps of a shared slice */
  int tokenCount, firstRow, rowCount, firstVisible; /* of the slice */
  int offsets[kTileRows]; /* of the rows of the warp's tile */
};
constexpr int kNoUnit = 0x7fffffff;

/* Unit `turn` of the thread block: the order is turned round each time, as units are sorted by their work. */
__device__ __forceinline__ int unit_index(int turn) {
  return turn * gridDim.x + (turn & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

/* Reads the thread block's units in order, each item while the unit before is at work. */
class UnitReader {
 public:
  /* items must have room for the first unit of every thread block, as it is read before their number is known. */
  __device__ __forceinline__ explicit UnitReader(const PlanArguments &a) : parts(a.kvHeads * chunks_of_group(a)) {
    fetch(a, 0);
    unitCount = *a.itemCount * parts;
  }

  __device__ __forceinline__ bool has(int turn) const { return unit_index(turn) < unitCount; }

  /* To be asked for 0, 1, 2 ... */
  __device__ __forceinline__ PlanUnit read(const PlanArguments &a, int turn) {
    const auto of = [&](int i) { return __shfl_sync(kAllLanes, word, i); };
    const PlanItem item = {of(0), of(1), of(2), of(3), of(4), of(5), {0, 0}};
    if (has(turn + 1)) fetch(a, turn + 1);
    return plan_unit(a, item, unit_index(turn) % parts);
  }

 private:
  int parts, unitCount;
  int word; /* word `lane` of the next unit's item */

  __device__ __forceinline__ void fetch(const PlanArguments &a, int turn) {
    word = reinterpret_cast<const int *>(a.items + unit_index(turn) / parts)[threadIdx.x & 7];
  }
};

class Walk {
 public:
  __device__ __forceinline__ explicit Walk(const PlanArguments &a)
      : reader(a), turn(-1), left(0), batch(0), sliceCount(0), hasSlice(false) {}

  /* The next step, copied into a slot of the ring. What the plan says of the first is read before `isFirst` waits. */
  __device__ __forceinline__ void load_step(const PlanArguments &a, bf16 *slot, Step *record, bool isFirst) {
    seek(a);
    const int lane = threadIdx.x & 31;
    const int part = token + (isShared ? int(threadIdx.x >> 5) * kStepTokens : 0);
    const int valid = min(slice.tokenCount - part, kStepTokens); /* not above 0: all of it is past the end */
    const int start = slice.firstToken + (valid > 0 ? part : 0);
    if (turn != kNoUnit) fetch_ids(a, start, start + max(valid, 1) - 1);
    if (isFirst) wait_for_previous();
    if (lane == 0) {
      int4 *words = reinterpret_cast<int4 *>(record);
      words[0] = make_int4(turn, isShared, batch + current, token);
      words[1] = make_int4(slice.tokenCount, slice.firstRow, slice.rowCount, slice.firstVisible);
    }
    if (turn != kNoUnit) {
      if (lane < rowsPerTile) copy_word(record->offsets + lane, offset_at(a, slice, tile * rowsPerTile + lane));
      copy_tokens(a, slot, start, valid);
      token += isShared ? kSharedTokens : kStepTokens;
    }
    commit_copies();
  }

 private:
  UnitReader reader;
  int turn;
  int kvHead, tile, teamSize, teamPart, rowsPerTile, firstSlice, sharedSlices, sliceCount;
  int batch;         /* slices are held 32 at a time, one a lane */
  int4 low, high;    /* the lane's slice */
  uint32 left;       /* slices of the batch that are this warp's and not walked, the current one first */
  bool hasSlice;     /* in a slice, which is lane `current`'s: */
  int current;
  PlanSlice slice;
  bool isShared;
  int token, taken;  /* next token of the slice; private steps of the tile so far, modulo the team's size */
  int window, id;    /* block ids are held 32 at a time: place of the first in the slice, and the lane's */

  __device__ __forceinline__ PlanSlice slice_of(int lane) const {
    const auto of = [&](int word) { return __shfl_sync(kAllLanes, word, lane); };
    return {of(low.x), of(low.y), of(low.z), of(low.w), of(high.x), of(high.y), of(high.z), 0};
  }

  /* Goes to the next step. */
  __device__ __forceinline__ void seek(const PlanArguments &a) {
    while (turn != kNoUnit) {
      if (hasSlice && token < slice.tokenCount) {
        if (isShared) return;
        const bool isOurs = taken == teamPart;
        taken = taken + 1 == teamSize ? 0 : taken + 1;
        if (isOurs) return;
        token += kStepTokens;
        continue;
      }
      if (hasSlice) left &= left - 1;
      hasSlice = left != 0;
      if (hasSlice) {
        current = __ffs(left) - 1;
        slice = slice_of(current);
        isShared = batch + current < sharedSlices;
        token = 0, window = -1;
      } else if (batch + 32 < sliceCount) {
        batch += 32;
        enter_batch(a);
      } else {
        enter_unit(a);
      }
    }
  }

  __device__ __forceinline__ void enter_unit(const PlanArguments &a) {
    turn++;
    if (!reader.has(turn)) {
      turn = kNoUnit;
      return;
    }
    const PlanUnit unit = reader.read(a, turn);
    const Team team = team_of(unit);
    kvHead = unit.kvHead, rowsPerTile = unit.rowsPerTile;
    tile = team.tile, teamSize = team.size, teamPart = team.part;
    firstSlice = unit.item.firstSlice, sliceCount = unit.item.sliceCount;
    sharedSlices = unit.tileCount == 1 ? 0 : unit.item.sharedSlices;
    batch = 0, taken = 0;
    enter_batch(a);
  }

  __device__ __forceinline__ void enter_batch(const PlanArguments &a) {
    const int at = batch + (threadIdx.x & 31);
    bool isOurs = at < sliceCount;
    if (isOurs) {
      const int4 *words = reinterpret_cast<const int4 *>(a.slices + firstSlice + at);
      low = words[0], high = words[1];
      isOurs = at < sharedSlices || high.x / rowsPerTile == tile;
    }
    left = __ballot_sync(kAllLanes, isOurs);
  }

  /* Ids of the blocks of the slice's tokens `first` to `last`, counted from its first block. */
  __device__ __forceinline__ void fetch_ids(const PlanArguments &a, int first, int last) {
    const int shift = 31 - __clz(a.blockTokens);
    if (window >= 0 && first >> shift >= window && last >> shift < window + 32) return;
    window = first >> shift;
    const int end = (slice.firstToken + slice.tokenCount - 1) >> shift;
    id = a.blockIds[slice.block + min(window + int(threadIdx.x & 31), end)];
  }

  /* Starts the copies of 16 tokens' K and V, `valid` of them from `start` on; the others become zeros. */
  __device__ __forceinline__ void copy_tokens(const PlanArguments &a, bf16 *slot, int start, int valid) const {
    const int lane = threadIdx.x & 31, shift = 31 - __clz(a.blockTokens), within = a.blockTokens - 1;
    const size_t valuesAt = kHeadDim << shift;
    if (valid == kStepTokens && (start & within) + kStepTokens <= a.blockTokens) {
      /* In one block they lie one after the other. */
      const size_t head = size_t(__shfl_sync(kAllLanes, id, (start >> shift) - window)) * a.kvHeads + kvHead;
      const bf16 *from = a.pool + ((head * 2 << shift) + (start & within)) * kHeadDim + lane * 8;
#pragma unroll
      for (int pass = 0; pass < kHeadDim / 16; pass++) {
        const int row = (pass * 32 + lane) / (kHeadDim / 8);
        bf16 *to = slot + (pass * 32 + lane + row) * 8;
        copy_async(to, from + pass * 256, true);
        copy_async(to + kPartSize, from + valuesAt + pass * 256, true);
      }
      return;
    }
#pragma unroll 1
    for (int pass = 0; pass < kHeadDim / 16; pass++) {
      const int row = (pass * 32 + lane) / (kHeadDim / 8), chunk = (pass * 32 + lane) % (kHeadDim / 8);
      const int place = start + (row < valid ? row : 0);
      const size_t head = size_t(__shfl_sync(kAllLanes, id, (place >> shift) - window)) * a.kvHeads + kvHead;
      const bf16 *from = a.pool + ((head * 2 << shift) + (place & within)) * kHeadDim + chunk * 8;
      bf16 *to = slot + row * kStride + chunk * 8;
      copy_async(to, from, row < valid);
      copy_async(to + kPartSize, from + valuesAt, row < valid);
    }
  }
};

#endif
