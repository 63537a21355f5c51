/*
 * Attention of some rows over one section by AMX, which multiplies bfloat16 numbers and sums up in float32.
 *
 *   scores  S[32 queries][32 tokens]  += Q[32][32 dimensions] K[32 dimensions][32 tokens]
 *   values  O[32 queries][32 dims]    += W[32][32 tokens] V[32 tokens][32 dims]
 *
 * Every number is the sum of two bfloat16 numbers, which hold 16 bits of it: all that float16 has. Of the four products
 * of two such sums the least is left out. K and V are taken apart once for all queries of a task. Inside a product the
 * order of sums is fixed by the instruction's definition, products follow each other in ascending dimensions or tokens
 * from the section's start, and tokens that a row does not see weigh 0; so a row's bits do not depend on the rows beside
 * it. Oracle: reference::attend.
 */
#ifndef SPANGATE_KERNELS_ATTEND_TILES_H
#define SPANGATE_KERNELS_ATTEND_TILES_H

#if defined(__AMX_TILE__)

#include "attend.h"
#include "tile_parts.h"
#include "tile_products.h"
#include "tiles.h"

namespace {

/*
 * 2^x for x <= 0 like exp2_nonpositive, of which 16 bits are wanted: relative error below 2^-23, 0 below -126. The sum with
 * 1.5 * 2^23 rounds to a whole number, whose bits are its last ones.
 */
inline Vec weight_of(Vec x) {
  const Vec magic = broadcast(12582912.0f);
  const __mmask16 counts = _mm512_cmp_ps_mask(x, broadcast(-126.0f), _CMP_NLT_UQ);
  const Vec shifted = add(x, magic);
  const Vec f = sub(x, sub(shifted, magic));
  Vec p = fma(broadcast(0.001326472731307149f), f, broadcast(0.009671512991189957f));
  p = fma(p, f, broadcast(0.05550733581185341f));
  p = fma(p, f, broadcast(0.24022242426872253f));
  p = fma(p, f, broadcast(0.6931470036506653f));
  p = fma(p, f, broadcast(1.0f));
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(counts, bits_of(p), _mm512_slli_epi32(bits_of(shifted), 23)));
}

/* Sets the scores of tokens outside [first, end) to -infinity; answers the greatest in [start, stop), whole chunks. */
inline float hide_unseen(float *scores, int start, int stop, int first, int end) {
  for (int t = start; t < first; t++) scores[t] = -INFINITY;
  for (int t = end; t < stop; t++) scores[t] = -INFINITY;
  Vec even = load(scores + start), odd = load(scores + start + kLanes);
  for (int t = start + kChunk; t < stop; t += kChunk) {
    even = max(even, load(scores + t));
    odd = max(odd, load(scores + t + kLanes));
  }
  return reduce<true>(max(even, odd));
}

/* Writes 2^(score - maximum) of chunks of one query's scores as rows of tiles; answers their sum. */
inline float weigh_scores(const float *scores, int firstChunk, int endChunk, float maximum, unsigned char *row) {
  const Vec top = broadcast(maximum);
  Vec total = zero();
  for (int c = firstChunk; c < endChunk; c++) {
    const float *s = scores + c * kChunk;
    const Vec a = weight_of(sub(load(s), top)), b = weight_of(sub(load(s + kLanes), top));
    total = add(total, add(a, b));
    put_numbers(a, b, row + c * kBothParts);
  }
  return reduce<false>(total);
}

/*
 * The blocks of the section that follows. Memory would stand still while the processor computes: so all that it does
 * fetches some lines of them into the second cache.
 */
class NextBlocks {
 public:
  NextBlocks(const PoolView &pool, const StepView &step, const Section *next, int layer, int kvHead)
      : pool_(pool), layer_(layer), kvHead_(kvHead) {
    if (!next) return;
    const int tokens = next->endToken < kSectionTokens ? next->endToken : kSectionTokens;
    id_ = step.blockIds + next->blockStart;
    endId_ = id_ + (tokens + pool.blockTokens - 1) / pool.blockTokens;
    begin_block();
  }

