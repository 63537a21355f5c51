/*
 * From a checked step to its work list. Chunks are cut by the geometry of each segment alone; how chunks are
 * dealt out to items follows the number of threads, which no result depends on (see abi.h: DETERMINISM).
 *
 *   segment tokens   first ........................ first + count        counted from the segment's first block
 *   chunks           [0, 256) [256, 512) …                               each clipped to the seen tokens
 *   tile             up to 48 query vectors: rows of one piece x heads of one KV head
 *   item             a run of chunks of one tile
 */
#include "step.h"

namespace spg {
namespace {

/* Nanoseconds as measured on one Zen 4 core, for a token of one KV head of 64: reading it, and each query over it. */
constexpr double kLoadNs = 4, kQueryNs = 2.6;
/* For each query of a chunk: rotation, softmax ends, merge. */
constexpr double kChunkQueryNs = 40;
/* An item takes at least this long: below it, starting and merging it would show. */
constexpr double kSmallestItemNs = 10000;

int seen_tokens(const Chunk &chunk, int rowsAfter) {
  const int end = chunk.endToken - (chunk.causal ? rowsAfter : 0);
  return (end < kChunkTokens ? end : kChunkTokens) - chunk.firstToken;
}

void add_chunks(const PoolView &pool, const StepView &view, int segment, bool causal, std::vector<Chunk> &chunks) {
  if (view.segmentTokenCounts[segment] == 0) return;
  const int first = view.segmentFirstTokens[segment];
  const int end = first + view.segmentTokenCounts[segment];
  for (int base = 0; base < end; base += kChunkTokens) {
    const int blockStart = view.segmentBlockStarts[segment] + base / pool.blockTokens;
    chunks.push_back({blockStart, base == 0 ? first : 0, end - base, view.segmentOffsets[segment], causal});
  }
}

double chunk_ns(const PoolView &pool, const Chunk &chunk, const Tile &tile) {
  const double queries = tile.rowCount * pool.group;
  const double tokens = seen_tokens(chunk, tile.rowsAfter);
  return tokens * (kLoadNs + kQueryNs * queries) * pool.headDim / 64 + queries * kChunkQueryNs;
}

void add_piece(const PoolView &pool, Step &step, int piece) {
  const StepView &view = step.view;
  const int firstChunk = static_cast<int>(step.chunks.size());
  const int endSegment = view.pieceSegments[piece + 1];
  for (int s = view.pieceSegments[piece]; s < endSegment; s++) {
    add_chunks(pool, view, s, s == endSegment - 1, step.chunks);
  }
  const int endRow = view.pieceRows[piece + 1], tileRows = tile_rows(pool);
  for (int row = view.pieceRows[piece]; row < endRow; row += tileRows) {
    Tile tile{};
    tile.firstRow = row;
    tile.rowCount = endRow - row < tileRows ? endRow - row : tileRows;
    tile.rowsAfter = endRow - row - tile.rowCount;
    tile.firstChunk = firstChunk;
    tile.chunkCount = static_cast<int>(step.chunks.size()) - firstChunk;
    while (seen_tokens(step.chunks[firstChunk + tile.chunkCount - 1], tile.rowsAfter) <= 0) tile.chunkCount--;
    step.tiles.push_back(tile);
  }
}

/* Cuts a tile's chunks into items of about `target`. */
void add_items(const PoolView &pool, Step &step, int index, double target) {
  Tile &tile = step.tiles[index];
  int start = 0;
  double ns = 0;
  for (int c = 0; c < tile.chunkCount; c++) {
    ns += chunk_ns(pool, step.chunks[tile.firstChunk + c], tile);
    if (ns < target && c + 1 < tile.chunkCount) continue;
    step.items.push_back({index, start, c + 1 - start});
    tile.itemCount++;
    start = c + 1;
    ns = 0;
  }
  if (tile.itemCount == 1) return;
  tile.partialStart = step.partialFloats;
  tile.counter = static_cast<int>(step.pending.size());
  step.partialFloats += partial_floats(pool, tile.rowCount * pool.group) * tile.chunkCount * pool.kvHeads;
  step.pending.resize(step.pending.size() + pool.kvHeads, tile.itemCount);
}

}

void plan_step(const PoolView &pool, int threads, Step &step) {
  step.chunks.clear();
  step.tiles.clear();
  step.items.clear();
  step.pending.clear();
  step.partialFloats = 0;
  for (int piece = 0; piece < step.view.pieces; piece++) add_piece(pool, step, piece);
  double total = 0;
  for (const Tile &tile : step.tiles) {
    for (int c = 0; c < tile.chunkCount; c++) total += chunk_ns(pool, step.chunks[tile.firstChunk + c], tile);
  }
  step.costNs = total * pool.kvHeads;
  /* Four items for each thread and more leave little to wait for at the end. */
  const double share = step.costNs / (4 * threads);
  const double target = threads == 1 ? step.costNs * 2 : share > kSmallestItemNs ? share : kSmallestItemNs;
  for (int tile = 0; tile < static_cast<int>(step.tiles.size()); tile++) add_items(pool, step, tile, target);
  StepView &view = step.view;
  view.chunks = step.chunks.data();
  view.tiles = step.tiles.data();
  view.items = step.items.data();
  view.itemCount = static_cast<int>(step.items.size());
}

}
