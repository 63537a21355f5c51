/*
 * From a checked step to its work list. Chunks are cut by the geometry of each segment alone; how chunks are
 * dealt out to items follows the number of threads and what rows have in common, and no result depends on that
 * (see abi.h: DETERMINISM).
 *
 *   segment tokens   first ........................ first + count        counted from the segment's first block
 *   chunks           [0, 256) [256, 512) …                               each clipped to the seen tokens
 *   tile             up to 48 query vectors: rows of one piece x heads of one KV head
 *   item             a run of chunks of one tile, or of several that see the same blocks (a pack): whole segments,
 *                    or their beginnings where chains part later
 */
#include <string.h>

#include <algorithm>

#include "step.h"

namespace spg {
namespace {

/*
 * Nanoseconds as measured on one Zen 4 core: a byte of K or V from memory (the weights of the dense algebra push KV
 * out of the caches from step to step), and a query over a token's K and V of 64 dimensions. The two overlap.
 */
constexpr double kByteNs = 0.03, kQueryNs = 2.6;
/* For each query of a chunk: rotation, softmax ends, merge. */
constexpr double kChunkQueryNs = 40;
/* An item takes at least this long: below it, starting and merging it would show. */
constexpr double kSmallestItemNs = 10000;

class Planner {
 public:
  Planner(const PoolView &pool, int threads, Step &step) : pool_(pool), threads_(threads), step_(step) {}

  void plan() {
    for (int piece = 0; piece < step_.view.pieces; piece++) add_piece(piece);
    step_.costNs = 0;
    for (int tile = 0; tile < tile_count(); tile++) step_.costNs += tile_ns(tile) * pool_.kvHeads;
    /* Four items for each thread and more leave little to wait for at the end. */
    const double share = step_.costNs / (4 * threads_);
    targetNs_ = threads_ == 1 ? step_.costNs * 2 : std::max(share, kSmallestItemNs);
    add_packs();
    for (int tile = 0; tile < tile_count(); tile++) add_own_items(tile);
    for (Tile &tile : step_.tiles) place_partials(tile);
  }

 private:
  int tile_count() const { return static_cast<int>(step_.tiles.size()); }

  static int seen_tokens(const Chunk &chunk, int rowsAfter) {
    return std::min(chunk.endToken - (chunk.causal ? rowsAfter : 0), kChunkTokens) - chunk.firstToken;
  }

  double chunk_ns(const Chunk &chunk, int rowsAfter, int queries) const {
    const double tokens = seen_tokens(chunk, rowsAfter);
    const double loadNs = kByteNs * 2 * pool_.headDim * pool_.elementBytes;
    const double computeNs = kQueryNs * queries * pool_.headDim / 64;
    return tokens * std::max(loadNs, computeNs) + queries * kChunkQueryNs;
  }

  double tile_ns(int index) const {
    const Tile &tile = step_.tiles[index];
    double ns = 0;
    for (int c = 0; c < tile.chunkCount; c++) {
      ns += chunk_ns(step_.chunks[tile.firstChunk + c], tile.rowsAfter, tile.rowCount * pool_.group);
    }
    return ns;
  }

  void add_chunks(int segment, bool causal) {
    const StepView &view = step_.view;
    step_.segmentChunks.push_back(static_cast<int>(step_.chunks.size()));
    if (view.segmentTokenCounts[segment] == 0) return;
    const int first = view.segmentFirstTokens[segment], end = first + view.segmentTokenCounts[segment];
    for (int base = 0; base < end; base += kChunkTokens) {
      const int blockStart = view.segmentBlockStarts[segment] + base / pool_.blockTokens;
      step_.chunks.push_back(
          {blockStart, base == 0 ? first : 0, end - base, view.segmentOffsets[segment], causal, segment});
    }
  }

