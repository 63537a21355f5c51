/*
 * What is done while AMX multiplies, a part of it after each step: weights of the next block are fetched, the whole numbers
 * of the group before are added to their sums, and gates are made of the sums of the block before. Sums that are only
 * written do not wait, nor do gates of int8: between the stores of AMX there is no room for theirs (measured).
 */
#ifndef SPANGATE_KERNELS_PRODUCTS_WAITING_H
#define SPANGATE_KERNELS_PRODUCTS_WAITING_H

#if defined(__AMX_TILE__)

#include <immintrin.h>

#include "products_rows.h"

namespace {

/*
 * Weights of the next block, which come from memory or the last cache: each step of this one fetches some lines of them
 * into the second cache.
 */
class NextWeights {
 public:
  /* Nothing is fetched. */
  NextWeights() = default;
  NextWeights(const unsigned char *at, int linesPerStep) : at_(at), lines_(linesPerStep) {}

  void fetch() {
    for (int i = 0; i < lines_; i++, at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const unsigned char *at_ = nullptr;
  int lines_ = 0;
};

/* Whole numbers of a group that wait to be added to the sums of 32 rows and a pair. */
struct Group {
  /* [16] scales of each row panel's rows; [32] of the pair's weights. */
  const float *first, *second, *weights;
  float *sums;
  int rows;
  /* The sums begin with it. */
  bool isFirst;
};

/*
 * While AMX multiplies one group, the vector units add the numbers of the group before it to the sums: eight rows after
 * each step, since most groups have four.
 */
class WaitingGroup {
 public:
  /* [32][32] */
  int32_t *whole() { return whole_; }
  void wait(const Group &group) {
    group_ = group;
    next_ = 0;
  }

  /* Adds up to eight rows more. */
  void add() {
    if (next_ + kRowsAtOnce <= group_.rows) {
      group_.isFirst ? add_rows<true>(kRowsAtOnce) : add_rows<false>(kRowsAtOnce);
    } else if (next_ < group_.rows) {
      group_.isFirst ? add_rows<true>(group_.rows - next_) : add_rows<false>(group_.rows - next_);
    }
  }

  void finish() {
    while (next_ < group_.rows) add();
  }

 private:
  static constexpr int kRowsAtOnce = 8;

  /* Adds so many rows' whole numbers, times both scales. They are of one panel. */
  template <bool kFirst>
  inline void add_rows(int count) {
    const Vec first = load(group_.weights), second = load(group_.weights + 16);
    const float *scales = next_ < 16 ? group_.first + next_ : group_.second + next_ - 16;
    const __m512i *numbers = reinterpret_cast<const __m512i *>(whole_ + next_ * 32);
    float *sums = group_.sums + next_ * 32;
#pragma GCC unroll 8
    for (int r = 0; r < count; r++, numbers += 2, sums += 32) {
      const Vec scale = broadcast(scales[r]);
      store(sums, fma(_mm512_cvtepi32_ps(numbers[0]), mul(scale, first), kFirst ? zero() : load(sums)));
      store(sums + 16, fma(_mm512_cvtepi32_ps(numbers[1]), mul(scale, second), kFirst ? zero() : load(sums + 16)));
    }
    next_ += count;
  }

  alignas(64) int32_t whole_[32 * 32];
  Group group_ = {};
  int next_ = 0;
};

/* Two panels of rows, or one, by a block of pairs, in stretches along the inputs. */
struct Block {
  int panel, rows, firstPair, endPair, stretches;
};

/* Whether gates wait: the kind that most models have. finish_rows gives the same bits. */
inline bool gates_wait(const MatrixView &matrix, const ProductCall &call) {
  return matrix.form == SPG_B16 && call.finish == SPG_GATE && !call.bias && matrix.outputs % spg::kPairOutputs == 0;
}

/* Sums of a block, [pair][32][32], of which gates are made: row by row, so that what lies together is written together. */
class WaitingGates {
 public:
  explicit WaitingGates(const ProductCall &call) : call_(call) {}

  /* The block before is finished first. steps: those of the block that is multiplied next. */
  void wait(const Block &block, int steps, const float *sums) {
    finish();
    block_ = block;
    sums_ = sums;
    row_ = 0;
    pair_ = block.firstPair;
    perStep_ = (block.rows * (block.endPair - block.firstPair) + steps - 1) / steps;
  }

  /* A step's share. */
  void finish_some() {
    for (int i = 0; i < perStep_ && row_ < block_.rows; i++) finish_one();
  }

  void finish() {
    while (row_ < block_.rows) finish_one();
  }

 private:
  void finish_one() {
    const float *sums = sums_ + (pair_ - block_.firstPair) * 32 * 32 + row_ * spg::kPairOutputs;
    float *out = out_row(call_, block_.panel * spg::kPanelRows + row_) + pair_ * spg::kPanelOutputs;
    store(out, gated(SPG_GATE, load(sums), load(sums + spg::kPanelOutputs)));
    if (++pair_ < block_.endPair) return;
    pair_ = block_.firstPair;
    row_++;
  }

  const ProductCall &call_;
  Block block_ = {};
  const float *sums_ = nullptr;
  int row_ = 0, pair_ = 0, perStep_ = 0;
};

struct Meanwhile {
  NextWeights next;
  WaitingGroup group;
  WaitingGates gates;
};

}

#endif
#endif
