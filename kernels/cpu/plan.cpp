/*
 * Turns a checked step into its work list. The geometry of each segment alone decides where sections are cut. The
 * number of threads and what rows have in common decide how sections are divided into items; no result depends on that
 * (see abi.h: DETERMINISM).
 *
 *   segment tokens   first ........................ first + count        counted from the segment's first block
 *   sections           [0, 256) [256, 512) …                               each clipped to the seen tokens
 *   tile             up to tileQueries query vectors: rows of one piece x heads of one KV head
 *   item             a run of sections of one tile, or of several that see the same blocks (a pack): whole segments,
 *                    or their beginnings where chains part later
 */
#include <string.h>

#include <algorithm>

#include "step.h"

namespace spg {
namespace {

/*
 * Nanoseconds, measured on one Zen 4 core, for a byte of K or V from memory: in every step the weights of the dense
 * algebra push KV out of the caches. Computing, which KernelCosts are of, overlaps with it.
 */
constexpr double kByteNs = 0.03;
/* Nanoseconds for each query of a section: rotation, the ends of softmax, merge. */
constexpr double kSectionQueryNs = 40;
/* An item takes at least this many nanoseconds; with shorter ones, starting and merging would cost noticeable time. */
constexpr double kSmallestItemNs = 10000;

class Planner {
 public:
  Planner(const PoolView &pool, Rows rows, int threads, const StepView &view, WorkList &list)
      : pool_(pool), rows_(rows), threads_(threads), view_(view), list_(list) {}

  void plan() {
    for (int piece = 0; piece < view_.pieces; piece++) has(piece) ? add_piece(piece) : leave_out(piece);
    list_.costNs = 0;
    for (int tile = 0; tile < tile_count(); tile++) list_.costNs += tile_ns(tile) * pool_.kvHeads;
    /* With four items or more for each thread, little time is lost waiting at the end. */
    const double share = list_.costNs / (4 * threads_);
    targetNs_ = threads_ == 1 ? list_.costNs * 2 : std::max(share, kSmallestItemNs);
    add_packs();
    for (int tile = 0; tile < tile_count(); tile++) add_own_items(tile);
    for (Tile &tile : list_.tiles) place_partials(tile);
  }

 private:
  bool has(int piece) const {
    const bool isGenerated = view_.pieceGenerated && view_.pieceGenerated[piece] != 0;
    return rows_ == kAllRows || (rows_ == kGeneratedRows) == isGenerated;
  }

  /* Its segments have no sections, so that those of others keep their places. */
  void leave_out(int piece) {
    for (int s = view_.pieceSegments[piece]; s < view_.pieceSegments[piece + 1]; s++) {
      list_.segmentSections.push_back(static_cast<int>(list_.sections.size()));
    }
  }

  int tile_count() const { return static_cast<int>(list_.tiles.size()); }

  /* How many tokens of a section any row of a tile sees; 0 or less: none. */
  int seen_tokens(const Section &section, const Tile &tile) const {
    const int end = std::min(section.endToken - (section.causal ? tile.rowsAfter : 0), kSectionTokens);
    return end - first_token_seen(view_, section, tile.leastPosition);
  }

  double section_ns(const Section &section, const Tile &tile, int queries) const {
    const double tokens = std::max(0, seen_tokens(section, tile));
    const double loadNs = kByteNs * 2 * pool_.headDim * pool_.elementBytes;
    const double computeNs = (pool_.costs.tokenNs + pool_.costs.queryNs * queries) * pool_.headDim / 64;
    return tokens * std::max(loadNs, computeNs) + queries * kSectionQueryNs;
  }

  double tile_ns(int index) const {
    const Tile &tile = list_.tiles[index];
    double ns = 0;
    for (int c = 0; c < tile.sectionCount; c++) {
      const Section &section = list_.sections[tile.firstSection + c];
      if (seen_tokens(section, tile) > 0) ns += section_ns(section, tile, tile.rowCount * pool_.group);
    }
    return ns;
  }

