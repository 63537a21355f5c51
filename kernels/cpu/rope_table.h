/* cos and sin of every position in use, computed once and read by all layers and steps. */
#ifndef SPANGATE_KERNELS_ROPE_TABLE_H
#define SPANGATE_KERNELS_ROPE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace spg {

/*
 * Row n: [rotaryDim / 2] cosines of n * frequency, then as many sines, both times `factor`, float32 rounded once
 * from double. Positions from -maxPositions to 2 * maxPositions are addressable; a row takes memory when it is
 * first ensured.
 */
class RopeTable {
 public:
  RopeTable(const double *frequencies, int rotaryDim, double factor, int maxPositions);
  ~RopeTable();
  RopeTable(const RopeTable &) = delete;
  RopeTable &operator=(const RopeTable &) = delete;

  void ensure(int position) {
    const size_t index = static_cast<size_t>(position + maxPositions_);
    if (half_ > 0 && !(ready_[index / 64] >> (index % 64) & 1)) fill(position);
  }
  /* The row of position 0; nullptr without RoPE. */
  const float *origin() const { return rows_ + static_cast<size_t>(maxPositions_) * half_ * 2; }

 private:
  void fill(int position);

  std::vector<double> frequencies_;
  int half_, maxPositions_;
  double factor_;
  float *rows_ = nullptr;
  size_t bytes_ = 0;
  std::vector<uint64_t> ready_;
  /* Computes row n as the product of two rotations: by n rounded down to a multiple of 64, and by the rest. */
  std::vector<double> small_, large_;
  int largePosition_ = -1;
};

/* cos and sin of position * frequency, times factor: [half] cosines, then [half] sines. */
void fill_rotation(const double *frequencies, int half, double position, double factor, double *out);

}

#endif
