/* Packs weights (products.h has the layout). Done once, at load, so it is plain C++ for every machine. */
#include "matrix.h"

#include <math.h>
#include <string.h>

#include <vector>

namespace spg {
namespace {

constexpr int kMostOutputs = 1 << 24, kMostInputs = 1 << 20;
constexpr int kRowsPerTask = 64;
/* 2^-125: times 0.5 the least normal number. */
constexpr int kLeastMx4Scale = 2;

float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

float float_of_half(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                          : exponent == 0 ? static_cast<float>(fraction) * 0x1p-24f
                                          : float_of_bits(static_cast<uint32_t>(exponent + 112) << 23 | fraction << 13);
  return half & 0x8000 ? -magnitude : magnitude;
}

void widen_row(const MatrixRows &rows, int row, int inputs, float *out) {
  const size_t start = static_cast<size_t>(row) * inputs;
  if (rows.type == SPG_FLOAT32) {
    memcpy(out, static_cast<const float *>(rows.weights) + start, inputs * sizeof(float));
    return;
  }
  const uint16_t *halves = static_cast<const uint16_t *>(rows.weights) + start;
  for (int i = 0; i < inputs; i++) {
    out[i] = rows.type == SPG_BFLOAT16 ? float_of_bits(static_cast<uint32_t>(halves[i]) << 16) : float_of_half(halves[i]);
  }
}

/* Rounds to the nearest, ties to even; NaN and infinities stay what they are. */
uint16_t bfloat16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Writes one output's weights as bfloat16 parts; each part is what those before it left. */
void place_b16(const MatrixView &view, int output, std::vector<float> &values, unsigned char *data) {
  const int lane = output % kPanelOutputs, panel = output / kPanelOutputs % 2;
  unsigned char *pair = data + output / kPairOutputs * pair_bytes(view);
  for (int i = 0; i < view.inputs; i++) {
    float rest = values[i];
    unsigned char *tile = pair + static_cast<size_t>(i / 32) * view.parts * 2 * kTileBytes + panel * kTileBytes;
    const int at = (i % 32 / 2 * kPanelOutputs + lane) * 4 + i % 2 * 2;
    for (int part = 0; part < view.parts; part++, tile += 2 * kTileBytes) {
      const uint16_t rounded = bfloat16_of(rest);
      memcpy(tile + at, &rounded, sizeof rounded);
      rest -= float_of_bits(static_cast<uint32_t>(rounded) << 16);
    }
  }
}

/* Writes one output's weights as int8, with their scales and sums. `scales` and `sums`: the pair's first group's. */
void place_int8(const MatrixView &view, int output, std::vector<float> &values, unsigned char *data, float *scales,
                int32_t *sums) {
  const int lane = output % kPanelOutputs, panel = output / kPanelOutputs % 2;
  unsigned char *pair = data + output / kPairOutputs * pair_bytes(view) + panel * kTileBytes;
  for (int group = 0; group < view.groups; group++) {
    const int first = group_start(view, group) * 64, limit = group_start(view, group + 1) * 64;
    const int end = limit < view.inputs ? limit : view.inputs;
    float amax = 0;
    bool isFinite = true;
    for (int i = first; i < end; i++) {
      isFinite = isFinite && isfinite(values[i]);
      amax = fabsf(values[i]) > amax ? fabsf(values[i]) : amax;
    }
    const float inverse = isFinite && amax >= kLeastAmax ? 127.0f / amax : 0.0f;
    int32_t sum = 0;
    for (int i = first; i < end; i++) {
      const int number = inverse == 0.0f ? 0 : static_cast<int>(nearbyintf(values[i] * inverse));
      const int kept = number > 127 ? 127 : number < -127 ? -127 : number;
      sum += kept;
      const int at = (i % 64 / 4 * kPanelOutputs + lane) * 4 + i % 4;
      pair[static_cast<size_t>(i / 64) * 2 * kTileBytes + at] = static_cast<unsigned char>(kept);
    }
    scales[group * kPairOutputs + panel * kPanelOutputs + lane] = !isFinite ? NAN : inverse == 0.0f ? 0 : amax / 127.0f;
    sums[group * kPairOutputs + panel * kPanelOutputs + lane] = 128 * sum;
  }
}

/* Writes one output's blocks; those whose numbers would leave bfloat16's normal ones below are zero. */
void place_mx4(const spg_matrix &matrix, const Mx4Rows &weights, int row, int output) {
  const MatrixView &view = matrix.view;
  const size_t from = static_cast<size_t>(row) * weights.rowStep * view.tiles;
  const int lane = output % kPanelOutputs, panel = output / kPanelOutputs % 2;
  unsigned char *pair = matrix.memory + output / kPairOutputs * pair_bytes(view);
  unsigned char *scales = matrix.memory + static_cast<size_t>(view.pairs) * pair_bytes(view) +
                          static_cast<size_t>(output / kPairOutputs) * view.tiles * kPairOutputs;
  for (int tile = 0; tile < view.tiles; tile++) {
    const uint8_t *block = weights.blocks + (from + tile) * (kMx4Group / 2), scale = weights.scales[from + tile];
    for (int two = 0; two < kMx4Group / 2; two++) {
      pair[(2 * tile + panel) * kMx4TileBytes + two * kPanelOutputs + lane] = scale < kLeastMx4Scale ? 0 : block[two];
    }
    scales[tile * kPairOutputs + panel * kPanelOutputs + lane] = scale;
  }
}

/* Writes one output's numbers. A number that is NaN makes the scale of its tile NaN. */
void place_e4m3(const spg_matrix &matrix, const E4m3Rows &weights, int row, int output) {
  const MatrixView &view = matrix.view;
  const uint8_t *numbers = weights.numbers + static_cast<size_t>(row) * view.inputs;
  const float *own = weights.scales + static_cast<size_t>(row) * weights.scales_per_row(view.inputs);
  const int lane = output % kPanelOutputs, panel = output / kPanelOutputs % 2;
  unsigned char *pair = matrix.memory + output / kPairOutputs * pair_bytes(view);
  const size_t first = static_cast<size_t>(output / kPairOutputs) * view.tiles * kPairOutputs;
  float *scales = const_cast<float *>(view.scales) + first;
  for (int tile = 0; tile < view.tiles; tile++) {
    float &scale = scales[tile * kPairOutputs + panel * kPanelOutputs + lane];
    scale = own[tile * 32 / weights.scaleInputs];
    for (int i = tile * 32; i < (tile + 1) * 32 && i < view.inputs; i++) {
      const int at = (i % 32 / 2 * kPanelOutputs + lane) * 2 + i % 2;
      pair[static_cast<size_t>(2 * tile + panel) * kE4m3TileBytes + at] = numbers[i];
      if ((numbers[i] & 0x7f) == 0x7f) scale = NAN;
    }
  }
}

struct FillE4m3Job {
  const spg_matrix &matrix;
  const E4m3Rows &weights;
  const MatrixRows &rows;
};

void fill_e4m3_task(void *argument, int task, int) {
  const FillE4m3Job &job = *static_cast<const FillE4m3Job *>(argument);
  const int end = (task + 1) * kRowsPerTask < job.rows.count ? (task + 1) * kRowsPerTask : job.rows.count;
  for (int row = task * kRowsPerTask; row < end; row++) {
    place_e4m3(job.matrix, job.weights, row, output_of(job.rows, row));
  }
}

struct FillMx4Job {
  const spg_matrix &matrix;
  const Mx4Rows &weights;
  const MatrixRows &rows;
};

void fill_mx4_task(void *argument, int task, int) {
  const FillMx4Job &job = *static_cast<const FillMx4Job *>(argument);
  const int end = (task + 1) * kRowsPerTask < job.rows.count ? (task + 1) * kRowsPerTask : job.rows.count;
  for (int row = task * kRowsPerTask; row < end; row++) {
    place_mx4(job.matrix, job.weights, row, output_of(job.rows, row));
  }
}

struct FillJob {
  const spg_matrix &matrix;
  const MatrixRows &rows;
};

void fill_task(void *argument, int task, int) {
  const FillJob &job = *static_cast<const FillJob *>(argument);
  const MatrixView &view = job.matrix.view;
  std::vector<float> values(view.inputs);
  const int end = (task + 1) * kRowsPerTask < job.rows.count ? (task + 1) * kRowsPerTask : job.rows.count;
  for (int row = task * kRowsPerTask; row < end; row++) {
    widen_row(job.rows, row, view.inputs, values.data());
    const int output = output_of(job.rows, row);
    const size_t scales = static_cast<size_t>(output / kPairOutputs) * view.groups * kPairOutputs;
    if (view.form == SPG_B16) {
      place_b16(view, output, values, job.matrix.memory);
    } else {
      place_int8(view, output, values, job.matrix.memory, const_cast<float *>(view.scales) + scales,
                 const_cast<int32_t *>(view.sums) + scales);
    }
  }
}

}

int32_t lay_out_matrix(int form, int parts, int outputs, int inputs, spg_matrix &matrix) {
  if (form < SPG_B16 || form > SPG_E4M3) return SPG_E_TYPE;
  const int mostParts = form == SPG_B16 ? 3 : form == SPG_E4M3 ? 2 : 1;
  const bool partsAllowed = parts >= 1 && parts <= mostParts;
  if (!partsAllowed || outputs < 1 || outputs > kMostOutputs || inputs < 1 || inputs > kMostInputs) return SPG_E_MATRIX;
  if (form == SPG_MX4 && inputs % kMx4Group != 0) return SPG_E_MATRIX;
  MatrixView &view = matrix.view;
  view.form = form;
  view.outputs = outputs;
  view.inputs = inputs;
  view.parts = parts;
  view.pairs = (outputs + kPairOutputs - 1) / kPairOutputs;
  view.tiles = (inputs + tile_inputs(view) - 1) / tile_inputs(view);
  view.groups = form == SPG_INT8 ? (view.tiles + kGroupTiles - 1) / kGroupTiles : 0;
  const size_t numbers = static_cast<size_t>(view.pairs) * pair_bytes(view);
  const int scaled = form == SPG_E4M3 ? view.tiles : view.groups;
  const size_t scales = static_cast<size_t>(view.pairs) * scaled * kPairOutputs;
  const size_t blocks = form == SPG_MX4 ? static_cast<size_t>(view.pairs) * view.tiles * kPairOutputs : 0;
  const size_t sums = form == SPG_INT8 ? scales : 0;
  matrix.bytes = numbers + blocks + scales * sizeof(float) + sums * sizeof(int32_t);
  matrix.memory = static_cast<unsigned char *>(map_zero_pages(matrix.bytes, true));
  if (!matrix.memory) return SPG_E_MEMORY;
  view.data = matrix.memory;
  view.blockScales = matrix.memory + numbers;
  view.scales = reinterpret_cast<const float *>(matrix.memory + numbers);
  view.sums = reinterpret_cast<const int32_t *>(view.scales + scales);
  return SPG_OK;
}

int output_of(const MatrixRows &rows, int row) {
  if (!rows.everyOtherPanel) return rows.first + row;
  return rows.first + row / kPanelOutputs * kPairOutputs + row % kPanelOutputs;
}

void fill_mx4(spg_matrix &matrix, const Mx4Rows &weights, const MatrixRows &rows) {
  FillMx4Job job{matrix, weights, rows};
  matrix.context->threads->run((rows.count + kRowsPerTask - 1) / kRowsPerTask, fill_mx4_task, &job);
}

void fill_e4m3(spg_matrix &matrix, const E4m3Rows &weights, const MatrixRows &rows) {
  FillE4m3Job job{matrix, weights, rows};
  matrix.context->threads->run((rows.count + kRowsPerTask - 1) / kRowsPerTask, fill_e4m3_task, &job);
}

void fill_matrix(spg_matrix &matrix, const MatrixRows &rows) {
  FillJob job{matrix, rows};
  matrix.context->threads->run((rows.count + kRowsPerTask - 1) / kRowsPerTask, fill_task, &job);
}

}
