/* The choices of one step: the caller's arrays, checked and copied. */
#include <math.h>

#include <algorithm>

#include "pool.h"
#include "sparse.h"

namespace spg {
namespace {

constexpr int32_t kMostRefreshSteps = 1 << 16;
/* Bounds that keep sums of token numbers within 32 bits. */
constexpr int64_t kMostCandidates = 1 << 28;

bool fits(int64_t value, int64_t low, int64_t high) {
  return value >= low && value <= high;
}

bool has_null(const ChoiceArguments &plan) {
  const void *const all[] = {plan.pieces,
                             plan.seats,
                             plan.flags,
                             plan.modes,
                             plan.tokens,
                             plan.refreshSteps,
                             plan.leastCosines,
                             plan.segments,
                             plan.segmentBlockStarts,
                             plan.segmentFirstTokens,
                             plan.segmentTokenCounts,
                             plan.segmentOffsets,
                             plan.segmentForced,
                             plan.blockIds};
  return std::any_of(std::begin(all), std::end(all), [](const void *each) { return !each; });
}

/* Whether an entry names a piece, a seat and a mode that there are, and pieces rise. */
bool entry_fits(const ChoiceArguments &plan, const spg_pool &pool, int e) {
  const SparseState &sparse = *pool.sparse;
  const int32_t mode = plan.modes[e], flags = plan.flags[e];
  const bool needsRing = mode == SPG_CHOOSE_AHEAD || mode == SPG_CHOOSE_LAST || mode == SPG_CHOOSE_LISTING;
  const bool isWatched = (flags & SPG_WATCH) != 0;
  return fits(plan.pieces[e], e == 0 ? 0 : plan.pieces[e - 1] + 1, pool.step.view.pieces - 1) &&
         fits(plan.seats[e], 0, sparse.seats - 1) && fits(mode, SPG_CHOOSE_NOW, SPG_CHOOSE_LISTING) &&
         (!needsRing || sparse.rings) && (flags & ~(SPG_FRESH | SPG_WATCH | SPG_STALE)) == 0 &&
         fits(plan.tokens[e], isWatched ? 0 : 1, sparse.listTokens) &&
         fits(plan.refreshSteps[e], 1, kMostRefreshSteps) && fabsf(plan.leastCosines[e]) <= 1 &&
         plan.segments[e] <= plan.segments[e + 1] && (plan.segments[e] == plan.segments[e + 1]) == isWatched;
}

int32_t check_entries(const ChoiceArguments &plan, const spg_pool &pool) {
  if (plan.count < 1 || plan.segmentCount < 0 || plan.blockIdCount < 0) return SPG_E_CHOICE;
  if (plan.segments[0] != 0 || plan.segments[plan.count] != plan.segmentCount) return SPG_E_CHOICE;
  for (int e = 0; e < plan.count; e++) {
    if (!entry_fits(plan, pool, e)) return SPG_E_CHOICE;
    for (int before = 0; before < e; before++) {
      if (plan.seats[before] == plan.seats[e]) return SPG_E_CHOICE;
    }
  }
  for (int i = 0; i < plan.blockIdCount; i++) {
    if (!fits(plan.blockIds[i], 0, pool.view.blocks - 1)) return SPG_E_BLOCK_ID;
  }
  return SPG_OK;
}

int32_t check_candidates(const ChoiceArguments &plan, const PoolView &pool) {
  for (int s = 0; s < plan.segmentCount; s++) {
    const int64_t first = plan.segmentFirstTokens[s], tokens = plan.segmentTokenCounts[s];
    const int64_t start = plan.segmentBlockStarts[s];
    if (!fits(first, 0, pool.blockTokens - 1) || !fits(tokens, 1, kMostCandidates) || start < 0) return SPG_E_SEGMENT;
    const int64_t blocks = (first + tokens + pool.blockTokens - 1) / pool.blockTokens;
    if (start + blocks > plan.blockIdCount || !fits(plan.segmentForced[s], 0, tokens)) return SPG_E_SEGMENT;
    if (!fits(plan.segmentOffsets[s], 1 - pool.maxPositions, pool.maxPositions - 1)) return SPG_E_POSITION;
  }
  return SPG_OK;
}

/* Whether the segments of the entry's piece are a buffer of as many tokens as are chosen, and a tail. */
bool buffer_fits(const Choice &choice, const spg_pool &pool) {
  const StepView &step = pool.step.view;
  const int first = step.pieceSegments[choice.piece];
  if (choice.endRow - choice.firstRow != 1 || step.pieceSegments[choice.piece + 1] - first != 2) return false;
  return step.segmentFirstTokens[first] == 0 && step.segmentOffsets[first] == 0 &&
         step.segmentTokenCounts[first] == choice.bufferTokens && choice.bufferTokens <= pool.sparse->listTokens;
}

void copy_segments(const ChoiceArguments &plan, const PoolView &pool, SparseState &sparse) {
  sparse.segments.resize(plan.segmentCount);
  const size_t tables = 2, row = pool.rotaryDim;
  sparse.rotations.resize(plan.segmentCount * tables * row);
  sparse.blockIds.assign(plan.blockIds, plan.blockIds + plan.blockIdCount);
  double rotation[kMaxHeadDim];
  for (int s = 0; s < plan.segmentCount; s++) {
    const int offset = plan.segmentOffsets[s];
    sparse.segments[s] = {plan.segmentBlockStarts[s], plan.segmentFirstTokens[s], plan.segmentTokenCounts[s],
                          offset,                     plan.segmentForced[s],      0,
                          {nullptr, nullptr}};
    for (size_t table = 0; table < tables; table++) {
      if (offset == 0 || !pool.inverseFrequencies[table] || row == 0) continue;
      float *own = sparse.rotations.data() + (s * tables + table) * row;
      fill_rotation(pool.inverseFrequencies[table], pool.rotaryDim / 2, offset, 1, rotation);
      std::copy(rotation, rotation + row, own);
      sparse.segments[s].rotations[table] = own;
    }
  }
}

/* One entry, with what its segments add up to. */
Choice choice_of(const ChoiceArguments &plan, const StepView &step, SparseState &sparse, int e) {
  Choice choice{};
  choice.piece = plan.pieces[e];
  choice.firstRow = step.pieceRows[choice.piece], choice.endRow = step.pieceRows[choice.piece + 1];
  choice.seat = plan.seats[e], choice.flags = plan.flags[e], choice.mode = plan.modes[e];
  choice.tokens = plan.tokens[e];
  choice.refreshSteps = plan.refreshSteps[e], choice.leastCosine = plan.leastCosines[e];
  choice.firstSegment = plan.segments[e], choice.endSegment = plan.segments[e + 1];
  int64_t candidates = 0, forced = 0;
  for (int s = choice.firstSegment; s < choice.endSegment; s++) {
    sparse.segments[s].number = static_cast<int>(std::min(candidates, kMostCandidates));
    candidates += sparse.segments[s].tokenCount;
    forced += sparse.segments[s].forced;
  }
  choice.candidates = static_cast<int>(std::min(candidates, kMostCandidates + 1));
  choice.forced = static_cast<int>(std::min(forced, candidates));
  choice.bufferTokens = choice.forced + std::min(choice.tokens, choice.candidates - choice.forced);
  const int first = step.pieceSegments[choice.piece];
  choice.bufferStart = step.segmentBlockStarts[first];
  choice.tailSegment = step.pieceSegments[choice.piece + 1] - 1;
  return choice;
}

/* Whether no block of a buffer is another's, holds a candidate, or is written or seen as something else in the step. */
bool buffers_are_own(spg_pool &pool) {
  SparseState &sparse = *pool.sparse;
  const StepView &step = pool.step.view;
  const int blockTokens = pool.view.blockTokens;
  if (++sparse.stamp == 0) {
    std::fill(sparse.blockStamps.begin(), sparse.blockStamps.end(), 0);
    sparse.stamp = 1;
  }
  std::vector<char> isBuffer(step.segments, 0);
  for (const Choice &choice : sparse.choices) {
    if (choice.flags & SPG_WATCH) continue;
    isBuffer[step.pieceSegments[choice.piece]] = 1;
    for (int b = 0; b < (choice.bufferTokens + blockTokens - 1) / blockTokens; b++) {
      uint32_t &stamp = sparse.blockStamps[step.blockIds[choice.bufferStart + b]];
      if (stamp == sparse.stamp) return false;
      stamp = sparse.stamp;
    }
  }
  auto isFree = [&](int block) { return sparse.blockStamps[block] != sparse.stamp; };
  for (int s = 0; s < step.segments; s++) {
    const int blocks = (step.segmentFirstTokens[s] + step.segmentTokenCounts[s] + blockTokens - 1) / blockTokens;
    for (int b = 0; b < blocks && !isBuffer[s]; b++) {
      if (!isFree(step.blockIds[step.segmentBlockStarts[s] + b])) return false;
    }
  }
  return std::all_of(sparse.blockIds.begin(), sparse.blockIds.end(), isFree);
}

/* Memory and rows of rotation for the step's tasks. */
void reserve_scratch(spg_pool &pool) {
  const PoolView &view = pool.view;
  size_t most = kPanelTokens, list = 1;
  for (const Choice &choice : pool.sparse->choices) {
    if (choice.flags & SPG_WATCH) continue;
    const StepView &step = pool.step.view;
    const size_t read = static_cast<size_t>(choice.candidates) + step.segmentTokenCounts[choice.tailSegment];
    most = std::max(most, (read + 2 * kPanelTokens) / kPanelTokens * kPanelTokens);
    list = std::max<size_t>(list, choice.bufferTokens);
    for (int s = choice.firstSegment; s < choice.endSegment; s++) {
      const int position = step.positions[choice.firstRow] - pool.sparse->segments[s].offset;
      for (auto &rope : pool.ropes) {
        if (rope) rope->ensure(position);
      }
    }
    for (auto &rope : pool.ropes) {
      if (rope) rope->ensure(step.positions[choice.firstRow]);
    }
  }
  const size_t queryFloats = static_cast<size_t>(view.group) * view.headDim;
  pool.sparse->headCounts.resize(pool.sparse->choices.size() * view.kvHeads);
  for (ChooseScratch &each : pool.sparse->scratch) {
    each.scores.resize(most * view.group);
    each.best.resize(most);
    each.ranks.resize(most + 2 * kPanelTokens);
    each.panel.resize(static_cast<size_t>(view.headDim) * kPanelTokens);
    each.bare.resize(queryFloats), each.queries.resize(queryFloats), each.window.resize(queryFloats);
    each.shadowQueries.resize(view.group);
    each.chosen.resize(most / 64 + 1), each.exact.resize(most / 64 + 1), each.set.resize(most / 64 + 1);
    for (auto *numbers : {&each.sources, &each.targets, &each.deltas, &each.numbers}) numbers->resize(list);
    each.rotations.resize(list);
  }
}

/* What a seat's new owner, or KV that was computed anew, makes of what the seat has: in all layers, run or not. */
void forget(SparseState &sparse, const Choice &choice, int layers) {
  SeatLayer *seat = sparse.seatLayers.data() + static_cast<size_t>(choice.seat) * layers;
  for (int layer = 0; layer < layers; layer++) {
    if (choice.flags & SPG_FRESH) seat[layer] = SeatLayer();
    if (choice.flags & SPG_STALE) seat[layer].listTokens = 0;
  }
}

}

int32_t begin_choices(spg_pool &pool, const ChoiceArguments &plan) {
  if (!pool.sparse) return SPG_E_SPARSE;
  SparseState &sparse = *pool.sparse;
  sparse.choices.clear();
  if (has_null(plan)) return SPG_E_NULL;
  int32_t status = check_entries(plan, pool);
  if (status == SPG_OK) status = check_candidates(plan, pool.view);
  if (status != SPG_OK) return status;
  copy_segments(plan, pool.view, sparse);
  for (int e = 0; e < plan.count; e++) {
    const Choice choice = choice_of(plan, pool.step.view, sparse, e);
    const bool isWatched = (choice.flags & SPG_WATCH) != 0;
    if (choice.candidates > kMostCandidates || (!isWatched && !buffer_fits(choice, pool))) status = SPG_E_CHOICE;
    sparse.choices.push_back(choice);
  }
  if (status == SPG_OK && !buffers_are_own(pool)) status = SPG_E_CHOICE;
  if (status != SPG_OK) {
    sparse.choices.clear();
    return status;
  }
  reserve_scratch(pool);
  for (const Choice &choice : sparse.choices) forget(sparse, choice, pool.view.layers);
  return SPG_OK;
}

}
