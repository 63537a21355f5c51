/*
 * Walks over everything that one warp of a thread block reads in all of the block's units, and fills a ring of shared
 * memory on the way. Each computing warp has another warp that walks and copies for it.
 *
 * A step is up to 16 tokens for a warp. The warps share the steps of shared slices: each copies a quarter of a tile of
 * 64 tokens, and all warps read the whole tile. Steps of private slices belong to one tile, whose warps alternate. The
 * walk runs ahead of the computation, across slices and units, so that copies are always in flight. Each step leaves a
 * record beside its tokens for the warp that computes.
 *
 * RING. The computing warp always holds one slot, that of its last step, as scratch; the others are filled or being
 * filled. Each slot has two barriers: `full` waits for the lanes' copies and the record, `empty` for the slot to be
 * given back.
 */
#ifndef SPANGATE_ATTENTION_WALK_CUH
#define SPANGATE_ATTENTION_WALK_CUH

#include "attention_fragments.cuh"
#include "unit_walk.cuh"

constexpr int kWarps = 4;
constexpr int kStepTokens = 16, kSharedTokens = kStepTokens * kWarps;
constexpr int kPartSize = kStepTokens * kStride, kSlotSize = 2 * kPartSize; /* K, then V */
constexpr int kMaxSlots = 4;

/*
 * What a warp does in a unit: it is warp `part` of the `size` warps of `tile`. A tile that does not exist: it only
 * copies.
 */
struct Team {
  int tile, size, part;
};

__device__ __forceinline__ Team team_of(const PlanUnit &unit, int warp) {
  if (unit.tileCount == 1) return {0, 4, warp};
  if (unit.tileCount == 2) return {warp >> 1, 2, warp & 1};
  return {warp, 1, 0};
}

struct alignas(16) Step {
  int unit;     /* which of the block's units; kNoUnit: the walk is over */
  int isShared;
  int index;    /* of the slice in the item */
  int token;    /* in the slice: first token of the step, or of all four warps' steps of a shared slice */
  int tokenCount, firstRow, rowCount, firstVisible; /* of the slice */
  int offsets[kTileRows]; /* of the rows of the warp's tile */
};
constexpr int kNoUnit = 0x7fffffff;

/* The ring of one warp. */
struct Ring {
  Step steps[kMaxSlots];
  uint64 full[kMaxSlots], empty[kMaxSlots];
};

__device__ __forceinline__ void phase_init(const uint64 *barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void phase_arrive(const uint64 *barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(barrier))
               : "memory");
}
/* This thread arrives at the barrier once its copies so far have landed. */
__device__ __forceinline__ void phase_arrive_with_copies(const uint64 *barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/* Waits until the phase of this parity has ended. */
__device__ __forceinline__ void phase_wait(const uint64 *barrier, int parity) {
#if __CUDA_ARCH__ >= 900
#define WAIT "mbarrier.try_wait.parity.shared.b64"
#else
#define WAIT "mbarrier.test_wait.parity.shared.b64"
#endif
  asm volatile("{\n.reg .pred done;\nAGAIN:\n" WAIT " done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
                   shared_address(barrier)),
               "r"(parity)
               : "memory");
#undef WAIT
}

/* One thread calls it, before a barrier of the block. */
__device__ __forceinline__ void init_ring(const Ring &ring) {
  for (int i = 0; i < kMaxSlots; i++) {
    phase_init(ring.full + i, 32 + 1);
    phase_init(ring.empty + i, 1);
  }
}

/* Reads the thread block's units in order, each item while the unit before is computed. */
class UnitReader {
 public:
  /* items must hold the first unit of every thread block, as that is read before the number of items is known. */
  __device__ __forceinline__ explicit UnitReader(const PlanArguments &a) : parts(a.kvHeads * head_tiles_of_group(a)) {
    fetch(a, 0);
    unitCount = *a.itemCount * parts;
  }

  __device__ __forceinline__ bool has(int visit) const { return unit_index(visit) < unitCount; }

  /* Must be called for visits 0, 1, 2 ... in this order. */
  __device__ __forceinline__ PlanUnit read(const PlanArguments &a, int visit) {
    const auto of = [&](int i) { return __shfl_sync(kAllLanes, word, i); };
    const PlanItem item = {of(0), of(1), of(2), of(3), of(4), of(5), 0, 0};
    if (has(visit + 1)) fetch(a, visit + 1);
    return plan_unit(a, item, unit_index(visit) % parts);
  }

 private:
  int parts, unitCount;
  int word; /* word `lane` of the next unit's item */

  __device__ __forceinline__ void fetch(const PlanArguments &a, int visit) {
    word = reinterpret_cast<const int *>(a.items + unit_index(visit) / parts)[threadIdx.x & 7];
  }
};

class Walk {
 public:
  /* @param warp the computing warp that this walk copies for */
  __device__ __forceinline__ Walk(const PlanArguments &a, int warp)
      : warp(warp), reader(a), visit(-1), left(0), batch(0), sliceCount(0), hasSlice(false) {}

