/*
 * The attention plan, which worker/attention/plan-format.ts writes, and what the kernels that follow it share.
 *
 * PLAN. An item is a set of rows of the step and the slices of tokens that they see. All rows of the item read the
 * first `sharedSlices` slices; each further slice is private: only rows of one tile read it. A slice is a stretch of
 * tokens over consecutive entries of blockIds. Its i-th row sees the first firstVisible + i tokens of it (all, where
 * that is more) and has an offset of its own, so that shared tokens may stand at a different position in each request.
 * Where layers slide, slices of large items may also hide a beginning: row i does not see tokens before i - late.
 *
 * TILES. The query heads of one KV head (a group) read the same keys. Item row i lies in tile i / rowsPerTile, where
 * rowsPerTile = max(1, 16 / group). Its packed row in the tile is (i % rowsPerTile) * group + head; the rest of the 16
 * is padding. Groups of more than 16 heads are cut into head tiles of 16. A unit is one item for one KV head and one
 * head tile.
 *
 * ROTATION. Stored K is rotated by its chain position. A row at p reads a slice of offset d with q rotated to p - d, so
 * q is rotated once for each (row, slice).
 *
 * SOFTMAX. Scores are multiplied by scale / ln 2, so that weights are powers of 2. The running reference and sum are
 * float32; weights are rounded to bf16 for the product with V (attention_softmax.cuh).
 *
 * PARTIAL RESULTS. A row that several items hold gets one partial result from each: float32, normalised, with log2 of
 * its sum of weights. The unit that arrives last at a row's counter merges them and sets the counter to zero. Where all
 * units run at the same time, each merges its share (attention_merge.cuh).
 *
 * SINKS. Where heads have sinks, a row's weights are divided by e^sink more than their sum. That is added once, for the
 * whole of a row: to a result that no other item shares, and in a merge.
 *
 * Compiled with HEAD_DIM, a multiple of 16 up to 256. Oracle: test/gpu/attention-oracle.ts.
 */
#ifndef SPANGATE_ATTENTION_PLAN_CUH
#define SPANGATE_ATTENTION_PLAN_CUH

#include "heads.cuh"
#include "mma.cuh"

constexpr int kHeadDim = HEAD_DIM;
static_assert(kHeadDim % 16 == 0 && kHeadDim <= 256, "head sizes are multiples of 16 up to 256");
constexpr int kTileRows = 16;

struct PlanRow {
  int row;     /* row of the step */
  int partial; /* the partial row that the item writes for it, or -1: the item writes the output itself */
  int merge;   /* index in `merges`, or -1 */
  int unused;
};

struct PlanItem {
  int firstRow, rowCount; /* in `rows` */
  int firstSlice, sharedSlices, sliceCount;
  int tokenCount; /* all tokens of its slices, by which items are sorted */
  int isSmallAlone; /* 1: all items of the plan are "small" */
  int unused;
};

struct PlanSlice {
  int block;                  /* place in blockIds */
  int firstToken, tokenCount; /* first token in that block; the slice goes on over the next blocks in blockIds */
  int firstOffset;            /* index in `offsets`, which has one for each row of the slice */
  int firstRow, rowCount;     /* rows of the item; in large items rowCount + 65536 * (1 + late), if any row is late */
  int firstVisible;
  /*
   * Only in small items. 0: q stays rotated as it is. Otherwise it says by what q is rotated for this slice and those
   * after it, up to the next slice whose `rotation` is not 0. Positive: 1 + the index in `offsets` of the offsets of
   * all rows of the item, kNotRead for a row that none of these slices has. Negative: -1 - the index of firstRow +
   * endRow * 65536, which the offsets of these rows follow.
   */
  int rotation;
};

constexpr int kNotRead = 1 << 31;

struct PlanMerge {
  int row, firstPartial, partCount, unused;
};

