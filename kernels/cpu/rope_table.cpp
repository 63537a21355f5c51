#include "rope_table.h"

#include <math.h>

#include <new>

#include "memory.h"

namespace spg {

constexpr int kSmallPositions = 64;

void fill_rotation(const double *frequencies, int half, double position, double factor, double *out) {
  for (int i = 0; i < half; i++) {
    out[i] = cos(position * frequencies[i]) * factor;
    out[half + i] = sin(position * frequencies[i]) * factor;
  }
}

RopeTable::RopeTable(const double *frequencies, int rotaryDim, double factor, int maxPositions)
    : frequencies_(frequencies, frequencies + rotaryDim / 2),
      half_(rotaryDim / 2),
      maxPositions_(maxPositions),
      factor_(factor) {
  if (half_ == 0) return;
  const size_t positions = static_cast<size_t>(maxPositions) * 3;
  bytes_ = positions * rotaryDim * sizeof(float);
  ready_.resize(positions / 64 + 1);
  small_.resize(static_cast<size_t>(kSmallPositions) * rotaryDim);
  large_.resize(rotaryDim);
  for (int n = 0; n < kSmallPositions; n++) fill_rotation(frequencies, half_, n, factor, small_.data() + n * rotaryDim);
  rows_ = static_cast<float *>(map_zero_pages(bytes_, false));
  if (!rows_) throw std::bad_alloc();
}

RopeTable::~RopeTable() {
  unmap_pages(rows_, bytes_);
}

void RopeTable::fill(int position) {
  const int rest = position & (kSmallPositions - 1), rounded = position - rest;
  if (rounded != largePosition_) {
    fill_rotation(frequencies_.data(), half_, rounded, 1, large_.data());
    largePosition_ = rounded;
  }
  const size_t index = static_cast<size_t>(position + maxPositions_);
  float *row = rows_ + index * half_ * 2;
  const double *small = small_.data() + static_cast<size_t>(rest) * half_ * 2;
  for (int i = 0; i < half_; i++) {
    const double c = large_[i], s = large_[half_ + i], c2 = small[i], s2 = small[half_ + i];
    row[i] = static_cast<float>(c * c2 - s * s2);
    row[half_ + i] = static_cast<float>(s * c2 + c * s2);
  }
  ready_[index / 64] |= uint64_t(1) << (index % 64);
}

}