  void add_sections(int segment, bool causal) {
    const StepView &view = view_;
    list_.segmentSections.push_back(static_cast<int>(list_.sections.size()));
    if (view.segmentTokenCounts[segment] == 0) return;
    const int first = view.segmentFirstTokens[segment], end = first + view.segmentTokenCounts[segment];
    const int position = view.window > 0 ? view.segmentPositions[segment] : 0;
    const int origin = position + view.segmentOffsets[segment] - first;
    for (int base = 0; base < end; base += kSectionTokens) {
      const int blockStart = view.segmentBlockStarts[segment] + base / pool_.blockTokens;
      list_.sections.push_back(
          {blockStart, base == 0 ? first : 0, end - base, view.segmentOffsets[segment], causal, segment, origin + base});
    }
  }

  void add_piece(int piece) {
    const StepView &view = view_;
    const int firstSection = static_cast<int>(list_.sections.size()), endSegment = view.pieceSegments[piece + 1];
    for (int s = view.pieceSegments[piece]; s < endSegment; s++) add_sections(s, s == endSegment - 1);
    const int sectionCount = static_cast<int>(list_.sections.size()) - firstSection;
    const int endRow = view.pieceRows[piece + 1], tileRows = tile_rows(pool_);
    for (int row = view.pieceRows[piece]; row < endRow; row += tileRows) {
      const int rowCount = std::min(tileRows, endRow - row);
      const auto [least, greatest] = std::minmax_element(view.positions + row, view.positions + row + rowCount);
      Tile tile{row, rowCount, endRow - row - rowCount, *least, *greatest, firstSection, sectionCount, 0, 0, 0};
      while (seen_tokens(list_.sections[firstSection + tile.sectionCount - 1], tile) <= 0) tile.sectionCount--;
      /* Only pieces of one small tile gain from being packed. */
      const bool small = rowCount == endRow - view.pieceRows[piece] && rowCount * pool_.group * 2 <= pool_.costs.tileQueries;
      for (int s = view.pieceSegments[piece]; small && s + 1 < endSegment; s++) {
        if (sees_all_of(s, tile)) candidates_.push_back({s, tile_count()});
      }
      list_.tiles.push_back(tile);
    }
  }

  /* Whether each row of a tile sees each token of a segment that has any. */
  bool sees_all_of(int segment, const Tile &tile) const {
    if (view_.segmentTokenCounts[segment] == 0) return false;
    const Section &section = list_.sections[list_.segmentSections[segment]];
    return first_token_seen(view_, section, tile.greatestPosition) <= section.firstToken;
  }

  struct Candidate {
    int segment, tile;
  };

  const int32_t *blocks_of(int segment) const {
    return view_.blockIds + view_.segmentBlockStarts[segment];
  }

  int blocks_to(int token) const { return (token + pool_.blockTokens - 1) / pool_.blockTokens; }

  int end_token(int segment) const {
    return view_.segmentFirstTokens[segment] + view_.segmentTokenCounts[segment];
  }

  /* Orders segments so that those that begin with the same blocks are neighbours, the shorter first. */
  bool precedes(const Candidate &a, const Candidate &b) const {
    const int firstA = view_.segmentFirstTokens[a.segment], firstB = view_.segmentFirstTokens[b.segment];
    if (firstA != firstB) return firstA < firstB;
    const int endA = end_token(a.segment), endB = end_token(b.segment);
    const int blocks = blocks_to(std::min(endA, endB));
    const int order = memcmp(blocks_of(a.segment), blocks_of(b.segment), blocks * sizeof(int32_t));
    if (order != 0) return order < 0;
    return endA != endB ? endA < endB : a.segment < b.segment;
  }

