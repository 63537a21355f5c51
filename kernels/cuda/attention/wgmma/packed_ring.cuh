/*
 * The layout of shared memory in attention_packed_wgmma.cu, and the warp that keeps K and V in it.
 *
 * STEPS. A step is 64 tokens in four parts of up to 16, each part from one block and one slice. All parts of a step
 * belong to slices for which q is rotated once (attention_plan.cuh, ROTATION). A record says what the rows see of each
 * part.
 *
 * RING. Each slot holds one tile of a step: K, V, K, V ... The bulk copy engine fills it, one box of 16 tokens and 64
 * columns at a time, swizzled. What lies behind a part's last token is masked in K and cleared in V. Each slot has two
 * barriers: one says that it is filled, the other that the computing warps have finished with it.
 *
 * MX8. A slot holds K and V of a step as the pool has them (mx8.cuh), and the computing warps make a tile of each of
 * them as bf16 (mx8_tile.cuh). A step's record outlives its slot, so there are twice as many.
 */
#ifndef SPANGATE_PACKED_RING_CUH
#define SPANGATE_PACKED_RING_CUH

#include "mx8.cuh"
#include "unit_walk.cuh"
#include "wgmma.cuh"

constexpr int kTokens = 64, kPartTokens = 16, kParts = kTokens / kPartTokens;
constexpr int kItemTiles = 4;
constexpr int kHalves = kHeadDim / 64, kVectors = kHeadDim / 8;
/* Tiles of q, K and V are alike: [kHalves][64][64], swizzled (wgmma.cuh). */
constexpr int kHalfBytes = 64 * 128, kTileBytes = kHalves * kHalfBytes;
constexpr int kPartBytes = mx8_part_bytes(kHeadDim);
constexpr int kSlots = kHeadDim == 128 ? (kIsMx8 ? 2 : 5) : (kIsMx8 ? 8 : 10);
constexpr int kSlotBytes = kIsMx8 ? kParts * kPartBytes : kTileBytes;
constexpr int kRecords = kIsMx8 ? 2 * kSlots : kSlots;
constexpr int kBoxColumns = kIsMx8 ? 1 : kHalves; /* copies of a part's K, and of its V: in mx8 one for both */
constexpr int kQueryWarps = 3, kProductWarps = 4; /* one more warp copies */
constexpr int kHelperRegisters = 96, kProductRegisters = 160;

/* Item row firstRow + i, i < rowCount, sees the first min(valid, visible + i) tokens of the part. */
struct StepPart {
  int firstRow, rowCount, visible, valid;
};
/* kLastOfQueries: the step that follows needs q rotated anew, or no step follows. */
constexpr int kNewQueries = 1, kLastOfUnit = 2, kMasked = 4, kClears = 8, kLastOfQueries = 16;

/*
 * Byte offsets in shared memory, whose start is aligned to 1,024: two tiles of q, in mx8 one of K and one of V, the
 * ring. A record: four parts, flags, a byte for each `valid`, and one for each part's first token in its part of the pool.
 */
constexpr int kRecordBytes = (kParts + 1) * 16;
constexpr int kKeysAt = 2 * kTileBytes, kValuesAt = 3 * kTileBytes; /* in mx8 alone */
constexpr int kRingAt = (kIsMx8 ? 4 : 2) * kTileBytes;
constexpr int kRecordsAt = kRingAt + kSlots * kSlotBytes;
constexpr int kFullAt = kRecordsAt + kRecords * kRecordBytes;
constexpr int kEmptyAt = kFullAt + kSlots * 8;
constexpr int kQueryFullAt = kEmptyAt + kSlots * 8;
constexpr int kQueryEmptyAt = kQueryFullAt + 2 * 8;
constexpr int kMergesAt = kQueryEmptyAt + 2 * 8; /* [kItemTiles][16], for rows whose parts are all there */
constexpr int kSharedBytes = kMergesAt + kItemTiles * kTileRows * 4;

/* Walks the steps of all units of a block, one after the other; a unit without tokens has one step. */
class StepWalk {
 public:
  StepPart part; /* the lane's box, as next_step left it */
  int poolRow;   /* row of the pool where the box's K begins, in mx8 the pool's part; or -1: none */
  int start;     /* in mx8: the box's first token in that part */

  __device__ __forceinline__ explicit StepWalk(const PlanArguments &a)
      : units(a), shift(31 - __clz(a.blockTokens)) {
    enter_unit(a);
  }
  __device__ __forceinline__ bool done() const { return units.done(); }

