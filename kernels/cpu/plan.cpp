/*
 * Turns a checked step into its work list. The geometry of each segment alone decides where sections are cut. The
 * number of threads and what rows have in common decide how sections are divided into items; no result depends on that
 * (see abi.h: DETERMINISM).
 *
 *   segment tokens   first ........................ first + count        counted from the segment's first block
 *   sections           [0, 256) [256, 512) …                               each clipped to the seen tokens
 *   tile             up to 48 query vectors: rows of one piece x heads of one KV head
 *   item             a run of sections of one tile, or of several that see the same blocks (a pack): whole segments,
 *                    or their beginnings where chains part later
 */
#include <string.h>

#include <algorithm>

#include "step.h"

namespace spg {
namespace {

/*
 * Nanoseconds, measured on one Zen 4 core: for a byte of K or V from memory (in every step the weights of the dense
 * algebra push KV out of the caches), and for a query over a token's K and V of 64 dimensions. The two overlap.
 */
constexpr double kByteNs = 0.03, kQueryNs = 2.6;
/* Nanoseconds for each query of a section: rotation, the ends of softmax, merge. */
constexpr double kSectionQueryNs = 40;
/* An item takes at least this many nanoseconds; with shorter ones, starting and merging would cost noticeable time. */
constexpr double kSmallestItemNs = 10000;

class Planner {
 public:
  Planner(const PoolView &pool, int threads, Step &step) : pool_(pool), threads_(threads), step_(step) {}

  void plan() {
    for (int piece = 0; piece < step_.view.pieces; piece++) add_piece(piece);
    step_.costNs = 0;
    for (int tile = 0; tile < tile_count(); tile++) step_.costNs += tile_ns(tile) * pool_.kvHeads;
    /* With four items or more for each thread, little time is lost waiting at the end. */
    const double share = step_.costNs / (4 * threads_);
    targetNs_ = threads_ == 1 ? step_.costNs * 2 : std::max(share, kSmallestItemNs);
    add_packs();
    for (int tile = 0; tile < tile_count(); tile++) add_own_items(tile);
    for (Tile &tile : step_.tiles) place_partials(tile);
  }

 private:
  int tile_count() const { return static_cast<int>(step_.tiles.size()); }

  static int seen_tokens(const Section &section, int rowsAfter) {
    return std::min(section.endToken - (section.causal ? rowsAfter : 0), kSectionTokens) - section.firstToken;
  }

  double section_ns(const Section &section, int rowsAfter, int queries) const {
    const double tokens = seen_tokens(section, rowsAfter);
    const double loadNs = kByteNs * 2 * pool_.headDim * pool_.elementBytes;
    const double computeNs = kQueryNs * queries * pool_.headDim / 64;
    return tokens * std::max(loadNs, computeNs) + queries * kSectionQueryNs;
  }

  double tile_ns(int index) const {
    const Tile &tile = step_.tiles[index];
    double ns = 0;
    for (int c = 0; c < tile.sectionCount; c++) {
      ns += section_ns(step_.sections[tile.firstSection + c], tile.rowsAfter, tile.rowCount * pool_.group);
    }
    return ns;
  }

  void add_sections(int segment, bool causal) {
    const StepView &view = step_.view;
    step_.segmentSections.push_back(static_cast<int>(step_.sections.size()));
    if (view.segmentTokenCounts[segment] == 0) return;
    const int first = view.segmentFirstTokens[segment], end = first + view.segmentTokenCounts[segment];
    for (int base = 0; base < end; base += kSectionTokens) {
      const int blockStart = view.segmentBlockStarts[segment] + base / pool_.blockTokens;
      step_.sections.push_back(
          {blockStart, base == 0 ? first : 0, end - base, view.segmentOffsets[segment], causal, segment});
    }
  }