struct PlanArguments {
  const bf16 *qkv;      /* [rows][queryHeads + 2 * kvHeads][kHeadDim]: q normalised, not rotated */
  const bf16 *pool;     /* this layer's part of the KV pool (heads.cuh) */
  const float2 *rotations;  /* (cos, sin) rows of rotaryDim / 2 from rope_table.cu, at position 0 */
  const int *positions; /* [rows] */
  const PlanRow *rows;
  const PlanItem *items;
  const PlanSlice *slices;
  const int *offsets;
  const int *blockIds;
  const PlanMerge *merges;
  const int *itemCount;
  int queryHeads, kvHeads, rotaryDim;
  int blockTokens;    /* a power of two */
  float scaleLog2;    /* softmax scale / ln 2 */
  bf16 *out;          /* [rows][queryHeads][kHeadDim] */
  float *partialOut;  /* [partial rows][queryHeads][kHeadDim] */
  float *partialSums; /* [partial rows][queryHeads]: log2 of the sum of weights */
  int *arrivals;      /* [merges][kvHeads * headTiles]: zero between launches */
  const bf16 *sinks;  /* [queryHeads], or null */
};

/* The parameters of all kernels that follow a plan, in this order. */
#define PLAN_PARAMETERS                                                                                       \
  const bf16 *qkv, const bf16 *pool, const float2 *rotations, const int *positions, const PlanRow *rows,          \
      const PlanItem *items, const PlanSlice *slices, const int *offsets, const int *blockIds,                \
      const PlanMerge *merges, const int *itemCount, int queryHeads, int kvHeads, int rotaryDim,              \
      int blockTokens, float scaleLog2, bf16 *out, float *partialOut, float *partialSums, int *arrivals, \
      const bf16 *sinks
#define PLAN_ARGUMENTS                                                                                        \
  {qkv,     pool,       rotations,   positions, rows,        items,     slices, offsets,    blockIds,    merges,  \
   itemCount, queryHeads, kvHeads, rotaryDim, blockTokens, scaleLog2, out,    partialOut, partialSums, arrivals, sinks}

__device__ __forceinline__ int head_tiles_of_group(const PlanArguments &a) {
  return (a.queryHeads / a.kvHeads + kTileRows - 1) / kTileRows;
}

/* One item for one KV head and one tile of its query heads. */
struct PlanUnit {
  PlanItem item;
  int kvHead;
  int firstHead, headCount; /* of the query heads; a tile holds headCount packed rows for each of its rows */
  int rowsPerTile, tileCount;
  int counter; /* which of a merge's counters */
};

/* The units of an item are neighbours, so that units that run at the same time read the same part of the plan. */
__device__ __forceinline__ PlanUnit plan_unit(const PlanArguments &a, const PlanItem &item, int part) {
  const int group = a.queryHeads / a.kvHeads, headTiles = head_tiles_of_group(a);
  PlanUnit unit;
  unit.item = item;
  unit.counter = part;
  unit.kvHead = headTiles == 1 ? part : part / headTiles;
  const int firstOfGroup = (part - unit.kvHead * headTiles) * kTileRows;
  unit.firstHead = unit.kvHead * group + firstOfGroup;
  unit.headCount = min(kTileRows, group - firstOfGroup);
  unit.rowsPerTile = max(1, kTileRows / group);
  unit.tileCount = (item.rowCount + unit.rowsPerTile - 1) / unit.rowsPerTile;
  return unit;
}

/* unit index = item * (kvHeads * headTiles) + kvHead * headTiles + headTile */
__device__ __forceinline__ PlanUnit plan_unit_at(const PlanArguments &a, int index) {
  const int parts = a.kvHeads * head_tiles_of_group(a);
  return plan_unit(a, a.items[index / parts], index % parts);
}

/* The rows of one tile, one in each of the first rowsPerTile lanes of a warp; row -1 where there is none. */
struct TileRow {
  int row, partial, merge, position;
};

__device__ __forceinline__ TileRow tile_row_at(const PlanArguments &a, const PlanUnit &unit, int tile) {
  const int lane = threadIdx.x & 31, i = tile * unit.rowsPerTile + lane;
  if (lane >= unit.rowsPerTile || i >= unit.item.rowCount) return {-1, -1, -1, 0};
  const int4 words = *reinterpret_cast<const int4 *>(a.rows + unit.item.firstRow + i);
  return {words.x, words.y, words.z, a.positions[words.x]};
}

/* What is added to rowCount is `late` and 1 more, below this: with so many rows at most, no row would be late. */
constexpr int kNeverLate = 128;

/* A slice of a large item, its two numbers apart. */
struct LargeSlice : PlanSlice {
  int late; /* row i of the slice does not see tokens before i - late */

  __device__ __forceinline__ explicit LargeSlice(const PlanSlice &slice) : PlanSlice(slice) {
    late = rowCount >> 16 == 0 ? kNeverLate : (rowCount >> 16) - 1;
    rowCount &= 0xffff;
  }
};

