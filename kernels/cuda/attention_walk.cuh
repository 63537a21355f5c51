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
constexpr int kMaxSlots = 4;

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

struct Step {
  int unit;     /* number of the block's unit; noUnit: the walk is over */
  int isShared;
  int index;    /* of the slice in the item */
  int token;    /* in the slice: first of the step, or of all four warps' steps of a shared slice */
  PlanSlice slice;
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
      : reader(a), turn(-1), left(0), batch(0), sliceCount(0), isFound(false) {}

  /* Goes to the next step, and reads what the plan says of it. */
  __device__ __forceinline__ void seek(const PlanArguments &a) {
    if (isFound) return;
    while (turn != kNoUnit && !find_step(a)) {
    }
    isFound = true;
    if (turn == kNoUnit) return;
    const int lane = threadIdx.x & 31, shift = 31 - __clz(a.blockTokens);
    current = __ffs(left) - 1;
    isShared = batch + current < sharedSlices;
    slice = slice_of(current);
    const int part = token + (isShared ? int(threadIdx.x >> 5) * kStepTokens : 0);
    valid = min(slice.tokenCount - part, kStepTokens); /* not above 0: all of the part is past the end */
    start = slice.firstToken + (valid > 0 ? part : 0);
    const int firstBlock = start >> shift, lastBlock = (start + max(valid, 1) - 1) >> shift;
    if (window < 0 || firstBlock < window || lastBlock >= window + 32) {
      window = firstBlock;
      const int end = (slice.firstToken + slice.tokenCount - 1) >> shift;
      id = a.blockIds[slice.block + min(window + lane, end)];
    }
  }

  /* The next step, copied into a slot of the ring. */
  __device__ __forceinline__ void load_step(const PlanArguments &a, bf16 *slot, Step *record) {
    seek(a);
    isFound = false;
    if ((threadIdx.x & 31) == 0) *record = {turn, isShared, batch + current, token, slice};
    if (turn != kNoUnit) {
      copy_tokens(a, slot);
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
  int token, taken;  /* next token of the current slice; private steps of the tile so far, modulo the team's size */
  /* Of the step that was found. */
  bool isFound, isShared;
  int current, start, valid;
  PlanSlice slice;
  int window, id;    /* block ids are held 32 at a time: place of the first in the slice, and the lane's */

  __device__ __forceinline__ PlanSlice slice_of(int lane) const {
    const auto of = [&](int word) { return __shfl_sync(kAllLanes, word, lane); };
    return {of(low.x), of(low.y), of(low.z), of(low.w), of(high.x), of(high.y), of(high.z), 0};
  }

  __device__ __forceinline__ void enter_unit(const PlanArguments &a) {
    turn++;
    if (!reader.has(turn)) {
      turn = kNoUnit;
      left = 0;
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
    bool ours = at < sliceCount;
    if (ours) {
      const int4 *words = reinterpret_cast<const int4 *>(a.slices + firstSlice + at);
      low = words[0], high = words[1];
      ours = at < sharedSlices || high.x / rowsPerTile == tile;
    }
    left = __ballot_sync(kAllLanes, ours);
    token = 0, window = -1;
  }

  /* Goes on by one: @return whether that was to a step of this warp */
  __device__ __forceinline__ bool find_step(const PlanArguments &a) {
    if (left == 0) {
      batch += 32;
      if (batch < sliceCount) {
        enter_batch(a);
      } else {
        enter_unit(a);
      }
      return false;
    }
    const int current = __ffs(left) - 1;
    if (token >= __shfl_sync(kAllLanes, low.z, current)) {
      left &= left - 1;
      token = 0, window = -1;
      return false;
    }
    if (batch + current < sharedSlices) return true;
    const bool ours = taken == teamPart;
    taken = taken + 1 == teamSize ? 0 : taken + 1;
    if (!ours) token += kStepTokens;
    return ours;
  }

  /* Starts the copies of the step's K and V; tokens past the slice's end become zeros. */
  __device__ __forceinline__ void copy_tokens(const PlanArguments &a, bf16 *slot) const {
    const int lane = threadIdx.x & 31, shift = 31 - __clz(a.blockTokens);
#pragma unroll
    for (int pass = 0; pass < kHeadDim / 16; pass++) {
      const int row = (pass * 32 + lane) / (kHeadDim / 8), chunk = (pass * 32 + lane) % (kHeadDim / 8);
      const int place = start + (row < valid ? row : 0);
      const size_t head = size_t(__shfl_sync(kAllLanes, id, (place >> shift) - window)) * a.kvHeads + kvHead;
      const size_t at = (head * 2 << shift) + (place & (a.blockTokens - 1));
      const bf16 *from = a.pool + at * kHeadDim + chunk * 8;
      bf16 *to = slot + row * kStride + chunk * 8;
      copy_async(to, from, row < valid);
      copy_async(to + kPartSize, from + (kHeadDim << shift), row < valid);
    }
  }
};

#endif
