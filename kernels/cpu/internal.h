/*
 * Shared by the translation units of the CPU kernels. The views are plain data: kernels.cpp is compiled once per
 * instruction set and must not emit shared inline functions (the linker could pick an AVX-512 copy for a CPU without
 * it). So nothing here that kernels.cpp uses has member functions or standard containers.
 */
#ifndef SPANGATE_KERNELS_INTERNAL_H
#define SPANGATE_KERNELS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "../abi.h"

namespace spg {

/* Tokens of one panel: the K columns that one AVX-512 register (or two AVX2 registers) holds. */
constexpr int kPanelTokens = 16;
/* Tokens of one section, the unit of online softmax and of the merge. Changing it changes the bits of results. */
constexpr int kSectionTokens = 256;
constexpr int kSectionPanels = kSectionTokens / kPanelTokens;
/* Floats between the score rows of two queries; not a power of two, so that rows do not share cache sets. */
constexpr int kScoreStride = kSectionTokens + 16;
constexpr int kMaxHeadDim = 256;
/* The greatest finite float16. Larger values are stored as this, so that one outlier does not become infinite. */
constexpr float kMaxHalf = 65504;
constexpr int kMaxQueryGroup = 256;
/* mx8: dimensions that share a scale, the least scale, and the one that says NaN (abi.h). */
constexpr int kMx8Group = 32, kMx8LeastScale = 7, kMx8NanScale = 255;
/* mx8: a scale of s stands for 2^(s - kMx8Bias). */
constexpr int kMx8Bias = 133;

/* What a work list has to know of kernels. Times are nanoseconds of one core, for 64 dimensions. */
struct KernelCosts {
  int tileQueries; /* query vectors of one tile, which share each load of K and V */
  double tokenNs;  /* for a token's K and V, whatever the number of queries */
  double queryNs;  /* for a query over a token */
};

/* The geometry and memory of one pool. */
struct PoolView {
  int layers, blocks, blockTokens;
  int queryHeads, kvHeads, group, headDim;
  int rotaryDim, interleaved, maxPositions;
  int elementBytes; /* 4: float32, 2: float16, 1: mx8 */
  KernelCosts costs; /* of the pool's kernels */
  int packing;      /* 0: no item has members of several pieces */
  int window;       /* 0: no layer slides */
  float softmaxScale, ropeFactors[2], normEps;
  float scoreCap; /* 0: none */
  unsigned char *data;
  size_t headBytes;  /* K and V of one head in one block */
  size_t blockBytes; /* kvHeads * headBytes */
  size_t layerBytes; /* blocks * blockBytes */
  /* Of each table. */
  const double *inverseFrequencies[2];
  /* Row of position 0 of each cos/sin table: [rotaryDim / 2] cosines, then sines, both times its ropeFactor. */
  const float *ropeOrigins[2];
  /* [layers] sums of spg_layer. */
  const uint8_t *layerKinds;
  /* [layers][queryHeads], or null. */
  const float *sinks;
};

static inline bool rotates(const PoolView &pool, int layer) {
  return (pool.layerKinds[layer] & SPG_ROTATES) != 0;
}

/* The table by which a layer's q and k are rotated. */
static inline int rope_table(const PoolView &pool, int layer) {
  return pool.layerKinds[layer] & SPG_SECOND_ROPE ? 1 : 0;
}

/* The row of a position in the table of rotations; nullptr in a layer without RoPE. */
static inline const float *rope_row(const PoolView &pool, int layer, int position) {
  if (!rotates(pool, layer)) return nullptr;
  return pool.ropeOrigins[rope_table(pool, layer)] + static_cast<ptrdiff_t>(position) * pool.rotaryDim;
}

static inline bool slides(const PoolView &pool, int layer) {
  return (pool.layerKinds[layer] & SPG_SLIDES) != 0;
}

/* The sink of a head; -infinity: it has none. */
static inline float sink_of(const PoolView &pool, int layer, int queryHead) {
  return pool.sinks ? pool.sinks[static_cast<size_t>(layer) * pool.queryHeads + queryHead] : -__builtin_inff();
}

/* Up to kSectionTokens tokens of one segment, aligned to the segment's first block. */
struct Section {
  int blockStart; /* index into StepView::blockIds */
  int firstToken; /* tokens [firstToken, endToken) of the section are seen by the piece's last row */
  int endToken;
  int offset;     /* the segment's Δ */
  int causal;     /* 1: row r of R sees R - 1 - r tokens fewer than the last row (never below zero in all) */
  int segment;
  int position;   /* of the section's token 0, in the positions of the piece's rows */
};

/*
 * Rows [firstRow, firstRow + rowCount) of one piece. rowsAfter: how many rows of the piece follow the tile's last one.
 */
struct Tile {
  int firstRow, rowCount, rowsAfter;
  /* The least and the greatest position of its rows. */
  int leastPosition, greatestPosition;
  int firstSection, sectionCount;
  int itemCount;
  /* If the tile has several items: where the partial results of KV head 0 begin, and the index of its counter. */
  size_t partialStart;
  int counter;
};

/* Sections from firstSection on of one tile. */
struct Member {
  int tile, firstSection;
};

/*
 * A unit of work, done once for each KV head: sectionCount sections of every member. An item of several members is a
 * pack: tiles whose rows see all of the same blocks, each at an offset of its own, so that a block is loaded once.
 */
struct Item {
  int firstMember, memberCount, sectionCount;
};

struct StepView {
  int rows, pieces, segments;
  /* Tokens that a row sees, itself included; 0: all that its segments let it see. */
  int window;
  const int32_t *positions, *slots, *pieceRows, *pieceSegments;
  /* [pieces] not 0: of generated rows. Null: all are a prompt's. */
  const int32_t *pieceGenerated;
  const int32_t *segmentBlockStarts, *segmentFirstTokens, *segmentTokenCounts, *segmentOffsets, *blockIds;
  /* Null where no layer slides. */
  const int32_t *segmentPositions;
  const Section *sections;
  const Tile *tiles;
  const Member *members;
  const Item *items;
  int itemCount;
};

static inline unsigned char *head_data(const PoolView &pool, int layer, int block, int kvHead) {
  return pool.data + static_cast<size_t>(layer) * pool.layerBytes + static_cast<size_t>(block) * pool.blockBytes +
         static_cast<size_t>(kvHead) * pool.headBytes;
}

static inline bool is_mx8(const PoolView &pool) {
  return pool.elementBytes == 1;
}

/* mx8: the scales of a token's K begin here, a row of blockTokens later for each group of dimensions. */
static inline size_t key_scales_at(const PoolView &pool, int token) {
  return static_cast<size_t>(2) * pool.headDim * pool.blockTokens + token;
}

/* mx8: the scales of a token's V, one after the other. */
static inline size_t value_scales_at(const PoolView &pool, int token) {
  const size_t groups = pool.headDim / kMx8Group;
  return static_cast<size_t>(2) * pool.headDim * pool.blockTokens + groups * (pool.blockTokens + token);
}

/* The first token of a section that a row at `position` sees; at or behind the section's end: it sees none. */
static inline int first_token_seen(const StepView &step, const Section &section, int position) {
  if (step.window == 0) return section.firstToken;
  const int first = position - step.window + 1 - section.position;
  return first > section.firstToken ? first : section.firstToken;
}

/* How many rows of a piece one tile takes, and how many query vectors that makes. */
static inline int tile_rows(const PoolView &pool) {
  return pool.group < pool.costs.tileQueries ? pool.costs.tileQueries / pool.group : 1;
}
static inline int tile_queries(const PoolView &pool) {
  return tile_rows(pool) * pool.group;
}

/* headDim rounded up to whole vectors. */
static inline int padded_dim(const PoolView &pool) {
  return (pool.headDim + 15) / 16 * 16;
}

/* Floats that one section's partial result of a tile takes: maxima, sums, weighted values. */
static inline size_t partial_floats(const PoolView &pool, int queries) {
  return (static_cast<size_t>(queries) * (padded_dim(pool) + 2) + 15) / 16 * 16;
}

/* One layer's activations, as spg_attention received them. */
struct LayerCall {
  int layer;
  const float *qkv;
  size_t qkvStride;
  const float *qNorm, *kNorm;
  float *out;
};

/* Tokens that are copied from slot to slot, each moved by its delta positions; [count]. */
struct TokenCopies {
  const int32_t *sourceSlots, *targetSlots, *deltas;
  int count;
};

/* Which pieces' rows a work list is of. */
enum Rows { kAllRows, kPromptRows, kGeneratedRows };

/* Memory shared by the items of a step. */
struct SharedState {
  float *partials;
  int32_t *pending; /* how many items of each split (tile, KV head) are unfinished */
};

/* The kernels of one instruction set. Tasks may run in any order and on any thread. */
struct KernelTable {
  KernelCosts costs;
  size_t (*scratchFloats)(const PoolView &pool);
  void (*writeRows)(const PoolView &pool, const StepView &step, const LayerCall &call, int firstRow, int endRow);
  /* task = item * kvHeads + kvHead */
  void (*attendTask)(const PoolView &pool, const StepView &step, const LayerCall &call, const SharedState &shared,
                     int task, float *scratch);
  /* Copies one head of one layer. `rotations`: [count] cosines, then sines, of each token's rotation. */
  void (*copyTokens)(const PoolView &pool, const TokenCopies &copies, const float *const *rotations, int layer,
                     int kvHead);
  /* Writes call.out[row] for rows [firstRow, endRow). */
  void (*deviateRows)(const PoolView &pool, const StepView &step, const LayerCall &call, int firstRow, int endRow);
  void (*embedRow)(const void *table, int type, size_t start, int width, float *out);
};

const KernelTable *avx2_kernels();
const KernelTable *avx512_kernels();
const KernelTable *amx_kernels();

/* The slow twin: same results within rounding, from the plan's own arrays (no tiles, no sections, no tables). */
namespace reference {
void write_kv(const PoolView &pool, const StepView &step, const LayerCall &call);
void attend(const PoolView &pool, const StepView &step, const LayerCall &call);
void copy_tokens(const PoolView &pool, const TokenCopies &copies);
/* The same in one layer and KV head. */
void copy_head(const PoolView &pool, const TokenCopies &copies, int layer, int kvHead);
void deviations(const PoolView &pool, const StepView &step, const LayerCall &call);
void embed_rows(const void *table, int type, int width, const int32_t *tokenIds, int count, float *out);
}

}

#endif
