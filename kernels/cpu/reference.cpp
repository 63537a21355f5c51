/*
 * The slow, obvious twin of every kernel, which the tests use as their oracle. It reads the plan as the caller gave it,
 * one row, head and token at a time, computes in double, and rounds once when it stores.
 */
#include <math.h>
#include <string.h>

#include <limits>
#include <vector>

#include "internal.h"

namespace spg::reference {
namespace {

using Vector = std::vector<double>;

float half_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  double value;
  if (exponent == 31) {
    value = fraction ? NAN : INFINITY;
  } else {
    value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
  }
  return static_cast<float>(bits & 0x8000 ? -value : value);
}

/* Rounds to nearest, ties to even; values that are too large become the greatest finite number. */
uint16_t float_to_half(double value) {
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  if (isnan(value)) return sign | 0x7e00;
  const double magnitude = fabs(value);
  if (magnitude >= kMaxHalf) return sign | 0x7bff;
  int exponent = magnitude < ldexp(1, -14) ? -14 : ilogb(magnitude);
  const double steps = nearbyint(ldexp(magnitude, 10 - exponent));
  return sign | static_cast<uint16_t>(steps + (exponent + 14) * 1024);
}

double load(const PoolView &pool, const unsigned char *base, size_t index) {
  if (pool.elementBytes == 4) {
    float value;
    memcpy(&value, base + index * 4, 4);
    return value;
  }
  uint16_t bits;
  memcpy(&bits, base + index * 2, 2);
  return half_to_float(bits);
}

void store(const PoolView &pool, unsigned char *base, size_t index, double value) {
  if (pool.elementBytes == 4) {
    const float rounded = static_cast<float>(value);
    memcpy(base + index * 4, &rounded, 4);
  } else {
    /* Rounds to float32 first: the fast kernels hold that precision before they store. */
    const uint16_t bits = float_to_half(static_cast<float>(value));
    memcpy(base + index * 2, &bits, 2);
  }
}

struct TokenPlace {
  unsigned char *head;
  int offset;
};

TokenPlace place(const PoolView &pool, int layer, int kvHead, int slot) {
  return {head_data(pool, layer, slot / pool.blockTokens, kvHead), slot % pool.blockTokens};
}

size_t k_index(const PoolView &pool, int dim, int offset) {
  return static_cast<size_t>(dim) * pool.blockTokens + offset;
}

size_t v_index(const PoolView &pool, int dim, int offset) {
  return static_cast<size_t>(pool.headDim) * pool.blockTokens + static_cast<size_t>(offset) * pool.headDim + dim;
}

Vector normalised(const PoolView &pool, const float *head, const float *weight) {
  Vector out(head, head + pool.headDim);
  if (!weight) return out;
  double squares = 0;
  for (double x : out) squares += x * x;
  const double scale = 1 / sqrt(squares / pool.headDim + pool.normEps);
  for (int i = 0; i < pool.headDim; i++) out[i] *= scale * weight[i];
  return out;
}

void rotate(const PoolView &pool, int layer, Vector &head, double position, double factor) {
  if (!pool.ropeLayers[layer]) return;
  const int half = pool.rotaryDim / 2;
  for (int i = 0; i < half; i++) {
    const int a = pool.interleaved ? 2 * i : i;
    const int b = pool.interleaved ? 2 * i + 1 : i + half;
    const double angle = position * pool.inverseFrequencies[i];
    const double c = cos(angle) * factor, s = sin(angle) * factor;
    const double x = head[a], y = head[b];
    head[a] = x * c - y * s;
    head[b] = y * c + x * s;
  }
}

/* Computes one query head of one row: first all its scores, then softmax, then the weighted sum of V. */
void attend_head(const PoolView &pool, const StepView &step, const LayerCall &call, int piece, int row, int head) {
  const int kvHead = head / pool.group;
  const float *q = call.qkv + row * call.qkvStride + static_cast<size_t>(head) * pool.headDim;
  const Vector bare = normalised(pool, q, call.qNorm);
  const int lastSegment = step.pieceSegments[piece + 1] - 1;
  Vector scores;
  std::vector<int> slots;
  for (int s = step.pieceSegments[piece]; s <= lastSegment; s++) {
    Vector rotated = bare;
    const double position = static_cast<double>(step.positions[row]) - step.segmentOffsets[s];
    rotate(pool, call.layer, rotated, position, pool.ropeFactor);
    int seen = step.segmentTokenCounts[s];
    if (s == lastSegment) seen -= step.pieceRows[piece + 1] - 1 - row;
    for (int t = 0; t < seen; t++) {
      const int token = step.segmentFirstTokens[s] + t;
      const int block = step.blockIds[step.segmentBlockStarts[s] + token / pool.blockTokens];
      const int slot = block * pool.blockTokens + token % pool.blockTokens;
      const TokenPlace at = place(pool, call.layer, kvHead, slot);
      double dot = 0;
      for (int d = 0; d < pool.headDim; d++) dot += rotated[d] * load(pool, at.head, k_index(pool, d, at.offset));
      scores.push_back(dot * pool.softmaxScale);
      slots.push_back(slot);
    }
  }
  double greatest = -INFINITY, sum = 0;
  for (double score : scores) greatest = fmax(greatest, score);
  Vector out(pool.headDim, 0.0);
  for (size_t t = 0; t < scores.size(); t++) {
    const double weight = exp(scores[t] - greatest);
    const TokenPlace at = place(pool, call.layer, kvHead, slots[t]);
    sum += weight;
    for (int d = 0; d < pool.headDim; d++) out[d] += weight * load(pool, at.head, v_index(pool, d, at.offset));
  }
  float *target = call.out + (static_cast<size_t>(row) * pool.queryHeads + head) * pool.headDim;
  for (int d = 0; d < pool.headDim; d++) target[d] = static_cast<float>(out[d] / sum);
}

}