  /* Fills the ring with all steps, and then with one that says that no more follow. @param tokens the warp's slots */
  __device__ __forceinline__ void fill(const PlanArguments &a, bf16 *tokens, Ring &ring, int slots) {
#pragma unroll 1
    for (int slot = 0, round = 0; visit != kNoUnit;) {
      const bool isLast = slot == slots - 1;
      seek(a);
      const int part = token + (isShared ? warp * kStepTokens : 0);
      const int valid = min(slice.tokenCount - part, kStepTokens); /* 0 or less: the part lies past the end */
      const int start = slice.firstToken + (valid > 0 ? part : 0);
      if (visit != kNoUnit) fetch_ids(a, start, start + max(valid, 1) - 1);
      /* The plan, which was written earlier, is read before this wait. */
      if (slot + round == 0) wait_for_previous();
      /* The computing warp holds the last slot from the beginning. */
      if (isLast || round > 0) phase_wait(ring.empty + slot, (isLast ? round : round - 1) & 1);
      if (visit != kNoUnit) load_step(a, tokens + slot * kSlotSize, ring.steps[slot], start, valid);
      phase_arrive_with_copies(ring.full + slot);
      if ((threadIdx.x & 31) == 0) {
        int4 *words = reinterpret_cast<int4 *>(ring.steps + slot);
        words[0] = make_int4(visit, isShared, batch + current, token);
        words[1] = make_int4(slice.tokenCount, slice.firstRow, slice.rowCount, slice.firstVisible);
        phase_arrive(ring.full + slot);
      }
      token += isShared ? kSharedTokens : kStepTokens;
      slot = isLast ? 0 : slot + 1;
      round += isLast;
    }
    wait_copies<0>();
  }

 private:
  int warp;
  UnitReader reader;
  int visit;
  int kvHead, tile, teamSize, teamPart, rowsPerTile, firstSlice, sharedSlices, sliceCount;
  int batch;         /* first slice of the current 32; each lane holds one of them */
  int4 low, high;    /* words of the lane's slice */
  uint32 left;       /* bits of the batch's slices that are this warp's and not walked yet, the current one first */
  bool hasSlice;     /* is there a current slice? Lane `current` holds it: */
  int current;
  PlanSlice slice;
  bool isShared;
  int token, taken;  /* next token of the slice; private steps of the tile so far, modulo the team's size */
  int window, id;    /* block ids are held 32 at a time: the place in the slice of the first one, and the lane's id */

  __device__ __forceinline__ PlanSlice slice_of(int lane) const {
    const auto of = [&](int word) { return __shfl_sync(kAllLanes, word, lane); };
    return {of(low.x), of(low.y), of(low.z), of(low.w), of(high.x), of(high.y), of(high.z), 0};
  }

  /* Goes to the next step. */
  __device__ __forceinline__ void seek(const PlanArguments &a) {
    while (visit != kNoUnit) {
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
    visit++;
    if (!reader.has(visit)) {
      visit = kNoUnit;
      return;
    }
    const PlanUnit unit = reader.read(a, visit);
    const Team team = team_of(unit, warp);
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
      isOurs = at < sharedSlices || (high.x >= tile * rowsPerTile && high.x < (tile + 1) * rowsPerTile);
    }
    left = __ballot_sync(kAllLanes, isOurs);
  }

  /* Loads the ids of the blocks of the slice's tokens `first` to `last`, counted from its first block. */
  __device__ __forceinline__ void fetch_ids(const PlanArguments &a, int first, int last) {
    const int shift = 31 - __clz(a.blockTokens);
    if (window >= 0 && first >> shift >= window && last >> shift < window + 32) return;
    window = first >> shift;
    const int end = (slice.firstToken + slice.tokenCount - 1) >> shift;
    id = a.blockIds[slice.block + min(window + int(threadIdx.x & 31), end)];
  }

  /* Starts copies of 16 tokens' K and V, of which `valid` exist, from token `start` on; the others become zeros. */
  __device__ __forceinline__ void load_step(const PlanArguments &a, bf16 *slot, const Step &record, int start,
                                            int valid) const {
    constexpr int kVectors = kHeadDim / 8;
    const int lane = threadIdx.x & 31, shift = 31 - __clz(a.blockTokens), within = a.blockTokens - 1;
    const size_t valuesAt = kHeadDim << shift;
    if (lane < rowsPerTile) copy_word(record.offsets + lane, offset_at(a, slice, tile * rowsPerTile + lane));
    if (valid == kStepTokens && (start & within) + kStepTokens <= a.blockTokens) {
      /* Within one block the tokens lie one after the other. */
      const size_t head = size_t(__shfl_sync(kAllLanes, id, (start >> shift) - window)) * a.kvHeads + kvHead;
      const bf16 *from = a.pool + ((head * 2 << shift) + (start & within)) * kHeadDim + lane * 8;
      const uint32 to = shared_address(slot) + (lane + lane / kVectors) * 16;
#pragma unroll
      for (int pass = 0; pass < kHeadDim / 16; pass++) {
        /* Rows in shared memory are padded by one vector. */
        const int longer =
            32 % kVectors == 0 ? pass * (32 / kVectors) : (pass * 32 + lane) / kVectors - lane / kVectors;
        copy_async(to + (pass * 32 + longer) * 16, from + pass * 256);
        copy_async(to + (pass * 32 + longer) * 16 + kPartSize * 2, from + valuesAt + pass * 256);
      }
      return;
    }
#pragma unroll 1
    for (int pass = 0; pass < kHeadDim / 16; pass++) {
      const int row = (pass * 32 + lane) / kVectors, vector = (pass * 32 + lane) % kVectors;
      const int place = start + (row < valid ? row : 0);
      const size_t head = size_t(__shfl_sync(kAllLanes, id, (place >> shift) - window)) * a.kvHeads + kvHead;
      const bf16 *from = a.pool + ((head * 2 << shift) + (place & within)) * kHeadDim + vector * 8;
      bf16 *to = slot + row * kStride + vector * 8;
      copy_async(to, from, row < valid);
      copy_async(to + kPartSize, from + valuesAt, row < valid);
    }
  }
};

#endif
