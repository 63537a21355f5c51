/*
 * What stands in the shared memory of attention_wgmma.cu, and the warps that fill it: four copy K and V, four write q.
 *
 * RING. Slots of one tile each: K, V, K, V ... of kTokens tokens in the order of the item's slices; a tile never
 * crosses a slice's end, and tokens past it are zeros. A barrier per slot says that its copies are there, another that
 * all eight product warps have done with it. Two tiles of q: one is read while the other is turned for the next slice.
 */
#ifndef SPANGATE_ATTENTION_WGMMA_CUH
#define SPANGATE_ATTENTION_WGMMA_CUH

#include "attention_plan.cuh"
#include "wgmma.cuh"

constexpr int kTokens = 128, kPackedRows = 128;
constexpr int kHalves = kHeadDim / 64, kChunks = kHeadDim / 8;
/* Tiles of q, K and V are alike: [kHalves][128][64], swizzled (wgmma.cuh). */
constexpr int kHalfBytes = 128 * 128, kTileBytes = kHalves * kHalfBytes;
constexpr int kSlots = kHeadDim == 128 ? 5 : 10;
constexpr int kCopyWarps = 4, kQueryWarps = 4, kProductWarps = 8;
constexpr int kThreads = 32 * (kCopyWarps + kQueryWarps + kProductWarps);
constexpr int kCopyRows = kTokens / kCopyWarps, kPlaces = kCopyRows / 32;

/* What a slot of K holds: a tile of a slice, counted from its first token. */
struct TileInfo {
  int tokensLeft; /* in the slice */
  int visible;    /* what the slice's first row sees of them */
  int sliceRows;  /* firstRow + rowCount * 65536 */
  int flags;
};
constexpr int kNewQueries = 1, kLastOfUnit = 2, kNotAllRows = 4;

/* Byte offsets; the start is a multiple of 1,024. */
constexpr int kRingAt = 2 * kTileBytes;
constexpr int kInfosAt = kRingAt + kSlots * kTileBytes;
constexpr int kFullAt = kInfosAt + kSlots * int(sizeof(TileInfo));
constexpr int kEmptyAt = kFullAt + kSlots * 8;
constexpr int kQueryFullAt = kEmptyAt + kSlots * 8;
constexpr int kQueryEmptyAt = kQueryFullAt + 2 * 8;
constexpr int kSharedBytes = kQueryEmptyAt + 2 * 8;

/* A place in a ring of kCount slots and the parity of its round. */
template <int kCount>
struct RingPlace {
  int slot = 0;
  uint32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == kCount) slot = 0, parity ^= 1;
  }
};

/* Units of a block, taken in turn there and back: the longest units come first, so no block gets the longest twice. */
struct UnitWalk {
  int round = 0, count;

  __device__ __forceinline__ explicit UnitWalk(const PlanArguments &a)
      : count(*a.itemCount * a.kvHeads * chunks_of_group(a)) {}
  __device__ __forceinline__ int index() const {
    const int place = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return round * gridDim.x + place;
  }
  __device__ __forceinline__ bool done() const { return index() >= count; }
};

/* The tiles of all units of a block, one after the other. A unit that sees nothing has one tile of no tokens. */
struct TileWalk {
  UnitWalk units;
  PlanUnit unit;
  PlanSlice slice;
  int index, token; /* the slice's, and the tile's first token in it */
  bool hasQueries;  /* a slice before this one had the same q: without RoPE it serves the whole unit */

  __device__ __forceinline__ explicit TileWalk(const PlanArguments &a) : units(a) { enter_unit(a); }
  __device__ __forceinline__ bool done() const { return units.done(); }
  __device__ __forceinline__ bool needs_queries(const PlanArguments &a) const {
    return token == 0 && slice.tokenCount > 0 && !(hasQueries && a.rotaryDim == 0);
  }

  /* The first slice from `at` on that has tokens. @return whether there is one */
  __device__ __forceinline__ bool enter_slice(const PlanArguments &a, int at) {
    token = 0;
    for (index = at; index < unit.item.sharedSlices; index++) {
      slice = a.slices[unit.item.firstSlice + index];
      if (slice.tokenCount > 0) return true;
    }
    return false;
  }
  __device__ __forceinline__ void enter_unit(const PlanArguments &a) {
    if (units.done()) return;
    unit = plan_unit_at(a, units.index());
    hasQueries = false;
    if (!enter_slice(a, 0)) slice = {};
  }
  /* @return whether the unit goes on */
  __device__ __forceinline__ bool next(const PlanArguments &a) {
    token += kTokens;
    if (token < slice.tokenCount) return true;
    hasQueries = true;
    if (enter_slice(a, index + 1)) return true;
    units.round++;
    enter_unit(a);
    return false;
  }
};

/* The tokens of a copying warp, each 32nd one in a lane: where they stand in the pool. */
struct TokenPlaces {
  int block[kPlaces], token[kPlaces]; /* block -1: past the slice's end */