/* How many tokens of a slice (or of a part of it) a row of the item sees. */
template <class Slice>
__device__ __forceinline__ int visible_tokens(const Slice &slice, int itemRow) {
  const int i = itemRow - slice.firstRow;
  return i < 0 || i >= slice.rowCount ? 0 : min(slice.tokenCount, slice.firstVisible + i);
}

/*
 * A warp writes the packed rows of a tile that take part in a slice into `queries` [16][kStride], rotated for it. The
 * others are left unchanged: their scores are masked. `offset` is that of the lane's row for the slice.
 */
template <int kStride, class Slice>
__device__ __forceinline__ void write_tile_queries(const PlanArguments &a, const PlanUnit &unit, int tile,
                                                   const TileRow &tileRow, const Slice &slice, int offset,
                                                   bf16 *queries) {
  const HeadShape shape = {kHeadDim, a.rotaryDim, a.kvHeads, a.blockTokens};
  const LanePlace place = lane_place(shape);
  const int firstRow = tile * unit.rowsPerTile;
  const int first = max(slice.firstRow - firstRow, 0);
  const int end = min(min(slice.firstRow + slice.rowCount, unit.item.rowCount) - firstRow, unit.rowsPerTile);
  const size_t width = size_t(a.queryHeads + 2 * a.kvHeads) * kHeadDim;
#pragma unroll 1
  for (int r = first; r < end; r++) {
    const int row = __shfl_sync(kAllLanes, tileRow.row, r);
    const int rotated = __shfl_sync(kAllLanes, tileRow.position - offset, r);
    const bf16 *from = a.qkv + row * width + unit.firstHead * kHeadDim;
    const float2 *rotation = a.rotations + (long long)rotated * (a.rotaryDim / 2);
    bf16 *to = queries + r * unit.headCount * kStride;
#pragma unroll 4
    for (int h = 0; h < unit.headCount; h++) {
      LaneValues v = load_head(from + h * kHeadDim, place);
      rotate_head(v, rotation, place);
      store_head(to + h * kStride, place, v);
    }
  }
}

/* The offset of the lane's row of a tile for a slice; 0 where the row takes no part. */
__device__ __forceinline__ const int *offset_at(const PlanArguments &a, const PlanSlice &slice, int itemRow) {
  const int i = itemRow - slice.firstRow;
  return a.offsets + slice.firstOffset + (i < 0 || i >= slice.rowCount ? 0 : i);
}

/* Where the result of a head of a row is stored, and where a partial result. */
__device__ __forceinline__ bf16 *result_at(const PlanArguments &a, int row, int head) {
  return a.out + (size_t(row) * a.queryHeads + head) * kHeadDim;
}
__device__ __forceinline__ float *partial_at(const PlanArguments &a, int partial, int head) {
  return a.partialOut + (size_t(partial) * a.queryHeads + head) * kHeadDim;
}

/* Stores two values of a packed row, from dimension `column` on, in the output or in its partial result. */
__device__ __forceinline__ void write_result(const PlanArguments &a, int row, int partial, int head, int column,
                                             float first, float second) {
  if (partial < 0) {
    *reinterpret_cast<uint32 *>(result_at(a, row, head) + column) = pack_bf16(first, second);
  } else {
    *reinterpret_cast<float2 *>(partial_at(a, partial, head) + column) = make_float2(first, second);
  }
}

/* What a head's sink adds to a sum of weights 2^(score - reference). */
__device__ __forceinline__ float sink_weight(const PlanArguments &a, int head, float reference) {
  constexpr float kLog2E = 1.4426950409f;
  return a.sinks ? exp2_fast(fmaf(to_float(a.sinks[head]), kLog2E, -reference)) : 0.0f;
}

/* By what a sum of values is multiplied, given the sum of its weights; a partial result has no part of the sink. */
__device__ __forceinline__ float result_factor(const PlanArguments &a, int partial, int head, float sum,
                                               float reference) {
  const float total = partial < 0 ? sum + sink_weight(a, head, reference) : sum;
  return total > 0 ? 1.0f / total : 0.0f;
}

__device__ __forceinline__ void write_log_sum(const PlanArguments &a, int partial, int head, float logSum) {
  if (partial >= 0) a.partialSums[size_t(partial) * a.queryHeads + head] = logSum;
}

#endif
