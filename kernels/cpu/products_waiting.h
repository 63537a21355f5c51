/*
 * What is done while AMX multiplies, a part of it after each step: weights of the next block are fetched into the second
 * cache, and sums that AMX has stored are taken to where they belong.
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

/* int8: at most so many groups are stored before they are added up, in registers. */
constexpr int kMostGroups = 4;

/* Scales of consecutive groups: [group][16] of each row panel's rows; [group][32] of the pair's weights. */
struct GroupScales {
  const float *first, *second, *weights;
};

/* What AMX stored of up to 32 rows and a pair: b16 sums that are complete, or whole numbers of some groups of int8. */
struct StoredSums {
  int pair, firstRow, rows;
  GroupScales scales;
  int groups;
  /* int8: [32][32], which the groups are added to. The first groups begin them, the last complete them. */
  float *sums;
  bool isFirst, isLast;
};

/* Sums that AMX has stored, until the vector units have taken all of their rows. */
class WaitingSums {
 public:
  WaitingSums(const MatrixView &matrix, const ProductCall &call)
      : matrix_(matrix), call_(call), way_(way_of(matrix, call)) {}

  /* [32][32]: where AMX stores, for int8 each group of a part. */
  float *stored(int group) { return stored_[group]; }

  /* Nothing must wait any more. AMX stores them in the first step of the part that follows, which is before any is taken. */
  void wait(const StoredSums &sums) {
    sums_ = sums;
    row_ = 0;
  }

  /* Takes up to so many rows more. */
  void take(int most) {
    const int left = sums_.rows - row_, end = row_ + (left < most ? left : most);
    if (row_ == end) return;
    switch (sums_.isLast ? way_ : Way::kKeep) {
      case Way::kKeep: take_rows<Way::kKeep>(end); break;
      case Way::kStore: take_rows<Way::kStore>(end); break;
      case Way::kAdd: take_rows<Way::kAdd>(end); break;
      case Way::kGate: take_rows<Way::kGate>(end); break;
      case Way::kOther: take_rows<Way::kOther>(end); break;
    }
    row_ = end;
  }

  void finish() { take(2 * spg::kPanelRows); }

 private:
  /*
   * Where rows go: to the sums of int8; as they are, added to what is there, or as gates to the product's end; or there by
   * finish_rows, which gives the same bits and knows all that may be asked.
   */
  enum class Way { kKeep, kStore, kAdd, kGate, kOther };

  static Way way_of(const MatrixView &matrix, const ProductCall &call) {
    if (call.bias || call.rowFactors || matrix.outputs % spg::kPairOutputs != 0) return Way::kOther;
    if (call.finish == SPG_GATE) return Way::kGate;
    if (call.factor != 1.0f) return Way::kOther;
    return call.finish == SPG_STORE ? Way::kStore : call.finish == SPG_ADD ? Way::kAdd : Way::kOther;
  }

  template <Way kWay>
  void take_rows(int end) {
    if (matrix_.form == SPG_INT8) {
      switch (sums_.groups) {
        case 1: return take_groups<kWay, 1>(end);
        case 2: return take_groups<kWay, 2>(end);
        case 3: return take_groups<kWay, 3>(end);
        default: return take_groups<kWay, kMostGroups>(end);
      }
    }
    for (int row = row_; row < end; row++) {
      const float *sums = stored_[0] + row * spg::kPairOutputs;
      take_row<kWay>(row, load(sums), load(sums + kLanes));
    }
  }

  /* Adds whole numbers times both scales, group by group. */
  template <Way kWay, int kGroups>
  void take_groups(int end) {
    const GroupScales &scales = sums_.scales;
    Vec weights[kGroups][2];
#pragma GCC unroll 4
    for (int group = 0; group < kGroups; group++) {
      weights[group][0] = load(scales.weights + group * spg::kPairOutputs);
      weights[group][1] = load(scales.weights + group * spg::kPairOutputs + kLanes);
    }
    for (int row = row_; row < end; row++) {
      const int ofPanel = row % spg::kPanelRows;
      const float *rowScales = (row < spg::kPanelRows ? scales.first : scales.second) + ofPanel;
      const float *before = sums_.sums + row * spg::kPairOutputs;
      Vec low = sums_.isFirst ? zero() : load(before), high = sums_.isFirst ? zero() : load(before + kLanes);
#pragma GCC unroll 4
      for (int group = 0; group < kGroups; group++) {
        const Vec scale = broadcast(rowScales[group * spg::kPanelRows]);
        const __m512i *numbers = reinterpret_cast<const __m512i *>(stored_[group] + row * spg::kPairOutputs);
        low = fma(_mm512_cvtepi32_ps(numbers[0]), mul(scale, weights[group][0]), low);
        high = fma(_mm512_cvtepi32_ps(numbers[1]), mul(scale, weights[group][1]), high);
      }
      take_row<kWay>(row, low, high);
    }
  }

  template <Way kWay>
  void take_row(int row, Vec low, Vec high) {
    if (kWay == Way::kKeep || kWay == Way::kOther) {
      alignas(64) float both[spg::kPairOutputs];
      float *to = kWay == Way::kKeep ? sums_.sums + row * spg::kPairOutputs : both;
      store(to, low);
      store(to + kLanes, high);
      if (kWay == Way::kOther) finish_rows(matrix_, call_, sums_.pair, sums_.firstRow + row, 1, both);
      return;
    }
    float *out = out_row(call_, sums_.firstRow + row);
    if (kWay == Way::kGate) {
      store(out + sums_.pair * spg::kPanelOutputs, gated(SPG_GATE, low, high));
      return;
    }
    out += sums_.pair * spg::kPairOutputs;
    store(out, kWay == Way::kAdd ? add(load(out), low) : low);
    store(out + kLanes, kWay == Way::kAdd ? add(load(out + kLanes), high) : high);
  }

  alignas(64) float stored_[kMostGroups][2 * spg::kPanelRows * spg::kPairOutputs];
  const MatrixView &matrix_;
  const ProductCall &call_;
  const Way way_;
  StoredSums sums_ = {};
  int row_ = 0;
};

}

#endif
#endif
