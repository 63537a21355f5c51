/* Around a product: rows are normalised and packed before it, and what it sums up goes where it is wanted. */
#ifndef SPANGATE_KERNELS_PRODUCTS_ROWS_H
#define SPANGATE_KERNELS_PRODUCTS_ROWS_H

#include <string.h>

#include "products.h"
#include "tiles.h"
#include "vector.h"

namespace {

using spg::MatrixView;
using spg::NormCall;
using spg::PackedRows;
using spg::PlainRows;
using spg::ProductCall;
using spg::ProductRange;
using spg::out_row;
using spg::plain_row;

/* Numbers of an int8 row are stored with 128 added where the instructions multiply unsigned numbers by signed ones. */
#if !defined(__AMX_TILE__) && (defined(__AVX512VNNI__) || defined(__AVXVNNI__))
constexpr bool kAdds128 = true;
#else
constexpr bool kAdds128 = false;
#endif

/* 1 / (1 + e^-x), by e^-|x|, which does not overflow. */
inline Vec sigmoid(Vec x) {
  const Vec negative = where_negative(x, x, sub(zero(), x));
  const Vec e = exp2_nonpositive(mul(negative, broadcast(1.44269504088896340736f)));
  const Vec one = broadcast(1.0f);
  return divide(where_negative(x, e, one), add(one, e));
}

/* GELU as tanh approximates it: x (1 + tanh(z)) / 2 with z = sqrt(2 / pi) (x + 0.044715 x^3), which is x sigmoid(2 z). */
inline Vec gelu(Vec x) {
  const Vec cubic = fma(mul(mul(x, x), broadcast(0.044715f)), x, x);
  return mul(x, sigmoid(mul(cubic, broadcast(1.5957691216057308f))));
}

/* Clamped: NaN stays NaN, since the second operand is the result where either is one. */
inline Vec gated(int finish, Vec gate, Vec up) {
  if (finish == SPG_GATE_CLAMPED) {
    const Vec limit = broadcast(7.0f), least = broadcast(-7.0f);
    const Vec cut = min(limit, gate), bounded = max(least, min(limit, up));
    return mul(mul(cut, sigmoid(mul(cut, broadcast(1.702f)))), add(bounded, broadcast(1.0f)));
  }
  return mul(finish == SPG_GATE_GELU ? gelu(gate) : mul(gate, sigmoid(gate)), up);
}

/* 1 / the root of the mean of the squares of `count` numbers and eps. */
inline float norm_factor(const float *x, int count, float eps) {
  Vec squares[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int j = 0; j < 4; j++) squares[j] = fma(load(x + i + j * kLanes), load(x + i + j * kLanes), squares[j]);
  }
  float sum = reduce<false>(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
  for (; i < count; i++) sum = __builtin_fmaf(x[i], x[i], sum);
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(count) + eps);
}

/* Numbers [from, from + count) of a row times factor and norm; zeros behind the row's end. count: whole vectors. */
inline void take_inputs(const PlainRows &plain, int row, int inputs, float factor, int from, int count,
                        float *out) {
  const float *x = plain_row(plain, row);
  const int end = from + count < inputs ? from + count : inputs;
  int i = from;
  for (; i + kLanes <= end; i += kLanes, out += kLanes) {
    store(out, plain.norm ? mul(mul(load(x + i), broadcast(factor)), load(plain.norm + i)) : load(x + i));
  }
  for (; i < end; i++) *out++ = plain.norm ? x[i] * factor * plain.norm[i] : x[i];
  for (; i < from + count; i++) *out++ = 0;
}

inline void norm_rows(const NormCall &call, int firstRow, int endRow) {
  const PlainRows &rows = call.rows;
  for (int row = firstRow; row < endRow; row++) {
    const float *x = plain_row(rows, row);
    float *out = call.out + static_cast<size_t>(row) * call.outStride;
    const float factor = norm_factor(x, call.width, rows.normEps) * call.factor;
    int i = 0;
    for (; i + kLanes <= call.width; i += kLanes) {
      const Vec value = mul(mul(load(x + i), broadcast(factor)), load(rows.norm + i));
      store(out + i, call.adds ? add(load(out + i), value) : value);
    }
    for (; i < call.width; i++) {
      const float value = x[i] * factor * rows.norm[i];
      out[i] = call.adds ? out[i] + value : value;
    }
  }
}

/* Rounds `count` numbers of a group to int8; answers their scale, NaN if one of them is not finite. */
inline float quantize(const float *values, int count, unsigned char *const *tiles) {
  Bits magnitudes = magnitude_bits(load(values));
  for (int i = kLanes; i < count; i += kLanes) magnitudes = max(magnitudes, magnitude_bits(load(values + i)));
  const int32_t bits = greatest_bits(magnitudes);
  float amax;
  memcpy(&amax, &bits, sizeof amax);
  const bool isFinite = bits < 0x7f800000;
  const float inverse = isFinite && amax >= spg::kLeastAmax ? 127.0f / amax : 0.0f;
  const Vec factor = broadcast(inverse);
  for (int i = 0; i < count; i += kLanes) {
    unsigned char *out = tiles[i / 64] + i % 64;
    store(reinterpret_cast<Mx8 *>(out), mul(load(values + i), factor));
    if (kAdds128) {
      for (int j = 0; j < kLanes; j++) out[j] ^= 0x80;
    }
  }
  return isFinite ? (inverse == 0.0f ? 0.0f : amax / 127.0f) : NAN;
}