  /* Fills `part` and `poolRow`. @return the step's flags */
  __device__ __forceinline__ int next_step(const PlanArguments &a) {
    const int box = int(threadIdx.x & 31) / kBoxColumns;
    int flags = isNew ? kNewQueries : 0, filled = 0;
    isNew = false;
    part = {0, 0, 0, 0}, poolRow = -1, start = 0;
    do {
      const int count = min(kParts - filled, end - next), k = box - filled;
      const bool isOurs = k >= 0 && k < count;
      const int first = max((next + k) * kPartTokens, slice.firstToken);
      const int last = min((next + k + 1) * kPartTokens, slice.firstToken + slice.tokenCount);
      const int id = block_id(a, isOurs ? first >> shift : 0, (next + count - 1) * kPartTokens >> shift);
      if (isOurs) {
        part = {slice.firstRow, slice.rowCount, slice.firstVisible - (first - slice.firstToken), last - first};
        const int token = first & (a.blockTokens - 1);
        poolRow = kIsMx8 ? mx8_part_at(id, token, unit.kvHead, a.kvHeads, a.blockTokens)
                         : ((id * a.kvHeads + unit.kvHead) * 2 << shift) + token;
        start = token % kPartTokens;
      }
      filled += count, next += count;
      if (next >= end) find_slice(a);
    } while (filled < kParts && hasSlice && !isNew);
    if (!hasSlice) flags |= kLastOfUnit;
    if (hasSlice ? isNew : !isFirst) flags |= kLastOfQueries;
    const bool exists = box < kParts, isWhole = part.valid == kPartTokens;
    const bool isSeen = isWhole && part.visible >= kPartTokens && part.rowCount >= unit.item.rowCount;
    if (__any_sync(kAllLanes, exists && !isSeen)) flags |= kMasked;
    if (__any_sync(kAllLanes, exists && !isWhole)) flags |= kClears;
    return flags;
  }

  /* Called after the last step of a unit. */
  __device__ __forceinline__ void next_unit(const PlanArguments &a) {
    units.visit++;
    enter_unit(a);
  }

 private:
  UnitWalk units;
  PlanUnit unit;
  int shift;       /* log2 of blockTokens */
  int batch;       /* first slice of the current 32; each lane holds one of them */
  int4 low, high;  /* words of the lane's slice */
  int ids[kParts]; /* ids of the lane's slice's first blocks */
  uint32 left;     /* bits of slices in the batch that have tokens and are not walked yet, the current one first */
  int current;     /* the lane that holds the current slice: */
  PlanSlice slice;
  bool hasSlice, isNew; /* isNew: q has to be rotated anew for the slice */
  bool isFirst;         /* no slice of the unit was met so far */
  int next, end;   /* the slice's next 16 tokens and its end, in units of 16 from its first block on */
  int window, id, idLater; /* first of the 64 later blocks whose ids are held, and the lane's two ids */

  __device__ __forceinline__ void enter_unit(const PlanArguments &a) {
    if (units.done()) return;
    unit = plan_unit_at(a, units.index());
    batch = 0, isFirst = true;
    enter_batch(a);
    find_first(a);
  }

  __device__ __forceinline__ void enter_batch(const PlanArguments &a) {
    const int at = batch + int(threadIdx.x & 31);
    low = high = make_int4(0, 0, 0, 0);
    if (at < unit.item.sliceCount) {
      const int4 *words = reinterpret_cast<const int4 *>(a.slices + unit.item.firstSlice + at);
      low = words[0], high = words[1];
    }
    if (low.z > 0) {
      const int last = low.y + low.z - 1 >> shift;
#pragma unroll
      for (int i = 0; i < kParts; i++) ids[i] = a.blockIds[low.x + min(i, last)];
    }
    left = __ballot_sync(kAllLanes, low.z > 0);
  }

  /* Finds the slice after the current one. */
  __device__ __forceinline__ void find_slice(const PlanArguments &a) {
    left &= left - 1;
    find_first(a);
  }

  __device__ __forceinline__ void find_first(const PlanArguments &a) {
    while (left == 0 && batch + 32 < unit.item.sliceCount) {
      batch += 32;
      enter_batch(a);
    }
    hasSlice = left != 0, isNew = false, next = end = 0;
    slice = {};
    if (!hasSlice) return;
    current = __ffs(left) - 1;
    const auto of = [&](int word) { return __shfl_sync(kAllLanes, word, current); };
    slice = {of(low.x), of(low.y), of(low.z), of(low.w), of(high.x), of(high.y), of(high.z), of(high.w)};
    isNew = isFirst || (slice.rotation != 0 && a.rotaryDim != 0);
    isFirst = false;
    next = slice.firstToken / kPartTokens;
    end = (slice.firstToken + slice.tokenCount + kPartTokens - 1) / kPartTokens;
    window = -1;
    if (last_block() >= kParts) load_window(a, kParts);
  }