  void add_piece(int piece) {
    const StepView &view = step_.view;
    const int firstChunk = static_cast<int>(step_.chunks.size()), endSegment = view.pieceSegments[piece + 1];
    for (int s = view.pieceSegments[piece]; s < endSegment; s++) add_chunks(s, s == endSegment - 1);
    const int chunkCount = static_cast<int>(step_.chunks.size()) - firstChunk;
    const int endRow = view.pieceRows[piece + 1], tileRows = tile_rows(pool_);
    for (int row = view.pieceRows[piece]; row < endRow; row += tileRows) {
      const int rowCount = std::min(tileRows, endRow - row);
      Tile tile{row, rowCount, endRow - row - rowCount, firstChunk, chunkCount, 0, 0, 0};
      while (seen_tokens(step_.chunks[firstChunk + tile.chunkCount - 1], tile.rowsAfter) <= 0) tile.chunkCount--;
      /* Only a piece of one small tile gains by company. */
      const bool small = rowCount == endRow - view.pieceRows[piece] && rowCount * pool_.group * 2 <= kTileQueries;
      for (int s = view.pieceSegments[piece]; small && s + 1 < endSegment; s++) {
        if (view.segmentTokenCounts[s] > 0) candidates_.push_back({s, tile_count()});
      }
      step_.tiles.push_back(tile);
    }
  }

  struct Candidate {
    int segment, tile;
  };

  const int32_t *blocks_of(int segment) const {
    return step_.view.blockIds + step_.view.segmentBlockStarts[segment];
  }

  int blocks_to(int token) const { return (token + pool_.blockTokens - 1) / pool_.blockTokens; }

  int end_token(int segment) const {
    return step_.view.segmentFirstTokens[segment] + step_.view.segmentTokenCounts[segment];
  }

  /* Orders segments so that those which begin with the same blocks stand together, the shorter first. */
  bool precedes(const Candidate &a, const Candidate &b) const {
    const int firstA = step_.view.segmentFirstTokens[a.segment], firstB = step_.view.segmentFirstTokens[b.segment];
    if (firstA != firstB) return firstA < firstB;
    const int endA = end_token(a.segment), endB = end_token(b.segment);
    const int blocks = blocks_to(std::min(endA, endB));
    const int order = memcmp(blocks_of(a.segment), blocks_of(b.segment), blocks * sizeof(int32_t));
    if (order != 0) return order < 0;
    return endA != endB ? endA < endB : a.segment < b.segment;
  }

  /* How many leading chunks of two segments are the same tokens of the same blocks. */
  int common_chunks(int a, int b) const {
    if (step_.view.segmentFirstTokens[a] != step_.view.segmentFirstTokens[b]) return 0;
    const int endA = end_token(a), endB = end_token(b), blocks = kChunkTokens / pool_.blockTokens;
    int count = 0;
    for (int base = 0; base < endA && base < endB; base += kChunkTokens, count++) {
      const int tokens = std::min(endA - base, kChunkTokens);
      if (tokens != std::min(endB - base, kChunkTokens)) break;
      const int32_t *from = blocks_of(a) + count * blocks, *other = blocks_of(b) + count * blocks;
      if (memcmp(from, other, blocks_to(tokens) * sizeof(int32_t)) != 0) break;
    }
    return count;
  }

  void add_packs() {
    step_.chunkPacked.assign(step_.chunks.size(), 0);
    if (tile_count() < 2 || !pool_.packing) return;
    std::sort(candidates_.begin(), candidates_.end(),
              [this](const Candidate &a, const Candidate &b) { return precedes(a, b); });
    pack_range(0, candidates_.size(), 0);
  }

  /* Packs chunks from `chunk` on of candidates whose chunks before it are the same. */
  void pack_range(size_t start, size_t end, int chunk) {
    while (start < end) {
      int common = chunk_count(candidates_[start].segment);
      size_t next = start + 1;
      for (; next < end; next++) {
        const int same = common_chunks(candidates_[start].segment, candidates_[next].segment);
        if (same <= chunk) break;
        common = std::min(common, same);
      }
      if (next - start > 1 && common > chunk) {
        for (size_t first = start; first < next;) first = add_pack(first, next, chunk, common);
        pack_range(start, next, common);
      }
      start = next;
    }
  }