void write_kv(const PoolView &pool, const StepView &step, const LayerCall &call) {
  for (int row = 0; row < step.rows; row++) {
    for (int kvHead = 0; kvHead < pool.kvHeads; kvHead++) {
      const float *k = call.qkv + row * call.qkvStride + static_cast<size_t>(pool.queryHeads + kvHead) * pool.headDim;
      const float *v = k + static_cast<size_t>(pool.kvHeads) * pool.headDim;
      Vector rotated = normalised(pool, k, call.kNorm);
      rotate(pool, call.layer, rotated, step.positions[row], pool.ropeFactor);
      const TokenPlace at = place(pool, call.layer, kvHead, step.slots[row]);
      for (int d = 0; d < pool.headDim; d++) store(pool, at.head, k_index(pool, d, at.offset), rotated[d]);
      for (int d = 0; d < pool.headDim; d++) store(pool, at.head, v_index(pool, d, at.offset), v[d]);
    }
  }
}

void attend(const PoolView &pool, const StepView &step, const LayerCall &call) {
  for (int piece = 0; piece < step.pieces; piece++) {
    for (int row = step.pieceRows[piece]; row < step.pieceRows[piece + 1]; row++) {
      for (int head = 0; head < pool.queryHeads; head++) attend_head(pool, step, call, piece, row, head);
    }
  }
}

void copy_tokens(const PoolView &pool, const TokenCopies &copies) {
  Vector column(pool.headDim);
  for (int i = 0; i < copies.count; i++) {
    for (int head = 0; head < pool.layers * pool.kvHeads; head++) {
      const int layer = head / pool.kvHeads, kvHead = head % pool.kvHeads;
      const TokenPlace from = place(pool, layer, kvHead, copies.sourceSlots[i]);
      const TokenPlace to = place(pool, layer, kvHead, copies.targetSlots[i]);
      for (int d = 0; d < pool.headDim; d++) column[d] = load(pool, from.head, k_index(pool, d, from.offset));
      rotate(pool, layer, column, copies.deltas[i], 1);
      for (int d = 0; d < pool.headDim; d++) store(pool, to.head, k_index(pool, d, to.offset), column[d]);
      for (int d = 0; d < pool.headDim; d++) {
        store(pool, to.head, v_index(pool, d, to.offset), load(pool, from.head, v_index(pool, d, from.offset)));
      }
    }
  }
}

void deviations(const PoolView &pool, const StepView &step, const LayerCall &call) {
  for (int row = 0; row < step.rows; row++) {
    double sum = 0;
    for (int kvHead = 0; kvHead < pool.kvHeads; kvHead++) {
      const float *k = call.qkv + row * call.qkvStride + static_cast<size_t>(pool.queryHeads + kvHead) * pool.headDim;
      const float *v = k + static_cast<size_t>(pool.kvHeads) * pool.headDim;
      Vector rotated = normalised(pool, k, call.kNorm);
      rotate(pool, call.layer, rotated, step.positions[row], pool.ropeFactor);
      const TokenPlace at = place(pool, call.layer, kvHead, step.slots[row]);
      for (int d = 0; d < pool.headDim; d++) {
        const double inKey = rotated[d] - load(pool, at.head, k_index(pool, d, at.offset));
        const double inValue = v[d] - load(pool, at.head, v_index(pool, d, at.offset));
        sum += inKey * inKey + inValue * inValue;
      }
    }
    call.out[row] = static_cast<float>(sum);
  }
}

void embed_rows(const void *table, int type, int width, const int32_t *tokenIds, int count, float *out) {
  for (int i = 0; i < count; i++) {
    const size_t start = static_cast<size_t>(tokenIds[i]) * width;
    for (int d = 0; d < width; d++) {
      float value;
      if (type == SPG_FLOAT32) {
        value = static_cast<const float *>(table)[start + d];
      } else if (type == SPG_FLOAT16) {
        value = half_to_float(static_cast<const uint16_t *>(table)[start + d]);
      } else {
        const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(table)[start + d]) << 16;
        memcpy(&value, &bits, 4);
      }
      out[static_cast<size_t>(i) * width + d] = value;
    }
  }
}

}