  __device__ __forceinline__ int last_block() const { return slice.firstToken + slice.tokenCount - 1 >> shift; }

  __device__ __forceinline__ void load_window(const PlanArguments &a, int from) {
    const int *at = a.blockIds + slice.block;
    const int place = from + int(threadIdx.x & 31), last = last_block();
    id = window >= 0 ? idLater : at[min(place, last)];
    idLater = at[min(place + 32, last)];
    window = from;
  }

  /* Id of the slice's block `place`, which may differ by lane; `furthest` is the largest of the lanes' places. */
  __device__ __forceinline__ int block_id(const PlanArguments &a, int place, int furthest) {
    if (window >= 0 && furthest >= window + 64) load_window(a, window + 32);
    int found = 0;
#pragma unroll
    for (int i = 0; i < kParts; i++) {
      const int early = __shfl_sync(kAllLanes, ids[i], current);
      if (place == i) found = early;
    }
    if (furthest < kParts) return found;
    const int later = __shfl_sync(kAllLanes, id, (place - window) & 31);
    const int latest = __shfl_sync(kAllLanes, idLater, (place - window) & 31);
    return place < kParts ? found : place - window < 32 ? later : latest;
  }
};

/* A byte of each part's, from the lanes that have one. */
__device__ __forceinline__ uint32 part_bytes(int ofLane) {
  const int box = int(threadIdx.x & 31) / kBoxColumns;
  const bool isFirst = box < kParts && int(threadIdx.x & 31) % kBoxColumns == 0;
  return __reduce_or_sync(kAllLanes, isFirst ? uint32(ofLane) << 8 * box : 0);
}

/*
 * The warp that starts the copies of K and V. `a.pool` is the pool's tensor map: rows of headDim, boxes of 64 by 16; in
 * mx8 it is the pool.
 */
__device__ __forceinline__ void copy_steps(const PlanArguments &a, uint32 shared) {
  const int lane = threadIdx.x & 31, box = lane / kBoxColumns, column = lane % kBoxColumns;
  RingPlace<kSlots> ring;
  RingPlace<kRecords> records;
  StepWalk walk(a);
  wait_for_previous(); /* the plan was written before that kernel began */
  if (!kIsMx8) acquire_tensor_map(a.pool);
#pragma unroll 1
  while (!walk.done()) {
    const int flags = walk.next_step(a);
    const StepPart part = walk.part;
    const int row = walk.poolRow;
    const int bytes = __popc(__ballot_sync(kAllLanes, row >= 0)) * (kIsMx8 ? kPartBytes : kPartTokens * 128);
    const uint32 valid = part_bytes(part.valid), starts = kIsMx8 ? part_bytes(walk.start) : 0;
#pragma unroll
    for (int v = 0; v < (kIsMx8 ? 1 : 2); v++) {
      const uint32 barrier = shared + kFullAt + ring.slot * 8, slot = shared + kRingAt + ring.slot * kSlotBytes;
      barrier_wait(shared + kEmptyAt + ring.slot * 8, ring.parity ^ 1);
      if (v == 0) {
        const uint32 record = shared + kRecordsAt + (kIsMx8 ? records.slot : ring.slot) * kRecordBytes;
        if (box < kParts && column == 0) {
          store_shared4(record + box * 16, make_uint4(part.firstRow, part.rowCount, part.visible, part.valid));
        }
        if (lane == 0) store_shared4(record + kParts * 16, make_uint4(flags, valid, starts, 0));
        __syncwarp();
      }
      if (lane == 0) barrier_arrive_expecting(barrier, bytes);
      __syncwarp();
      if (row >= 0 && kIsMx8) {
        const unsigned char *from = reinterpret_cast<const unsigned char *>(a.pool) + size_t(row) * kPartBytes;
        copy_stretch(slot + box * kPartBytes, from, kPartBytes, barrier);
      } else if (row >= 0) {
        const uint32 to = slot + column * kHalfBytes + box * kPartTokens * 128;
        copy_box(to, a.pool, column * 64, row + v * a.blockTokens, barrier);
      }
      ring.advance();
    }
    records.advance();
    if (flags & kLastOfUnit) walk.next_unit(a);
  }
}

#endif
