/*
 * The layout of shared memory in attention_wgmma.cu, and the two warps that keep K and V in it: one starts the copies,
 * the other clears tokens of V that must not count.
 *
 * RING. Each slot holds one tile of 128 tokens: K, V, K, V ... in the order of the item's slices. The bulk copy engine
 * fills it, one box of one block's tokens at a time, swizzled. So a tile begins where a block (or 128 tokens of it)
 * begins, and may contain tokens before the slice's first and past its last: their scores are masked, and their V is
 * set to zero. Each slot has two barriers: one says that it is filled, the other that all eight product warps have
 * finished with it.
 *
 * MX8. Behind the ring there is room for one tile of K and one of V as the pool has them (mx8.cuh). One of four warps
 * starts the copies to them, and all four make the ring's tiles of bf16 (wgmma_mx8.cuh).
 */
#ifndef SPANGATE_WGMMA_RING_CUH
#define SPANGATE_WGMMA_RING_CUH

#include "mx8.cuh"
#include "unit_walk.cuh"
#include "wgmma.cuh"

constexpr int kTokens = 128, kPackedRows = 128;
constexpr int kHalves = kHeadDim / 64, kVectors = kHeadDim / 8;
/* Tiles of q, K and V are alike: [kHalves][128][64], swizzled (wgmma.cuh). */
constexpr int kHalfBytes = 128 * 128, kTileBytes = kHalves * kHalfBytes;
constexpr int kSlots = kHeadDim == 128 ? (kIsMx8 ? 4 : 5) : 10;
constexpr int kCopyWarps = 4, kQueryWarps = 4, kProductWarps = 8; /* of the copy warps, two work; in mx8 all */
/* Registers of a thread; all threads' are 65,536. */
constexpr int kCopyRegisters = kIsMx8 ? 48 : 32, kQueryRegisters = kIsMx8 ? 80 : 96;
constexpr int kProductRegisters = 192;
/* In mx8: what the pool has of a tile's K or V, first all numbers and then all scales. */
constexpr int kPackedParts = kTokens / kMx8PartTokens;
constexpr int kNumberBytes = kMx8PartTokens * kHeadDim, kScaleBytes = kNumberBytes / kMx8Group;
constexpr int kPackedBytes = kPackedParts * (kNumberBytes + kScaleBytes);

/* What the slot of a tile of K holds; tokens are counted from the tile's first row. */
struct TileInfo {
  int end;       /* end of the slice's tokens */
  int visible;   /* end of the tokens that the slice's first row sees */
  int sliceRows; /* firstRow, rowCount in a byte each; above them what late_in_tile gives */
  int flags;     /* flags; from bit kStartShift on, the slice's first token */
};
__device__ __forceinline__ void store_info(uint32 to, const TileInfo &info) {
  store_shared4(to, make_uint4(info.end, info.visible, info.sliceRows, info.flags));
}
__device__ __forceinline__ TileInfo load_info(uint32 from) {
  const uint4 words = load_shared4(from);
  return {int(words.x), int(words.y), int(words.z), int(words.w)};
}
constexpr int kLateBias = kTokens, kNotLate = kLateBias + kNeverLate;
/* Of the tile's columns, row i of the slice does not see those before i + kLateBias - this; kNotLate: it sees all. */
__device__ __forceinline__ int late_in_tile(const LargeSlice &slice, int row) {
  if (slice.late == kNeverLate) return kNotLate;
  return min(slice.late + row - slice.firstToken + kLateBias, kNotLate);
}
constexpr int kNewQueries = 1, kLastOfUnit = 2, kNotAllRows = 4, kLastOfQueries = 8, kStartShift = 8;