  int lines() const { return static_cast<int>((endId_ - id_) * (pool_.headBytes / kLineBytes)); }

  void fetch(int lines) {
    while (lines > 0 && id_ < endId_) {
      const unsigned char *stop = at_ + static_cast<size_t>(lines) * kLineBytes;
      stop = stop < end_ ? stop : end_;
      lines -= static_cast<int>((stop - at_) / kLineBytes);
      for (; at_ < stop; at_ += kLineBytes) __builtin_prefetch(at_, 0, 2);
      if (at_ == end_ && ++id_ < endId_) begin_block();
    }
  }

 private:
  void begin_block() {
    at_ = spg::head_data(pool_, layer_, *id_, kvHead_);
    end_ = at_ + pool_.headBytes / kLineBytes * kLineBytes;
  }

  const PoolView &pool_;
  const int layer_, kvHead_;
  const int32_t *id_ = nullptr, *endId_ = nullptr;
  const unsigned char *at_ = nullptr, *end_ = nullptr;
};

/* Up to 32 queries, and the chunks of tokens that any of them sees. */
struct Pair {
  int first, count;
  int firstChunk, endChunk;
};

/* One section of a task. */
template <class T>
class SectionWork {
 public:
  SectionWork(const PoolView &pool, const Window &window, const Panels<T> &panels, const Scratch &scratch,
              const NextBlocks &next)
      : pool_(pool), window_(window), panels_(panels), scratch_(scratch), tiles_(section_tiles(pool, scratch)),
        next_(next), padded_(spg::padded_dim(pool)), dimChunks_(chunks_of(pool.headDim)),
        end_(query_end(window, query_count(window) - 1)) {}

  /* Of a few queries what is taken apart of K and V is used once, while it is in the first cache. */
  void attend() {
    const int queries = query_count(window_);
    if (queries <= kSide) return attend_few();
    for (int c = window_.firstToken / kChunk; c < chunks_of(end_); c++) take_apart(c);
    /* Taking apart waits for memory itself. */
    share_ = next_.lines() / (2 * queries) + 1;
    for (int first = 0; first < queries; first += kChunk) attend_pair(pair(first));
  }

 private:
  size_t key_bytes() const { return static_cast<size_t>(dimChunks_) * kBothParts; }
  size_t value_bytes() const { return static_cast<size_t>(2 * dimChunks_) * kBothParts; }
  static constexpr size_t kWeightBytes = static_cast<size_t>(kSectionChunks) * kBothParts;

  Pair pair(int first) const {
    const int left = query_count(window_) - first, count = left < kChunk ? left : kChunk;
    const int firstToken = query_first(window_, first), end = query_end(window_, first + count - 1);
    return {first, count, firstToken / kChunk, end > firstToken ? chunks_of(end) : 0};
  }

  void fetch(int shares) { next_.fetch(shares * share_); }

  void take_keys_apart(int p, unsigned char *to) {
    if (p < window_.firstPanel || p >= panels_of(end_)) return;
    pack_keys(panels_, pool_.headDim, p, to, [this] { fetch(1); });
  }

  void take_values_apart(int chunk, int dim, unsigned char *to) {
    pack_values(panels_, pool_.headDim, dim, chunk, window_.firstToken, end_, to, [this] { fetch(1); });
  }

  void take_apart(int chunk) {
    for (int p = 2 * chunk; p < 2 * chunk + 2; p++) take_keys_apart(p, tiles_.keys + p * key_bytes());
    for (int d = 0; d < dimChunks_; d++) {
      take_values_apart(chunk, d * kChunk, tiles_.values + chunk * value_bytes() + 2 * d * kBothParts);
    }
  }