  /* How many leading sections of two segments consist of the same tokens in the same blocks. */
  int common_sections(int a, int b) const {
    if (view_.segmentFirstTokens[a] != view_.segmentFirstTokens[b]) return 0;
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
    list_.sectionPacked.assign(list_.sections.size(), 0);
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
      const int more = list_.tiles[candidates_[next].tile].rowCount * pool_.group;
      if (queries + more > tile_queries(pool_)) break;
      queries += more;
      next++;
    }
    if (next - start < 2) return next;
    for (size_t i = start; i < next; i++) {
      for (int c = section; c < endSection; c++)
        list_.sectionPacked[list_.segmentSections[candidates_[i].segment] + c] = 1;
    }
    const int first = list_.segmentSections[candidates_[start].segment];
    const Tile whole = list_.tiles[candidates_[start].tile];
    cut(first + section, first + endSection, whole, queries, [&](int from, int count) {
      list_.items.push_back({static_cast<int>(list_.members.size()), static_cast<int>(next - start), count});
      for (size_t i = start; i < next; i++) {
        add_member(candidates_[i].tile, list_.segmentSections[candidates_[i].segment] + from - first);
      }
    });
    return next;
  }

  /* Calls emit(first, count) for consecutive runs of the sections [section, end), each of about the target time. */
  template <class Emit>
  void cut(int section, int end, const Tile &tile, int queries, Emit emit) const {
    double ns = 0;
    for (int first = section; section < end; section++) {
      ns += section_ns(list_.sections[section], tile, queries);
      if (ns < targetNs_ && section + 1 < end) continue;
      emit(first, section + 1 - first);
      first = section + 1;
      ns = 0;
    }
  }

  void add_member(int tile, int section) {
    list_.members.push_back({tile, section - list_.tiles[tile].firstSection});
    list_.tiles[tile].itemCount++;
  }

  int section_count(int segment) const { return (end_token(segment) + kSectionTokens - 1) / kSectionTokens; }

  /* Makes items of the sections that its rows see and no pack has taken. */
  void add_own_items(int index) {
    const Tile tile = list_.tiles[index];
    const int end = tile.firstSection + tile.sectionCount;
    auto skipped = [&](int section) {
      return list_.sectionPacked[section] != 0 || seen_tokens(list_.sections[section], tile) <= 0;
    };
    for (int start = tile.firstSection; start < end;) {
      int stop = start;
      while (stop < end && !skipped(stop)) stop++;
      cut(start, stop, tile, tile.rowCount * pool_.group, [&](int section, int count) {
        list_.items.push_back({static_cast<int>(list_.members.size()), 1, count});
        add_member(index, section);
      });
      start = stop;
      while (start < end && skipped(start)) start++;
    }
  }

  void place_partials(Tile &tile) {
    if (tile.itemCount == 1) return;
    tile.partialStart = list_.partialFloats;
    tile.counter = static_cast<int>(list_.pending.size());
    list_.partialFloats += partial_floats(pool_, tile.rowCount * pool_.group) * tile.sectionCount * pool_.kvHeads;
    list_.pending.resize(list_.pending.size() + pool_.kvHeads, tile.itemCount);
  }

  const PoolView &pool_;
  const Rows rows_;
  const int threads_;
  const StepView &view_;
  WorkList &list_;
  double targetNs_ = 0;
  std::vector<Candidate> candidates_;
};

void plan_work(const Attender &attender, int threads, Planned &work) {
  WorkList &list = work.list;
  list.sections.clear();
  list.tiles.clear();
  list.members.clear();
  list.items.clear();
  list.segmentSections.clear();
  list.pending.clear();
  list.partialFloats = 0;
  Planner(attender.view, attender.rows, threads, work.view, list).plan();
  StepView &view = work.view;
  view.sections = list.sections.data();
  view.tiles = list.tiles.data();
  view.members = list.members.data();
  view.items = list.items.data();
  view.itemCount = static_cast<int>(list.items.size());
}

}

void plan_step(const Step &step, int threads, Attender &attender) {
  attender.work.view = step.view;
  plan_work(attender, threads, attender.work);
  if (attender.view.window == 0) return;
  attender.sliding.view = step.view;
  attender.sliding.view.window = attender.view.window;
  plan_work(attender, threads, attender.sliding);
}

}
