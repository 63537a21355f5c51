#include "step.h"

namespace spg {
namespace {

/* Bounds that keep sums of token indices within 32 bits. */
constexpr int64_t kMaxSegmentTokens = 1 << 30;

bool rises_to(const int32_t *starts, int32_t count, int32_t end) {
  if (starts[0] != 0 || starts[count] != end) return false;
  for (int i = 0; i < count; i++) {
    if (starts[i] >= starts[i + 1]) return false;
  }
  return true;
}

int32_t check_segments(const StepArguments &plan, const PoolView &pool) {
  for (int s = 0; s < plan.segments; s++) {
    const int64_t first = plan.segmentFirstTokens[s], tokens = plan.segmentTokenCounts[s];
    const int64_t start = plan.segmentBlockStarts[s];
    if (first < 0 || first >= pool.blockTokens || start < 0) return SPG_E_SEGMENT;
    if (tokens < 0 || tokens > kMaxSegmentTokens) return SPG_E_SEGMENT;
    const int64_t blocks = tokens == 0 ? 0 : (first + tokens + pool.blockTokens - 1) / pool.blockTokens;
    if (start + blocks > plan.blockIdCount) return SPG_E_SEGMENT;
    if (plan.segmentOffsets[s] <= -pool.maxPositions || plan.segmentOffsets[s] >= pool.maxPositions) {
      return SPG_E_POSITION;
    }
    if (pool.window > 0 && (plan.segmentPositions[s] < 0 || plan.segmentPositions[s] >= pool.maxPositions)) {
      return SPG_E_POSITION;
    }
  }
  for (int i = 0; i < plan.blockIdCount; i++) {
    if (plan.blockIds[i] < 0 || plan.blockIds[i] >= pool.blocks) return SPG_E_BLOCK_ID;
  }
  return SPG_OK;
}

/* Checks that the last segment of a piece leads to the slots of its rows. */
int32_t check_own_run(const StepArguments &plan, const PoolView &pool, int piece) {
  const int s = plan.pieceSegments[piece + 1] - 1;
  const int firstRow = plan.pieceRows[piece], endRow = plan.pieceRows[piece + 1];
  const int tokensBefore = plan.segmentTokenCounts[s] - (endRow - firstRow);
  if (tokensBefore < 0) return SPG_E_SEGMENT;
  for (int row = firstRow; row < endRow; row++) {
    const int token = plan.segmentFirstTokens[s] + tokensBefore + row - firstRow;
    const int block = plan.blockIds[plan.segmentBlockStarts[s] + token / pool.blockTokens];
    if (plan.slots[row] != block * pool.blockTokens + token % pool.blockTokens) return SPG_E_SLOT;
  }
  return SPG_OK;
}

int32_t check_rows(const StepArguments &plan, const PoolView &pool, Step &step) {
  const uint32_t stamp = fresh_stamp(pool, step);
  for (int row = 0; row < plan.rows; row++) {
    if (plan.positions[row] < 0 || plan.positions[row] >= pool.maxPositions) return SPG_E_POSITION;
    uint32_t &slotStamp = step.slotStamps[plan.slots[row]];
    if (slotStamp == stamp) return SPG_E_SLOT;
    slotStamp = stamp;
  }
  return SPG_OK;
}

void copy(std::vector<int32_t> &target, const int32_t *source, int32_t count, const int32_t *&view) {
  target.assign(source, source + count);
  view = target.data();
}

}

uint32_t fresh_stamp(const PoolView &pool, Step &step) {
  step.slotStamps.resize(static_cast<size_t>(pool.blocks) * pool.blockTokens);
  if (++step.stamp == 0) {
    std::fill(step.slotStamps.begin(), step.slotStamps.end(), 0);
    step.stamp = 1;
  }
  return step.stamp;
}

int32_t check_copies(const TokenCopies &copies, const PoolView &pool, Step &step) {
  if (!copies.sourceSlots || !copies.targetSlots || !copies.deltas) return SPG_E_NULL;
  if (copies.count < 1) return SPG_E_ROWS;
  const uint32_t stamp = fresh_stamp(pool, step);
  const int64_t slots = static_cast<int64_t>(pool.blocks) * pool.blockTokens;
  for (int i = 0; i < copies.count; i++) {
    const int32_t source = copies.sourceSlots[i], target = copies.targetSlots[i], delta = copies.deltas[i];
    if (source < 0 || source >= slots || target < 0 || target >= slots) return SPG_E_SLOT;
    if (delta <= -pool.maxPositions || delta >= pool.maxPositions) return SPG_E_POSITION;
    if (step.slotStamps[target] == stamp) return SPG_E_SLOT;
    step.slotStamps[target] = stamp;
  }
  for (int i = 0; i < copies.count; i++) {
    const bool isTarget = step.slotStamps[copies.sourceSlots[i]] == stamp;
    if (isTarget && copies.sourceSlots[i] != copies.targetSlots[i]) return SPG_E_SLOT;
  }
  return SPG_OK;
}

int32_t check_step(const StepArguments &plan, const PoolView &pool, Step &step) {
  if (!plan.positions || !plan.slots || !plan.pieceRows || !plan.pieceSegments || !plan.segmentBlockStarts ||
      !plan.segmentFirstTokens || !plan.segmentTokenCounts || !plan.segmentOffsets || !plan.blockIds) {
    return SPG_E_NULL;
  }
  if (pool.window > 0 && !plan.segmentPositions) return SPG_E_WINDOW;
  if (plan.rows < 1) return SPG_E_ROWS;
  if (plan.pieces < 1 || plan.pieces > plan.rows || plan.segments < plan.pieces || plan.blockIdCount < 1) {
    return SPG_E_PIECES;
  }
  if (!rises_to(plan.pieceRows, plan.pieces, plan.rows)) return SPG_E_PIECES;
  if (!rises_to(plan.pieceSegments, plan.pieces, plan.segments)) return SPG_E_PIECES;
  int32_t status = check_segments(plan, pool);
  for (int piece = 0; piece < plan.pieces && status == SPG_OK; piece++) status = check_own_run(plan, pool, piece);
  return status == SPG_OK ? check_rows(plan, pool, step) : status;
}

void copy_step(const StepArguments &plan, Step &step) {
  StepView &view = step.view;
  view.rows = plan.rows;
  view.pieces = plan.pieces;
  view.segments = plan.segments;
  copy(step.positions, plan.positions, plan.rows, view.positions);
  copy(step.slots, plan.slots, plan.rows, view.slots);
  copy(step.pieceRows, plan.pieceRows, plan.pieces + 1, view.pieceRows);
  copy(step.pieceSegments, plan.pieceSegments, plan.pieces + 1, view.pieceSegments);
  view.pieceGenerated = nullptr;
  if (plan.pieceGenerated) copy(step.pieceGenerated, plan.pieceGenerated, plan.pieces, view.pieceGenerated);
  copy(step.segmentBlockStarts, plan.segmentBlockStarts, plan.segments, view.segmentBlockStarts);
  copy(step.segmentFirstTokens, plan.segmentFirstTokens, plan.segments, view.segmentFirstTokens);
  copy(step.segmentTokenCounts, plan.segmentTokenCounts, plan.segments, view.segmentTokenCounts);
  copy(step.segmentOffsets, plan.segmentOffsets, plan.segments, view.segmentOffsets);
  view.segmentPositions = nullptr;
  if (plan.segmentPositions) copy(step.segmentPositions, plan.segmentPositions, plan.segments, view.segmentPositions);
  copy(step.blockIds, plan.blockIds, plan.blockIdCount, view.blockIds);
}

}
