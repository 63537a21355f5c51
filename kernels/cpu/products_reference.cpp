/* The plain twin of the products, for tests and for machines without vector instructions that are written for. */
#include <math.h>
#include <string.h>

#include "products.h"
#include "products_e4m3.h"

namespace spg {
namespace {

float bfloat16_at(const unsigned char *p) {
  uint16_t half;
  memcpy(&half, p, sizeof half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Where the weight of an input begins; its parts lie two tiles apart. */
const unsigned char *weight_at(const MatrixView &matrix, int output, int input) {
  const int inputs = tile_inputs(matrix), together = matrix.form == SPG_B16 ? 2 : 4;
  const size_t tile = static_cast<size_t>(input / inputs) * matrix.parts * 2 + output / kPanelOutputs % 2;
  const int at = (input % inputs / together * kPanelOutputs + output % kPanelOutputs) * 4 +
                 input % together * (4 / together);
  return pair_data(matrix, output / kPairOutputs) + tile * kTileBytes + at;
}

size_t panel_bytes(const MatrixView &matrix, int) {
  return static_cast<size_t>(kPanelRows) * matrix.tiles * tile_inputs(matrix) * (matrix.form == SPG_B16 ? 4 : 1);
}

size_t row_floats(const MatrixView &matrix) {
  return static_cast<size_t>(matrix.tiles) * tile_inputs(matrix);
}

float normalised(const MatrixView &matrix, const PlainRows &plain, int row, int input, float factor) {
  if (input >= matrix.inputs) return 0;
  const float x = plain_row(plain, row)[input];
  return plain.norm ? x * factor * plain.norm[input] : x;
}

/* Rounds one group of a row; answers its scale. */
float quantize(const MatrixView &matrix, const PlainRows &plain, int row, int group, float factor, int8_t *out) {
  const int first = group_start(matrix, group) * 64, end = group_start(matrix, group + 1) * 64;
  float amax = 0;
  bool isFinite = true;
  for (int i = first; i < end; i++) {
    const float x = normalised(matrix, plain, row, i, factor);
    isFinite = isFinite && isfinite(x);
    amax = fabsf(x) > amax ? fabsf(x) : amax;
  }
  const float inverse = isFinite && amax >= kLeastAmax ? 127.0f / amax : 0.0f;
  for (int i = first; i < end; i++) {
    const float x = isFinite ? nearbyintf(normalised(matrix, plain, row, i, factor) * inverse) : 0.0f;
    out[i] = static_cast<int8_t>(x > 127 ? 127 : x < -127 ? -127 : x);
  }
  return !isFinite ? NAN : inverse == 0.0f ? 0.0f : amax / 127.0f;
}

/* 1 / the root of the mean of the squares of a row's first `count` numbers and epsilon. */
float norm_factor(const PlainRows &plain, int row, int count) {
  double squares = 0;
  for (int i = 0; i < count; i++) {
    const double x = plain_row(plain, row)[i];
    squares += x * x;
  }
  return static_cast<float>(1 / sqrt(squares / count + plain.normEps));
}

void norm_rows(const NormCall &call, int firstRow, int endRow) {
  for (int row = firstRow; row < endRow; row++) {
    const float factor = norm_factor(call.rows, row, call.width) * call.factor;
    for (int i = 0; i < call.width; i++) {
      float &out = call.out[row * call.outStride + i];
      const float value = plain_row(call.rows, row)[i] * factor * call.rows.norm[i];
      out = call.adds ? out + value : value;
    }
  }
}

void pack_rows(const MatrixView &matrix, const PlainRows &plain, const PackedRows &packed, int panel) {
  for (int row = panel * kPanelRows; row < (panel + 1) * kPanelRows && row < packed.rows; row++) {
    const float factor = plain.norm ? norm_factor(plain, row, matrix.inputs) : 1.0f;
    const size_t start = row * row_floats(matrix);
    if (matrix.form == SPG_B16) {
      float *out = reinterpret_cast<float *>(packed.data) + start;
      for (int i = 0; i < matrix.tiles * 32; i++) out[i] = normalised(matrix, plain, row, i, factor);
      continue;
    }
    for (int group = 0; group < matrix.groups; group++) {
      packed.scales[static_cast<size_t>(row) * matrix.groups + group] =
          quantize(matrix, plain, row, group, factor, reinterpret_cast<int8_t *>(packed.data) + start);
    }
  }
}

void widen_pairs(const MatrixView &matrix, int firstPair, int endPair, unsigned char *out) {
  static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  if (matrix.form == SPG_E4M3) return widen_e4m3_pairs(matrix, firstPair, endPair, out);
  for (int pair = firstPair; pair < endPair; pair++) {
    const unsigned char *numbers = pair_data(matrix, pair);
    const unsigned char *scales = matrix.blockScales + static_cast<size_t>(pair) * matrix.tiles * kPairOutputs;
    for (size_t i = 0; i < static_cast<size_t>(matrix.tiles) * kPairOutputs * 32; i++, out += 2) {
      const size_t panel = i / 512, two = i % 512 / 32, output = i % 32 / 2;
      const unsigned char both = numbers[panel * kMx4TileBytes + two * 16 + output];
      const int number = i % 2 == 0 ? both & 15 : both >> 4;
      const float weight = ldexpf(number & 8 ? -values[number & 7] : values[number], scales[panel * 16 + output] - 127);
      uint32_t bits;
      memcpy(&bits, &weight, sizeof bits);
      const uint16_t half = static_cast<uint16_t>(bits >> 16);
      memcpy(out, &half, sizeof half);
    }
  }
}

float float_sum(const MatrixView &matrix, const float *row, int output) {
  float sum = 0;
  for (int input = 0; input < matrix.inputs; input++) {
    const unsigned char *at = weight_at(matrix, output, input);
    float weight = bfloat16_at(at);
    for (int part = 1; part < matrix.parts; part++) weight += bfloat16_at(at + part * 2 * kTileBytes);
    sum = fmaf(row[input], weight, sum);
  }
  return sum;
}

float whole_sum(const MatrixView &matrix, const int8_t *row, const float *rowScales, int output) {
  float sum = 0;
  for (int group = 0; group < matrix.groups; group++) {
    int32_t whole = 0;
    for (int input = group_start(matrix, group) * 64; input < group_start(matrix, group + 1) * 64; input++) {
      whole += row[input] * static_cast<int8_t>(*weight_at(matrix, output, input));
    }
    const size_t at = (static_cast<size_t>(output / kPairOutputs) * matrix.groups + group) * kPairOutputs;
    const float scale = rowScales[group] * matrix.scales[at + output % kPairOutputs];
    sum = fmaf(static_cast<float>(whole), scale, sum);
  }
  return sum;
}

float product(const MatrixView &matrix, const PackedRows &rows, int row, int output) {
  const size_t start = row * row_floats(matrix);
  if (matrix.form == SPG_B16) return float_sum(matrix, reinterpret_cast<const float *>(rows.data) + start, output);
  const float *scales = rows.scales + static_cast<size_t>(row) * matrix.groups;
  return whole_sum(matrix, reinterpret_cast<const int8_t *>(rows.data) + start, scales, output);
}

double gated(int finish, double gate, double up) {
  if (finish == SPG_GATE_CLAMPED) {
    gate = gate > 7 ? 7 : gate;
    up = up > 7 ? 7 : up < -7 ? -7 : up;
    return gate / (1 + exp(-1.702 * gate)) * (up + 1);
  }
  const double cubic = gate + 0.044715 * gate * gate * gate;
  return gate / (1 + exp(finish == SPG_GATE ? -gate : -2 * sqrt(2 / M_PI) * cubic)) * up;
}

void multiply(const MatrixView &matrix, const PackedRows &rows, const ProductCall &call, const ProductRange &range) {
  const int endRow = range.endPanel * kPanelRows < rows.rows ? range.endPanel * kPanelRows : rows.rows;
  for (int row = range.firstPanel * kPanelRows; row < endRow; row++) {
    float *out = out_row(call, row);
    for (int output = range.firstPair * kPairOutputs; output < range.endPair * kPairOutputs; output++) {
      if (output >= matrix.outputs) break;
      if (is_gate(call.finish)) {
        if (output % kPairOutputs >= kPanelOutputs) continue;
        double gate = product(matrix, rows, row, output), up = product(matrix, rows, row, output + kPanelOutputs);
        if (call.bias) gate += call.bias[output], up += call.bias[output + kPanelOutputs];
        const int at = output / kPairOutputs * kPanelOutputs + output % kPanelOutputs;
        if (at < matrix.outputs / 2) out[at] = static_cast<float>(gated(call.finish, gate, up));
        continue;
      }
      const float scaled = product(matrix, rows, row, output) * call.factor;
      const float biased = call.bias ? scaled + call.bias[output] : scaled;
      const float capped = call.finish == SPG_CAP ? static_cast<float>(tanh(biased) / call.factor) : biased;
      const float value = call.rowFactors ? capped * call.rowFactors[row] : capped;
      out[output] = call.finish == SPG_ADD ? out[output] + value : value;
    }
  }
}

Greatest greatest(const float *x, int count) {
  Greatest best = {-1, -INFINITY, false};
  for (int i = 0; i < count; i++) {
    if (isnan(x[i])) best.isNan = true;
    if (x[i] > best.value) best.index = i, best.value = x[i];
  }
  return best;
}

}

const ProductTable *reference_products() {
  static const ProductTable table = {panel_bytes, pack_rows, multiply, norm_rows, widen_pairs, greatest};
  return &table;
}

}