  /* Packs chunks [chunk, endChunk) of candidates from `start` on, as many as a tile's worth of queries; answers the
     next one. */
  size_t add_pack(size_t start, size_t end, int chunk, int endChunk) {
    int queries = 0;
    size_t next = start;
    while (next < end) {
      const int more = step_.tiles[candidates_[next].tile].rowCount * pool_.group;
      if (queries + more > tile_queries(pool_)) break;
      queries += more;
      next++;
    }
    if (next - start < 2) return next;
    for (size_t i = start; i < next; i++) {
      for (int c = chunk; c < endChunk; c++) step_.chunkPacked[step_.segmentChunks[candidates_[i].segment] + c] = 1;
    }
    const int first = step_.segmentChunks[candidates_[start].segment];
    cut(first + chunk, first + endChunk, 0, queries, [&](int from, int count) {
      step_.items.push_back({static_cast<int>(step_.members.size()), static_cast<int>(next - start), count});
      for (size_t i = start; i < next; i++) {
        add_member(candidates_[i].tile, step_.segmentChunks[candidates_[i].segment] + from - first);
      }
    });
    return next;
  }

  /* Calls emit(first, count) for consecutive runs of the chunks [chunk, end), each of about the target time. */
  template <class Emit>
  void cut(int chunk, int end, int rowsAfter, int queries, Emit emit) const {
    double ns = 0;
    for (int first = chunk; chunk < end; chunk++) {
      ns += chunk_ns(step_.chunks[chunk], rowsAfter, queries);
      if (ns < targetNs_ && chunk + 1 < end) continue;
      emit(first, chunk + 1 - first);
      first = chunk + 1;
      ns = 0;
    }
  }

  void add_member(int tile, int chunk) {
    step_.members.push_back({tile, chunk - step_.tiles[tile].firstChunk});
    step_.tiles[tile].itemCount++;
  }

  int chunk_count(int segment) const { return (end_token(segment) + kChunkTokens - 1) / kChunkTokens; }

  /* Items of the chunks that no pack took. */
  void add_own_items(int index) {
    const Tile tile = step_.tiles[index];
    const int end = tile.firstChunk + tile.chunkCount;
    auto packed = [&](int chunk) { return step_.chunkPacked[chunk] != 0; };
    for (int start = tile.firstChunk; start < end;) {
      int stop = start;
      while (stop < end && !packed(stop)) stop++;
      cut(start, stop, tile.rowsAfter, tile.rowCount * pool_.group, [&](int chunk, int count) {
        step_.items.push_back({static_cast<int>(step_.members.size()), 1, count});
        add_member(index, chunk);
      });
      start = stop;
      while (start < end && packed(start)) start++;
    }
  }

  void place_partials(Tile &tile) {
    if (tile.itemCount == 1) return;
    tile.partialStart = step_.partialFloats;
    tile.counter = static_cast<int>(step_.pending.size());
    step_.partialFloats += partial_floats(pool_, tile.rowCount * pool_.group) * tile.chunkCount * pool_.kvHeads;
    step_.pending.resize(step_.pending.size() + pool_.kvHeads, tile.itemCount);
  }

  const PoolView &pool_;
  const int threads_;
  Step &step_;
  double targetNs_ = 0;
  std::vector<Candidate> candidates_;
};

}

void plan_step(const PoolView &pool, int threads, Step &step) {
  step.chunks.clear();
  step.tiles.clear();
  step.members.clear();
  step.items.clear();
  step.segmentChunks.clear();
  step.pending.clear();
  step.partialFloats = 0;
  Planner(pool, threads, step).plan();
  StepView &view = step.view;
  view.chunks = step.chunks.data();
  view.tiles = step.tiles.data();
  view.members = step.members.data();
  view.items = step.items.data();
  view.itemCount = static_cast<int>(step.items.size());
}

}
