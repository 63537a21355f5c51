/*
 * Sparse decoding: what is kept for it beside a pool, and the choices of one step. kernels/abi_sparse.h says what is
 * chosen and why. Here is the state, and who writes it:
 *
 *   shadows          whoever writes K (run_write_kv, run_copy_tokens, blocks that were opened or loaded)
 *   lists, ref       run_choices, each (seat, layer, KV head) by one task
 *   ring             run_choices, each (seat, layer, query head) by one task
 *   SeatLayer        run_choices, when its tasks are done
 *   choices          begin_choices, once for each step
 */
#ifndef SPANGATE_KERNELS_SPARSE_H
#define SPANGATE_KERNELS_SPARSE_H

#include <vector>

#include "../abi_sparse.h"
#include "choose.h"
#include "memory.h"

struct spg_pool;

namespace spg {

/* Queries that are kept of a seat, at their position modulo this: 17 are read, and some rows may be computed twice. */
constexpr int kRingQueries = 32;

/* The arguments of spg_step_choices, whose comment describes them. */
struct ChoiceArguments {
  const int32_t *pieces, *seats, *flags, *modes, *tokens, *refreshSteps;
  const float *leastCosines;
  const int32_t *segments;
  int32_t count;
  const int32_t *segmentBlockStarts, *segmentFirstTokens, *segmentTokenCounts, *segmentOffsets, *segmentForced;
  int32_t segmentCount;
  const int32_t *blockIds;
  int32_t blockIdCount;
};

/* A segment to choose from. */
struct ChoiceSegment {
  int blockStart, firstToken, tokenCount, offset, forced;
  int number; /* of its first token */
  /* Rotation by the offset, of each table: null where it is 0. */
  const float *rotations[2];
};

/* One entry of a step's choices. */
struct Choice {
  int piece, firstRow, endRow;
  int seat, flags, mode, tokens, refreshSteps;
  float leastCosine;
  int firstSegment, endSegment;
  int candidates; /* tokens of all segments, forced ones with them */
  int forced;
  int bufferTokens, bufferStart; /* what the buffer holds, and its first block in StepView::blockIds */
  int tailSegment;               /* of StepView */
};

/* What a seat has of a layer. */
struct SeatLayer {
  int listTokens = 0;  /* of each KV head's list; 0: nothing is chosen */
  int candidates = 0;  /* when the lists were chosen */
  uint32_t steps = 0;  /* since the seat was fresh */
  int32_t ringPositions[kRingQueries]; /* -1: empty */
  double counts[SPG_COUNTS] = {};

  SeatLayer() { forget_ring(); }
  void forget_ring() {
    for (int32_t &position : ringPositions) position = -1;
  }
};

/* What a step adds to a seat's counts by one KV head. */
struct HeadCounts {
  int chosen, chosenAgain, changed;
  double mass, overlap;
};

/* Memory of one thread. Allocated when a step begins, so that no task has to. */
struct ChooseScratch {
  std::vector<float> scores, best, panel, bare, queries, window;
  std::vector<ShadowQuery> shadowQueries;
  std::vector<uint16_t> ranks;
  std::vector<uint64_t> chosen, exact, set;
  std::vector<int32_t> sources, targets, deltas, numbers;
  std::vector<const float *> rotations;
};

struct SparseState {
  ~SparseState();

  const ChooseTable *table = nullptr;
  ShadowView shadows{};
  size_t shadowBytes = 0;
  int seats = 0, listTokens = 0, rings = 0;
  /* [seats][layers][kvHeads][listTokens] the number of the token that each slot of the buffer holds. */
  int32_t *lists = nullptr;
  /* [seats][layers][queryHeads][headDim] the query that chose. */
  float *refs = nullptr;
  /* [seats][layers][kRingQueries][queryHeads][headDim] bare queries: normed, unrotated, unscaled. */
  float *ring = nullptr;
  size_t listBytes = 0, refBytes = 0, ringBytes = 0;
  std::vector<SeatLayer> seatLayers; /* [seats][layers] */
  /* Of the step that has begun; none: every row reads all it sees. */
  std::vector<Choice> choices;
  std::vector<ChoiceSegment> segments;
  std::vector<int32_t> blockIds;
  std::vector<float> rotations;
  std::vector<uint32_t> blockStamps;
  uint32_t stamp = 0;
  std::vector<HeadCounts> headCounts; /* [choices][kvHeads] */
  std::vector<ChooseScratch> scratch; /* [threads] */
};

/* Makes room for a pool's shadows and seats. Returns an spg_status; throws std::bad_alloc. */
int32_t open_sparse(spg_pool &pool, int32_t seats, int32_t listTokens, int32_t rings);
/* Checks the choices of the step that has begun and copies them. Returns an spg_status; throws std::bad_alloc. */
int32_t begin_choices(spg_pool &pool, const ChoiceArguments &plan);
/* Chooses in one layer, and copies what is chosen into the buffers. K and V of the step's rows are written. */
void run_choices(spg_pool &pool, const LayerCall &call);

/* Write the shadows of K that the pool holds: of the step's rows in a layer, of slots, and of one block. */
void shadow_rows(spg_pool &pool, int layer);
void shadow_slots(spg_pool &pool, const int32_t *slots, int count);
void shadow_block(const spg_pool &pool, int block);

}

#endif