  void attend_pair(const Pair &of) {
    if (of.endChunk <= of.firstChunk) return;
    registers_.shape(of.count);
    const unsigned char *queries = tiles_.queries + of.first / kSide * key_bytes();
    for (int c = of.firstChunk; c < of.endChunk; c++) {
      multiply(of, {queries, tiles_.keys + 2 * c * key_bytes(), key_bytes(), key_bytes(), kBothParts, dimChunks_, 2,
                    scratch_.scores + c * kChunk, kScoreStride});
    }
    soften(of);
    const unsigned char *weights = tiles_.weights + of.firstChunk * kBothParts;
    float *out = scratch_.section.values + static_cast<size_t>(of.first) * padded_;
    for (int d = 0; d < dimChunks_; d++) {
      const unsigned char *values = tiles_.values + of.firstChunk * value_bytes() + 2 * d * kBothParts;
      multiply(of, {weights, values, kWeightBytes, kBothParts, value_bytes(), of.endChunk - of.firstChunk,
                    (padded_ - d * kChunk) / kSide, out + d * kChunk, static_cast<size_t>(padded_)});
    }
  }

  void multiply(const Pair &of, const Factors &factors) {
    const auto tick = [this] { fetch(1); };
    of.count > kSide ? multiply_many<true, kParts<T>>(factors, tick) : multiply_many<false, kParts<T>>(factors, tick);
  }

  /* Turns scores into weights. */
  void soften(const Pair &of) {
    const int start = of.firstChunk * kChunk, stop = of.endChunk * kChunk;
    const Softmax &section = scratch_.section;
    for (int i = 0, query = of.first; i < of.count; i++, query++) {
      float *scores = scratch_.scores + i * kScoreStride;
      const int first = query_first(window_, query), end = query_end(window_, query);
      if (pool_.scoreCap > 0) cap_scores(scores + start, scores + stop, pool_.scoreCap);
      section.maximum[query] = hide_unseen(scores, start, stop, first < stop ? first : stop, end > start ? end : start);
    }
    for (int i = 0, query = of.first; i < of.count; i++, query++) {
      unsigned char *row = tiles_.weights + i / kSide * kWeightBytes + i % kSide * 64;
      /* Where a query sees nothing, all scores are -infinity; and so is what they have less than 0. */
      const float top = section.maximum[query] == -INFINITY ? 0 : section.maximum[query];
      section.sum[query] = weigh_scores(scratch_.scores + i * kScoreStride, of.firstChunk, of.endChunk, top, row);
      fetch(1);
    }
  }

  void attend_few() {
    const Pair all = pair(0);
    if (all.endChunk <= all.firstChunk) return;
    share_ = next_.lines() / ((all.endChunk - all.firstChunk) * 3 * dimChunks_ * kSide / kTickRows) + 1;
    registers_.shape(all.count);
    for (int p = 2 * all.firstChunk; p < 2 * all.endChunk; p += 4) {
      const int count = 2 * all.endChunk - p < 4 ? 2 * all.endChunk - p : 4;
      for (int i = 0; i < count; i++) take_keys_apart(p + i, tiles_.keys + i * key_bytes());
      multiply_few<kParts<T>>({tiles_.queries, tiles_.keys, 0, key_bytes(), kBothParts, dimChunks_, count,
                               scratch_.scores + p * kSide, kScoreStride}, false);
    }
    soften(all);
    for (int c = all.firstChunk; c < all.endChunk; c++) {
      for (int d = 0; d < dimChunks_; d++) take_values_apart(c, d * kChunk, tiles_.values + 2 * d * kBothParts);
      for (int d = 0; d < padded_; d += 4 * kSide) {
        const int left = (padded_ - d) / kSide;
        multiply_few<kParts<T>>({tiles_.weights + c * kBothParts, tiles_.values + d / kSide * kBothParts, 0, kBothParts,
                                 0, 1, left < 4 ? left : 4, scratch_.section.values + d, static_cast<size_t>(padded_)},
                                c > all.firstChunk);
      }
    }
  }

  const PoolView &pool_;
  const Window &window_;
  const Panels<T> &panels_;
  const Scratch &scratch_;
  const SectionTiles tiles_;
  NextBlocks next_;
  /* Lines that are fetched at a time. */
  int share_ = 0;
  const int padded_, dimChunks_;
  /* Of the tokens that any query sees. */
  const int end_;
  Tiles registers_;
};

}

#endif
#endif