  void add_piece(int piece) {
    const StepView &view = step_.view;
    const int firstSection = static_cast<int>(step_.sections.size()), endSegment = view.pieceSegments[piece + 1];
    for (int s = view.pieceSegments[piece]; s < endSegment; s++) add_sections(s, s == endSegment - 1);
    const int sectionCount = static_cast<int>(step_.sections.size()) - firstSection;
    const int endRow = view.pieceRows[piece + 1], tileRows = tile_rows(pool_);
    for (int row = view.pieceRows[piece]; row < endRow; row += tileRows) {
      const int rowCount = std::min(tileRows, endRow - row);
      Tile tile{row, rowCount, endRow - row - rowCount, firstSection, sectionCount, 0, 0, 0};
      while (seen_tokens(step_.sections[firstSection + tile.sectionCount - 1], tile.rowsAfter) <= 0)
        tile.sectionCount--;
      /* Only pieces of one small tile gain from being packed. */
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

  /* Orders segments so that those that begin with the same blocks are neighbours, the shorter first. */
  bool precedes(const Candidate &a, const Candidate &b) const {
    const int firstA = step_.view.segmentFirstTokens[a.segment], firstB = step_.view.segmentFirstTokens[b.segment];
    if (firstA != firstB) return firstA < firstB;
    const int endA = end_token(a.segment), endB = end_token(b.segment);
    const int blocks = blocks_to(std::min(endA, endB));
    const int order = memcmp(blocks_of(a.segment), blocks_of(b.segment), blocks * sizeof(int32_t));
    if (order != 0) return order < 0;
    return endA != endB ? endA < endB : a.segment < b.segment;
  }

  /* How many leading sections of two segments consist of the same tokens in the same blocks. */
  int common_sections(int a, int b) const {
    if (step_.view.segmentFirstTokens[a] != step_.view.segmentFirstTokens[b]) return 0;
    const int endA = end_token(a), endB = end_token(b), blocks = kSectionTokens / pool_.blockTokens;
    int count = 0;
    for (int base = 0; base < endA && base < endB; base += kSectionTokens, count++) {
      const int tokens = std::min(endA - base, kSectionTokens);
      if (tokens != std::min(endB - base, kSectionTokens)) break;
      const int32_t *from = blocks_of(a) + count * blocks, *other = blocks_of(b) + count * blocks;
      if (memcmp(from, other, blocks_to(tokens) * sizeof(int32_t)) != 0) break;
    }
    return count;
  }

  void add_packs() {
    step_.sectionPacked.assign(step_.sections.size(), 0);
    if (tile_count() < 2 || !pool_.packing) return;
    std::sort(candidates_.begin(), candidates_.end(),
              [this](const Candidate &a, const Candidate &b) { return precedes(a, b); });
    pack_range(0, candidates_.size(), 0);
  }

  /* Packs sections, from `section` on, of candidates whose earlier sections are the same. */
  void pack_range(size_t start, size_t end, int section) {
    while (start < end) {
      int common = section_count(candidates_[start].segment);
      size_t next = start + 1;
      for (; next < end; next++) {
        const int same = common_sections(candidates_[start].segment, candidates_[next].segment);
        if (same <= section) break;
        common = std::min(common, same);
      }
      if (next - start > 1 && common > section) {
        for (size_t first = start; first < next;) first = add_pack(first, next, section, common);
        pack_range(start, next, common);
      }
      start = next;
    }
  }

  /*
   * Packs sections [section, endSection) of candidates from `start` on, up to a tile's worth of queries; returns the
   * next candidate.
   */
  size_t add_pack(size_t start, size_t end, int section, int endSection) {
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
      for (int c = section; c < endSection; c++)
        step_.sectionPacked[step_.segmentSections[candidates_[i].segment] + c] = 1;
    }
    const int first = step_.segmentSections[candidates_[start].segment];
    cut(first + section, first + endSection, 0, queries, [&](int from, int count) {
      step_.items.push_back({static_cast<int>(step_.members.size()), static_cast<int>(next - start), count});
      for (size_t i = start; i < next; i++) {
        add_member(candidates_[i].tile, step_.segmentSections[candidates_[i].segment] + from - first);
      }
    });
    return next;
  }

  /* Calls emit(first, count) for consecutive runs of the sections [section, end), each of about the target time. */
  template <class Emit>
  void cut(int section, int end, int rowsAfter, int queries, Emit emit) const {
    double ns = 0;
    for (int first = section; section < end; section++) {
      ns += section_ns(step_.sections[section], rowsAfter, queries);
      if (ns < targetNs_ && section + 1 < end) continue;
      emit(first, section + 1 - first);
      first = section + 1;
      ns = 0;
    }
  }

  void add_member(int tile, int section) {
    step_.members.push_back({tile, section - step_.tiles[tile].firstSection});
    step_.tiles[tile].itemCount++;
  }

  int section_count(int segment) const { return (end_token(segment) + kSectionTokens - 1) / kSectionTokens; }

  /* Makes items of the sections that no pack has taken. */
  void add_own_items(int index) {
    const Tile tile = step_.tiles[index];
    const int end = tile.firstSection + tile.sectionCount;
    auto packed = [&](int section) { return step_.sectionPacked[section] != 0; };
    for (int start = tile.firstSection; start < end;) {
      int stop = start;
      while (stop < end && !packed(stop)) stop++;
      cut(start, stop, tile.rowsAfter, tile.rowCount * pool_.group, [&](int section, int count) {
        step_.items.push_back({static_cast<int>(step_.members.size()), 1, count});
        add_member(index, section);
      });
      start = stop;
      while (start < end && packed(start)) start++;
    }
  }

  void place_partials(Tile &tile) {
    if (tile.itemCount == 1) return;
    tile.partialStart = step_.partialFloats;
    tile.counter = static_cast<int>(step_.pending.size());
    step_.partialFloats += partial_floats(pool_, tile.rowCount * pool_.group) * tile.sectionCount * pool_.kvHeads;
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
  step.sections.clear();
  step.tiles.clear();
  step.members.clear();
  step.items.clear();
  step.segmentSections.clear();
  step.pending.clear();
  step.partialFloats = 0;
  Planner(pool, threads, step).plan();
  StepView &view = step.view;
  view.sections = step.sections.data();
  view.tiles = step.tiles.data();
  view.members = step.members.data();
  view.items = step.items.data();
  view.itemCount = static_cast<int>(step.items.size());
}

}
