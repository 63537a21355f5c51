/*
 * Attention over segments: what the kernels for many and for few rows share.
 *
 * PACKED ROWS. The query heads of one KV head (a group) read the same keys, so a tile's rows are (row, head) pairs:
 * packed row p of an item is its row p / group, head p % group of the KV head's group.
 *
 * ITEMS. An item is a tile of consecutive rows of one piece and slices of the tokens they see; a slice is a stretch of
 * one segment, and row i of the item sees the first firstVisible + i tokens of it (all, where that is more).
 * worker/backend/cuda/work-items.ts makes them. A tile that is split over several items writes partial results, which
 * merge_partials.cu merges.
 *
 * ROTATION. Stored K is turned by its chain position; a row at p reads a segment of offset Δ with q turned to p - Δ,
 * once for each (tile, slice).
 *
 * SOFTMAX. Scores times scale / ln 2, so that weights are powers of 2; running maximum and sum in float32, weights
 * rounded to bf16 for the product with V. Partial results carry log2 of their sum of weights.
 *
 * Compiled with HEAD_DIM, a multiple of 16 up to 128. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#ifndef SPANGATE_ATTENTION_CUH
#define SPANGATE_ATTENTION_CUH

#include "heads.cuh"
#include "mma.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

constexpr int kHeadDim = HEAD_DIM;
static_assert(kHeadDim % 16 == 0 && kHeadDim <= 128, "head sizes are multiples of 16 up to 128");
/* Rows in shared memory are 16 bytes longer: an odd number of 16-byte chunks, so eight rows lie in different banks. */
constexpr int kStride = kHeadDim + 8;
constexpr int kChunks = kHeadDim / 8;
constexpr int kWarps = 4;

/* As work-items.ts writes them. */
struct AttentionItem {
  int firstRow, rowCount;     /* rows of the step */
  int firstSlice, sliceCount;
  int firstPartial;           /* partial row of the first row, or -1: write the output */
};

struct AttentionSlice {
  int block;                  /* place in blockIds */
  int firstToken, tokenCount; /* of that block, and on over the blocks that follow in blockIds */
  int offset;
  int firstVisible;
};

struct AttentionArguments {
  const bf16 *qkv;            /* [rows][queryHeads + 2 * kvHeads][kHeadDim]: q normalised, not turned */
  const bf16 *pool;           /* this layer's part of the KV pool (heads.cuh) */
  const float2 *turns;        /* (cos, sin) rows of rotaryDim / 2 from rope_table.cu, at position 0 */
  const AttentionItem *items;
  const AttentionSlice *slices;
  const int *blockIds;
  const int *positions;       /* [rows] */
  const int *itemCount;
  int queryHeads, kvHeads, rotaryDim;
  int blockTokens;            /* a power of two */
  float scaleLog2;            /* softmax scale / ln 2 */
  bf16 *out;                  /* [rows][queryHeads][kHeadDim] */
  float *partialOut;          /* [partial rows][queryHeads][kHeadDim], each normalised */
  float *partialSums;         /* [partial rows][queryHeads]: log2 of the sum of weights */
};

/* Those of both kernels, in this order. */
#define ATTENTION_PARAMETERS                                                                                   \
  const bf16 *qkv, const bf16 *pool, const float2 *turns, const AttentionItem *items, const AttentionSlice *slices, \
      const int *blockIds, const int *positions, const int *itemCount, int queryHeads, int kvHeads, int rotaryDim,  \
      int blockTokens, float scaleLog2, bf16 *out, float *partialOut, float *partialSums
#define ATTENTION_ARGUMENTS                                                                                   \
  {qkv,        pool,    turns,     items,       slices,    blockIds, positions,  itemCount,                   \
   queryHeads, kvHeads, rotaryDim, blockTokens, scaleLog2, out,      partialOut, partialSums}

/* A launch with too little shared memory is a fault, not a wrong result. */
__device__ __forceinline__ void require_shared_memory(int elements) {
  uint32 bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  if (bytes < elements * sizeof(bf16)) __trap();
}

/* One item for one KV head. */
struct Unit {
  AttentionItem item;
  int kvHead, group, packedCount;
};

__device__ __forceinline__ Unit unit_at(const AttentionArguments &a, int index) {
  Unit unit;
  unit.item = a.items[index / a.kvHeads];
  unit.kvHead = index % a.kvHeads;
  unit.group = a.queryHeads / a.kvHeads;
  unit.packedCount = unit.item.rowCount * unit.group;
  return unit;
}

/* A walk over the tiles of `kTokens` tokens of an item; a tile never crosses a slice's end. */
template <int kTokens>
struct Cursor {
  int index, token; /* of the slice in the item, and of the tile's first token in the slice */
  AttentionSlice slice;

  __device__ __forceinline__ void enter(const AttentionArguments &a, const Unit &unit, int at) {
    index = at;
    token = 0;
    if (!done(unit)) slice = a.slices[unit.item.firstSlice + at];
  }
  __device__ __forceinline__ bool done(const Unit &unit) const { return index >= unit.item.sliceCount; }
  __device__ __forceinline__ void next(const AttentionArguments &a, const Unit &unit) {
    token += kTokens;
    if (token >= slice.tokenCount) enter(a, unit, index + 1);
  }
  __device__ __forceinline__ void skip(const AttentionArguments &a, const Unit &unit, int tiles) {
    for (int i = 0; i < tiles && !done(unit); i++) next(a, unit);
  }
};