/* Byte offsets in shared memory, whose start is aligned to 1,024. */
constexpr int kRingAt = 2 * kTileBytes;
constexpr int kPackedAt = kRingAt + kSlots * kTileBytes; /* in mx8 alone: K, V */
constexpr int kInfosAt = kPackedAt + (kIsMx8 ? 2 * kPackedBytes : 0);
constexpr int kFullAt = kInfosAt + kSlots * int(sizeof(TileInfo));
constexpr int kEmptyAt = kFullAt + kSlots * 8;
constexpr int kLandedAt = kEmptyAt + kSlots * 8; /* in mx8: two for packed K and V that have landed, two for read ones */
constexpr int kQueryFullAt = kLandedAt + kSlots * 8;
constexpr int kQueryEmptyAt = kQueryFullAt + 2 * 8;
constexpr int kSharedBytes = kQueryEmptyAt + 2 * 8;

/*
 * Walks the tiles of all units of a block, one after the other. A slice has one tile or more; a unit without slices has
 * one.
 */
struct TileWalk {
  UnitWalk units;
  PlanUnit unit;
  PlanSlice slice;
  int box;        /* tokens of one block that are copied together */
  int index, row; /* of the slice in the item; first token of the tile, from the start of the slice's first block on */

  __device__ __forceinline__ explicit TileWalk(const PlanArguments &a) : units(a), box(min(a.blockTokens, kTokens)) {
    enter_unit(a);
  }
  __device__ __forceinline__ bool done() const { return units.done(); }
  /* The slice's tokens in the tile are its rows [start, end). */
  __device__ __forceinline__ int start() const { return max(slice.firstToken - row, 0); }
  __device__ __forceinline__ int end() const { return slice.firstToken + slice.tokenCount - row; }
  __device__ __forceinline__ bool is_whole() const { return slice.firstToken <= row && end() >= kTokens; }
  __device__ __forceinline__ bool is_last_of_slice() const { return end() <= kTokens; }
  __device__ __forceinline__ bool is_last_of_unit() const {
    return is_last_of_slice() && index + 1 >= unit.item.sharedSlices;
  }
  /* Does q have to be rotated anew for this tile? Without RoPE the q of the first slice serves all slices. */
  __device__ __forceinline__ bool needs_queries(const PlanArguments &a) const {
    const int slices = a.rotaryDim == 0 ? min(unit.item.sharedSlices, 1) : unit.item.sharedSlices;
    return row == (slice.firstToken & -box) && index < slices;
  }
  /* Is this the last tile that is multiplied with the current q? */
  __device__ __forceinline__ bool is_last_of_queries(const PlanArguments &a) const {
    return index < unit.item.sharedSlices && (a.rotaryDim == 0 ? is_last_of_unit() : is_last_of_slice());
  }

  __device__ __forceinline__ void enter_slice(const PlanArguments &a, int at) {
    index = at;
    if (at < unit.item.sharedSlices) {
      slice = a.slices[unit.item.firstSlice + at];
    } else {
      slice = {};
    }
    row = slice.firstToken & -box;
  }
  __device__ __forceinline__ void enter_unit(const PlanArguments &a) {
    if (units.done()) return;
    unit = plan_unit_at(a, units.index());
    enter_slice(a, 0);
  }
  __device__ __forceinline__ void next(const PlanArguments &a) {
    if (!is_last_of_slice()) {
      row += kTokens;
    } else if (!is_last_of_unit()) {
      enter_slice(a, index + 1);
    } else {
      units.visit++;
      enter_unit(a);
    }
  }
};

__device__ __forceinline__ TileInfo tile_info(const PlanArguments &a, const TileWalk &at) {
  const LargeSlice slice(at.slice);
  TileInfo info;
  info.end = at.end();
  info.visible = slice.firstToken + slice.firstVisible - at.row;
  info.sliceRows = slice.firstRow + (slice.rowCount << 8) + (late_in_tile(slice, at.row) << 16);
  info.flags = at.start() << kStartShift;
  if (at.needs_queries(a)) info.flags |= kNewQueries;
  if (at.is_last_of_unit()) info.flags |= kLastOfUnit;
  if (at.is_last_of_queries(a)) info.flags |= kLastOfQueries;
  if (slice.rowCount < at.unit.item.rowCount) info.flags |= kNotAllRows;
  return info;
}