inline void pack_int8_row(const MatrixView &matrix, const PlainRows &plain, const PackedRows &packed,
                          int row, float factor) {
  const int panel = row / spg::kPanelRows, at = row % spg::kPanelRows;
  float values[64 * spg::kGroupTiles];
  unsigned char *tiles[spg::kGroupTiles];
  for (int group = 0; group < matrix.groups; group++) {
    const int first = spg::group_start(matrix, group), count = spg::group_start(matrix, group + 1) - first;
    take_inputs(plain, row, matrix.inputs, factor, first * 64, count * 64, values);
    for (int i = 0; i < count; i++) {
      tiles[i] = packed.data + panel * packed.panelBytes + static_cast<size_t>(first + i) * spg::kTileBytes + at * 64;
    }
    packed.scales[(static_cast<size_t>(panel) * matrix.groups + group) * spg::kPanelRows + at] =
        quantize(values, count * 64, tiles);
  }
}

inline void pack_b16_row(const MatrixView &matrix, const PlainRows &plain, const PackedRows &packed,
                         int row, float factor) {
  unsigned char *panel = packed.data + row / spg::kPanelRows * packed.panelBytes;
  const int at = row % spg::kPanelRows;
#if defined(__AMX_TILE__)
  const size_t tileBytes = static_cast<size_t>(packed.parts) * spg::kTileBytes;
  const float *x = plain_row(plain, row);
  unsigned char *out = panel + at * 64;
  const Vec by = broadcast(factor);
  int i = 0;
  for (; i + 32 <= matrix.inputs; i += 32, out += tileBytes) {
    Vec low = load(x + i), high = load(x + i + kLanes);
    if (plain.norm) {
      low = mul(mul(low, by), load(plain.norm + i));
      high = mul(mul(high, by), load(plain.norm + i + kLanes));
    }
    split(low, high, packed.parts, spg::kTileBytes, out);
  }
  if (i == matrix.inputs) return;
  float values[32];
  take_inputs(plain, row, matrix.inputs, factor, i, 32, values);
  split(load(values), load(values + kLanes), packed.parts, spg::kTileBytes, out);
#else
  float *out = reinterpret_cast<float *>(panel) + static_cast<size_t>(at) * matrix.tiles * 32;
  take_inputs(plain, row, matrix.inputs, factor, 0, matrix.tiles * 32, out);
#endif
}

/* Packs the rows of one panel. */
inline void pack_rows(const MatrixView &matrix, const PlainRows &plain, const PackedRows &packed,
                      int panel) {
  const int first = panel * spg::kPanelRows;
  const int end = first + spg::kPanelRows < packed.rows ? first + spg::kPanelRows : packed.rows;
  for (int row = first; row < end; row++) {
    const float *x = plain_row(plain, row);
    const float factor = plain.norm ? norm_factor(x, matrix.inputs, plain.normEps) : 1.0f;
    if (matrix.form == SPG_B16) {
      pack_b16_row(matrix, plain, packed, row, factor);
    } else {
      pack_int8_row(matrix, plain, packed, row, factor);
    }
  }
}

/* factor * sum + bias of outputs [at, at + kLanes) of a row, times the row's factor. */
inline Vec scaled(const ProductCall &call, int row, const float *sums, int at) {
  const Vec product = mul(load(sums), broadcast(call.factor));
  const Vec value = call.bias ? add(product, load(call.bias + at)) : product;
  if (call.finish == SPG_CAP) return divide(tanh_of(value), broadcast(call.factor));
  return call.rowFactors ? mul(value, broadcast(call.rowFactors[row])) : value;
}

inline float scaled_one(const ProductCall &call, int row, float sum, int at) {
  const float value = call.bias ? sum * call.factor + call.bias[at] : sum * call.factor;
  if (call.finish == SPG_CAP) return first_lane(divide(tanh_of(broadcast(value)), broadcast(call.factor)));
  return call.rowFactors ? value * call.rowFactors[row] : value;
}

/* Takes the sums of a pair, [rows][32], to where they belong. */
inline void finish_rows(const MatrixView &matrix, const ProductCall &call, int pair, int firstRow, int rows,
                        const float *sums) {
  const bool gates = spg::is_gate(call.finish), adds = call.finish == SPG_ADD;
  const int width = gates ? spg::kPanelOutputs : spg::kPairOutputs;
  const int outputs = gates ? matrix.outputs / 2 : matrix.outputs, first = pair * width;
  const int count = outputs - first < width ? outputs - first : width;
  for (int r = 0; r < rows; r++, sums += spg::kPairOutputs) {
    const int row = firstRow + r;
    float *out = out_row(call, row) + first;
    if (gates) {
      /* Gates and ups that the matrix does not have are zero; what becomes of them is dropped. */
      float values[spg::kPanelOutputs];
      float *to = count == width ? out : values;
      for (int i = 0; i < width; i += kLanes) {
        Vec gate = load(sums + i), up = load(sums + width + i);
        if (call.bias) {
          const float *bias = call.bias + pair * spg::kPairOutputs + i;
          gate = add(gate, load(bias));
          up = add(up, load(bias + width));
        }
        store(to + i, gated(call.finish, gate, up));
      }
      if (count < width) memcpy(out, values, count * sizeof(float));
      continue;
    }
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const Vec value = scaled(call, row, sums + i, first + i);
      store(out + i, adds ? add(load(out + i), value) : value);
    }
    for (; i < count; i++) {
      const float value = scaled_one(call, row, sums[i], first + i);
      out[i] = adds ? out[i] + value : value;
    }
  }
}

}

#endif