/* Starts the copies of a tile's K and V [kTokens][kStride] by kThreads threads; tokens past the end become zeros. */
template <int kTokens, int kThreads>
__device__ __forceinline__ void load_tile(const AttentionArguments &a, const Cursor<kTokens> &at, int kvHead,
                                          int thread, bf16 *keys, bf16 *values) {
  constexpr int kCopies = kTokens * kChunks;
  const int shift = 31 - __clz(a.blockTokens);
#pragma unroll
  for (int start = 0; start < kCopies; start += kThreads) {
    const int i = start + thread;
    if (kCopies % kThreads != 0 && i >= kCopies) break;
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = at.token + row < at.slice.tokenCount;
    const int place = at.slice.firstToken + at.token + (valid ? row : 0);
    const size_t head = size_t(a.blockIds[at.slice.block + (place >> shift)]) * a.kvHeads + kvHead;
    const size_t slot = (head * 2 << shift) + (place & (a.blockTokens - 1));
    const bf16 *from = a.pool + slot * kHeadDim + chunk * 8;
    copy_async(keys + row * kStride + chunk * 8, from, valid);
    copy_async(values + row * kStride + chunk * 8, from + (kHeadDim << shift), valid);
  }
}

/* A warp writes kRows packed rows of q from `first` on, turned for a slice's offset, into [kRows][kStride]. */
template <int kRows>
__device__ __forceinline__ void write_queries(const AttentionArguments &a, const Unit &unit, int first, int offset,
                                              bf16 *queries) {
  const HeadShape shape = {kHeadDim, a.rotaryDim, a.kvHeads, a.blockTokens};
  const LanePlace place = lane_place(shape);
  const int heads = a.queryHeads + 2 * a.kvHeads;
  __syncwarp();
#pragma unroll 4
  for (int i = 0; i < kRows; i++) {
    LaneValues v = {};
    if (first + i < unit.packedCount) {
      const int row = unit.item.firstRow + (first + i) / unit.group;
      const int head = unit.kvHead * unit.group + (first + i) % unit.group;
      v = load_head(a.qkv + (size_t(row) * heads + head) * kHeadDim, place);
      rotate_head(v, a.turns + (long long)(a.positions[row] - offset) * (a.rotaryDim / 2), place);
    }
    store_head(queries + i * kStride, place, v);
  }
  __syncwarp();
}

/* Tokens of the cursor's slice that a packed row sees. */
template <int kTokens>
__device__ __forceinline__ int token_limit(const Unit &unit, const Cursor<kTokens> &at, int packedRow) {
  return min(at.slice.tokenCount, at.slice.firstVisible + packedRow / unit.group);
}

/* Lane's place in the 16x16 corner of a matrix in shared memory for load_matrices. */
__device__ __forceinline__ int row_fragment_offset() { /* A row-major; B of V, transposed */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + ((lane >> 3) & 1) * 8) * kStride + (lane >> 4) * 8;
}
__device__ __forceinline__ int key_fragment_offset() { /* B of K: tokens are its columns */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + (lane >> 4) * 8) * kStride + ((lane >> 3) & 1) * 8;
}

/* Where two values of a packed row go, from dimension `column` on; logSum once a row. */
__device__ __forceinline__ void write_result(const AttentionArguments &a, const Unit &unit, int packedRow, int column,
                                             float first, float second) {
  const int row = packedRow / unit.group, head = unit.kvHead * unit.group + packedRow % unit.group;
  if (unit.item.firstPartial < 0) {
    const size_t at = size_t(unit.item.firstRow + row) * a.queryHeads + head;
    *reinterpret_cast<uint32 *>(a.out + at * kHeadDim + column) = pack_bf16(first, second);
  } else {
    const size_t at = size_t(unit.item.firstPartial + row) * a.queryHeads + head;
    *reinterpret_cast<float2 *>(a.partialOut + at * kHeadDim + column) = make_float2(first, second);
  }
}

__device__ __forceinline__ void write_sum(const AttentionArguments &a, const Unit &unit, int packedRow, float logSum) {
  if (unit.item.firstPartial < 0) return;
  const int row = packedRow / unit.group, head = unit.kvHead * unit.group + packedRow % unit.group;
  a.partialSums[size_t(unit.item.firstPartial + row) * a.queryHeads + head] = logSum;
}

/* Running softmax of the rows g and g + 8 of a 16-row fragment, g = lane / 4; four lanes share a row. */
struct RunningSoftmax {
  float greatest[2], sum[2];

  __device__ __forceinline__ void reset() {
    greatest[0] = greatest[1] = -infinity();
    sum[0] = sum[1] = 0;
  }

  /* Scores become weights; `rescale` gets what earlier sums must be multiplied with. @return whether that is not 1. */
  template <int kTiles>
  __device__ __forceinline__ bool update(float (&scores)[kTiles][4], float scaleLog2, float (&rescale)[2]) {
    bool changed = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float top = greatest[r];
#pragma unroll
      for (int n = 0; n < kTiles; n++) top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float base = top == -infinity() ? 0.0f : top * scaleLog2;
      changed |= top != greatest[r];
      rescale[r] = exp2_fast(greatest[r] * scaleLog2 - base);
      greatest[r] = top;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; i++) {
          scores[n][i] = exp2_fast(fmaf(scores[n][i], scaleLog2, -base));
          total += scores[n][i];
        }
      }
      sum[r] = sum[r] * rescale[r] + total;
    }
    return changed;
  }

  /* log2 of the sum of weights of row g + 8 r, after `finish`. */
  __device__ __forceinline__ float log_sum(int r, float scaleLog2) const {
    return sum[r] > 0 ? greatest[r] * scaleLog2 + log2f(sum[r]) : -infinity();
  }

  /* The sums of the four lanes of a row together. */
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 1);
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 2);
    }
  }
};

#endif
