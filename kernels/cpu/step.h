/* The plan of one step: the caller's arrays, copied and checked, and the work list made from them. */
#ifndef SPANGATE_KERNELS_STEP_H
#define SPANGATE_KERNELS_STEP_H

#include <vector>

#include "internal.h"

namespace spg {

/* The caller's arrays, as spg_step_begin received them. */
struct StepArguments {
  const int32_t *positions, *slots;
  int32_t rows;
  const int32_t *pieceRows, *pieceSegments, *pieceGenerated;
  int32_t pieces;
  const int32_t *segmentBlockStarts, *segmentFirstTokens, *segmentTokenCounts, *segmentOffsets, *segmentPositions;
  int32_t segments;
  const int32_t *blockIds;
  int32_t blockIdCount;
};

/* What one layer's attention is made of. */
struct WorkList {
  std::vector<Section> sections;
  std::vector<Tile> tiles;
  std::vector<Member> members;
  std::vector<Item> items;
  /* Scratch of plan_step: [segments] the segment's first section; [sections] does a pack compute the section? */
  std::vector<int> segmentSections;
  std::vector<char> sectionPacked;
  /* How many floats the partial results of split tiles take. */
  size_t partialFloats = 0;
  std::vector<int32_t> pending;
  /* Nanoseconds that one layer's attention would take one thread, by plan.cpp's estimate. */
  double costNs = 0;
};

/* What layers of one kind attend to: the step as they see it, and the work that it is cut into. */
struct Planned {
  StepView view{};
  WorkList list;
};

/* One for prompts' rows and one for generated rows. */
constexpr int kMostAttenders = 2;

/* The kernels that attend for some rows. */
struct Attender {
  Rows rows = kAllRows;
  const KernelTable *kernels = nullptr;
  /* The pool, with what its work costs by these kernels. */
  PoolView view{};
  /* In layers that see all, and in those that slide. */
  Planned work, sliding;
};

struct Step {
  bool ready = false;
  /* Without a work list. */
  StepView view{};
  std::vector<int32_t> positions, slots, pieceRows, pieceSegments, pieceGenerated;
  std::vector<int32_t> segmentBlockStarts, segmentFirstTokens, segmentTokenCounts, segmentOffsets, segmentPositions;
  std::vector<int32_t> blockIds;
  /* Which step or copy wrote a slot last; so a step in which a slot has two writers is found and refused. */
  std::vector<uint32_t> slotStamps;
  uint32_t stamp = 0;
};

/* Checks the plan against the pool; changes nothing but the slots' stamps. Returns an spg_status. */
int32_t check_step(const StepArguments &plan, const PoolView &pool, Step &step);
/* A stamp that no slot has. */
uint32_t fresh_stamp(const PoolView &pool, Step &step);
/* Checks slots and deltas against the pool. Returns an spg_status. */
int32_t check_copies(const TokenCopies &copies, const PoolView &pool, Step &step);
/* Copies a checked plan. */
void copy_step(const StepArguments &plan, Step &step);
/* Makes an attender's work lists of a copied plan for this many threads. */
void plan_step(const Step &step, int threads, Attender &attender);

}

#endif