  __device__ __forceinline__ void load(const PlanArguments &a, const TileWalk &at, int firstRow) {
#pragma unroll
    for (int j = 0; j < kPlaces; j++) {
      const int inSlice = at.token + firstRow + 32 * j + int(threadIdx.x & 31);
      const int place = at.slice.firstToken + inSlice;
      const bool exists = !at.done() && inSlice < at.slice.tokenCount;
      block[j] = exists ? a.blockIds[at.slice.block + place / a.blockTokens] : -1;
      token[j] = place & (a.blockTokens - 1);
    }
  }
};

/* A warp starts the copies of its rows of a tile; `from`: K or V of the first slot of the pool. */
__device__ __forceinline__ void copy_rows(const bf16 *from, const int (&slots)[kPlaces], uint32 to) {
  constexpr int kRowsAtOnce = 32 / kChunks, kBatch = 8; /* shuffles that do not wait for each other */
  const int lane = threadIdx.x & 31, chunk = lane % kChunks;
  from += chunk * 8;
  to += chunk / 8 * kHalfBytes;
#pragma unroll
  for (int first = 0; first < kCopyRows; first += kBatch * kRowsAtOnce) {
    int slot[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const int row = first + i * kRowsAtOnce;
      slot[i] = __shfl_sync(kAllLanes, slots[row / 32], row % 32 + lane / kChunks);
    }
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const int row = first + i * kRowsAtOnce + lane / kChunks;
      const bf16 *place = from + size_t(max(slot[i], 0)) * kHeadDim;
      copy_async_to(to + row * 128 + ((chunk ^ row) & 7) * 16, place, slot[i] >= 0);
    }
  }
}

__device__ __forceinline__ TileInfo tile_info(const PlanArguments &a, const TileWalk &at) {
  const PlanSlice &slice = at.slice;
  TileInfo info;
  info.tokensLeft = slice.tokenCount - at.token;
  info.visible = slice.firstVisible - at.token;
  info.sliceRows = slice.firstRow + (slice.rowCount << 16);
  info.flags = at.needs_queries(a) ? kNewQueries : 0;
  if (slice.rowCount < at.unit.item.rowCount) info.flags |= kNotAllRows;
  return info;
}

/* The copying warps; `warp` counts them. */
__device__ __forceinline__ void copy_tiles(const PlanArguments &a, uint32 shared, int warp) {
  const int lane = threadIdx.x & 31, firstRow = warp * kCopyRows, shift = 31 - __clz(a.blockTokens);
  RingPlace<kSlots> ring;
  TileWalk at(a);
  TokenPlaces places;
  places.load(a, at, firstRow);
  while (!at.done()) {
    TileInfo info = tile_info(a, at);
    int slots[kPlaces];
#pragma unroll
    for (int j = 0; j < kPlaces; j++) {
      const int head = places.block[j] * a.kvHeads + at.unit.kvHead;
      slots[j] = places.block[j] < 0 ? -1 : (head * 2 << shift) + places.token[j];
    }
    if (!at.next(a)) info.flags |= kLastOfUnit;
    places.load(a, at, firstRow); /* comes while this tile is copied */
#pragma unroll
    for (int part = 0; part < 2; part++) {
      const uint32 full = shared + kFullAt + ring.slot * 8;
      barrier_wait(shared + kEmptyAt + ring.slot * 8, ring.parity ^ 1);
      copy_rows(a.pool + (part * kHeadDim << shift), slots, shared + kRingAt + ring.slot * kTileBytes + firstRow * 128);
      barrier_arrive_after_copies(full);
      if (warp == 0 && lane == 0) {
        const int4 words = {info.tokensLeft, info.visible, info.sliceRows, info.flags};
        if (part == 0) store_shared4(shared + kInfosAt + ring.slot * 16, words);
        barrier_arrive(full);
      }
      ring.advance();
    }
  }
}

/* Rows of an item in the lanes of a warp that writes q: every kQueryWarps-th. */
struct QueryRow {
  int row, position, packed; /* row -1: none; packed row of its first head */
  int turned;                /* row of the table of turns, or kUnturned */

  __device__ __forceinline__ static int item_row(int warp) { return int(threadIdx.x & 31) * kQueryWarps + warp; }
  __device__ __forceinline__ void load(const PlanArguments &a, const PlanUnit &unit, int warp) {
    const int i = item_row(warp);
    row = i < unit.item.rowCount ? a.rows[unit.item.firstRow + i].row : -1;
    position = row < 0 ? 0 : a.positions[row];
    packed = i / unit.rowsPerTile * kTileRows + i % unit.rowsPerTile * unit.headCount;
  }
  __device__ __forceinline__ void enter_slice(const PlanArguments &a, const PlanSlice &slice, int warp) {
    const int i = item_row(warp) - slice.firstRow;
    const bool takesPart = a.rotaryDim > 0 && row >= 0 && i >= 0 && i < slice.rowCount;
    turned = takesPart ? position - a.offsets[slice.firstOffset + i] : kUnturned;
  }