/* The box that a lane copies, one of a tile's kTokens / box * kHalves. */
struct Box {
  int block; /* id of the block, or -1: none */
  int token; /* first token in the block */

  __device__ __forceinline__ static int first_row(const TileWalk &at) {
    return int(threadIdx.x & 31) / kHalves * at.box;
  }
  __device__ __forceinline__ void load(const PlanArguments &a, const TileWalk &at) {
    const int inTile = first_row(at), place = at.row + inTile;
    const bool exists = !at.done() && inTile < min(kTokens, at.end());
    block = exists ? a.blockIds[at.slice.block + place / a.blockTokens] : -1;
    token = place & (a.blockTokens - 1);
  }
};

/*
 * The warp that starts the copies of K and V. `a.pool` is the pool's tensor map: rows of headDim, boxes of 64 by `box`.
 */
__device__ __forceinline__ void copy_tiles(const PlanArguments &a, uint32 shared) {
  const int lane = threadIdx.x & 31;
  RingPlace<kSlots> ring;
  TileWalk at(a);
  Box box;
  box.load(a, at);
  acquire_tensor_map(a.pool);
  while (!at.done()) {
    const TileInfo info = tile_info(a, at);
    const bool isWhole = at.is_whole(), goesOn = !at.is_last_of_slice();
    const int boxRows = at.box, rowInTile = Box::first_row(at), token = box.token;
    const int head = box.block < 0 ? -1 : box.block * a.kvHeads + at.unit.kvHead;
    /* The next box is looked up while this one is copied; after the end of a slice it is looked up later. */
    if (goesOn) {
      at.next(a);
      box.load(a, at);
    }
    const int bytes = __popc(__ballot_sync(kAllLanes, head >= 0)) * boxRows * 128;
#pragma unroll
    for (int part = 0; part < 2; part++) {
      const uint32 slot = shared + kRingAt + ring.slot * kTileBytes;
      /* For a tile of V that must be cleared first, the clearing warp arrives at kFullAt instead. */
      const uint32 barrier = shared + (part == 1 && !isWhole ? kLandedAt : kFullAt) + ring.slot * 8;
      barrier_wait(shared + kEmptyAt + ring.slot * 8, ring.parity ^ 1);
      if (lane == 0) {
        if (part == 0) store_info(shared + kInfosAt + ring.slot * 16, info);
        barrier_arrive_expecting(barrier, bytes);
      }
      __syncwarp();
      if (head >= 0) {
        copy_box(slot + lane % kHalves * kHalfBytes + rowInTile * 128, a.pool, lane % kHalves * 64,
                 (head * 2 + part) * a.blockTokens + token, barrier);
      }
      ring.advance();
    }
    if (!goesOn) {
      at.next(a);
      box.load(a, at);
    }
  }
}

/* The warp that sets rows of V outside the slice to zero. */
__device__ __forceinline__ void clear_tiles(const PlanArguments &a, uint32 shared) {
  const int lane = threadIdx.x & 31;
  RingPlace<kSlots> ring;
  uint32 landed = 0; /* parities of the barriers at kLandedAt, a bit for each slot */
  for (TileWalk at(a); !at.done(); at.next(a)) {
    ring.advance(); /* skips the tile of K */
    if (!at.is_whole()) {
      const int start = at.start(), end = max(at.end(), 0);
      const uint32 slot = shared + kRingAt + ring.slot * kTileBytes;
      barrier_wait(shared + kLandedAt + ring.slot * 8, landed >> ring.slot & 1);
      landed ^= 1u << ring.slot;
      for (int i = lane; i < kTokens * kVectors; i += 32) {
        const int row = i / kVectors, vector = i % kVectors;
        if (row < start || row >= end) {
          store_shared4(slot + vector / 8 * kHalfBytes + row * 128 + vector % 8 * 16, make_uint4(0, 0, 0, 0));
        }
      }
      order_before_products();
      __syncwarp();
      if (lane == 0) barrier_arrive(shared + kFullAt + ring.slot * 8);
    }
    ring.advance();
  }
}

#endif