  static constexpr int kUnturned = 1 << 31;
};
static_assert(kPackedRows <= 32 * kQueryWarps, "a lane has a row");

/* Byte of dimension d in a packed row of q. */
__device__ __forceinline__ int query_byte(int row, int d) {
  return d / 64 * kHalfBytes + row * 128 + ((d / 8 ^ row) & 7) * 16 + d % 8 * 2;
}

/* Starts the copies of q as it is, for the warp's first `count` rows. */
__device__ __forceinline__ void copy_queries(const PlanArguments &a, int firstHead, int headCount,
                                             const QueryRow &own, int count, uint32 tile) {
  const int heads = a.queryHeads + 2 * a.kvHeads;
#pragma unroll 1
  for (int k = 0; k < count; k++) {
    const int row = __shfl_sync(kAllLanes, own.row, k), packed = __shfl_sync(kAllLanes, own.packed, k);
    const bf16 *from = a.qkv + (size_t(row) * heads + firstHead) * kHeadDim;
#pragma unroll 1
    for (int c = threadIdx.x & 31; c < headCount * kChunks; c += 32) {
      copy_async_to(tile + query_byte(packed + c / kChunks, c % kChunks * 8), from + c * 8, true);
    }
  }
  commit_copies();
}

/* Turns the heads of a row of q where they stand; `turn`: (cos, sin) of the lane's two pairs. */
__device__ __forceinline__ void turn_row(const LanePlace &place, uint32 tile, int packed, int headCount,
                                         const float4 &turn) {
  constexpr int kHeads = 4; /* whose loads do not wait for each other */
#pragma unroll 1
  for (int first = 0; first < headCount; first += kHeads) {
    uint32 x[kHeads], y[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      if (first + h >= headCount) break;
      x[h] = load_shared(tile + query_byte(packed + first + h, place.a));
      y[h] = load_shared(tile + query_byte(packed + first + h, place.b));
    }
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      if (first + h >= headCount) break;
      const float x0 = low_float(x[h]), x1 = high_float(x[h]), y0 = low_float(y[h]), y1 = high_float(y[h]);
      store_shared(tile + query_byte(packed + first + h, place.a),
                   pack_bf16(x0 * turn.x - y0 * turn.y, x1 * turn.z - y1 * turn.w));
      store_shared(tile + query_byte(packed + first + h, place.b),
                   pack_bf16(y0 * turn.x + x0 * turn.y, y1 * turn.z + x1 * turn.w));
    }
  }
}

/* Turns the warp's first `count` rows, once their copies are there. */
__device__ __forceinline__ void turn_queries(const PlanArguments &a, int headCount, const QueryRow &own, int count,
                                             uint32 tile) {
  constexpr int kBatch = 4; /* rows whose turns are on their way together */
  const LanePlace place = lane_place({kHeadDim, a.rotaryDim, a.kvHeads, a.blockTokens});
#pragma unroll 1
  for (int start = 0; start < count; start += kBatch) {
    float4 turn[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; k++) {
      const int turned = __shfl_sync(kAllLanes, own.turned, start + k);
      const float2 *from = a.turns + (long long)turned * (a.rotaryDim / 2) + place.pair;
      if (turned != QueryRow::kUnturned && place.turns) turn[k] = *reinterpret_cast<const float4 *>(from);
    }
    wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kBatch; k++) {
      const int turned = __shfl_sync(kAllLanes, own.turned, start + k);
      const int packed = __shfl_sync(kAllLanes, own.packed, start + k);
      if (turned != QueryRow::kUnturned && place.turns) turn_row(place, tile, packed, headCount, turn[k]);
    }
  }
}

/* The warps that write q; `warp` counts them. One tile of q for each slice, or for each unit without RoPE. */
__device__ __forceinline__ void write_queries(const PlanArguments &a, uint32 shared, int warp) {
  RingPlace<2> ring;
  for (UnitWalk units(a); !units.done(); units.round++) {
    const PlanUnit unit = plan_unit_at(a, units.index());
    const int count = (unit.item.rowCount + kQueryWarps - 1 - warp) / kQueryWarps;
    QueryRow own;
    own.load(a, unit, warp);
    bool hasQueries = false;
#pragma unroll 1
    for (int s = 0; s < unit.item.sharedSlices; s++) {
      const PlanSlice &slice = a.slices[unit.item.firstSlice + s];
      if (slice.tokenCount <= 0 || (hasQueries && a.rotaryDim == 0)) continue;
      hasQueries = true;
      own.enter_slice(a, slice, warp);
      const uint32 tile = shared + ring.slot * kTileBytes;
      barrier_wait(shared + kQueryEmptyAt + ring.slot * 8, ring.parity ^ 1);
      copy_queries(a, unit.firstHead, unit.headCount, own, count, tile);
      if (a.rotaryDim > 0) turn_queries(a, unit.headCount, own, count, tile);
      wait_copies<0>();
      order_before_products();
      barrier_arrive(shared + kQueryFullAt + ring.slot * 8);
      ring.advance();
    }
  }
}

#endif
