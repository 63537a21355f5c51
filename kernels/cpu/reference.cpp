/*
 * The slow, obvious twin of every kernel, which the tests use as their oracle. It reads the plan as the caller gave it,
 * one row, head and token at a time, computes in double, and rounds once when it stores.
 */
#include <math.h>
#include <string.h>

#include <limits>
#include <vector>

#include "half.h"
#include "internal.h"

namespace spg::reference {
namespace {

using Vector = std::vector<double>;

struct TokenPlace {
  unsigned char *head;
  int offset;
};

TokenPlace place(const PoolView &pool, int layer, int kvHead, int slot) {
  return {head_data(pool, layer, slot / pool.blockTokens, kvHead), slot % pool.blockTokens};
}

/* Which of a token's numbers in a head are meant. */
enum class Part { kKey, kValue };

size_t index_of(const PoolView &pool, Part part, int dim, int offset) {
  if (part == Part::kKey) return static_cast<size_t>(dim) * pool.blockTokens + offset;
  return static_cast<size_t>(pool.headDim) * pool.blockTokens + static_cast<size_t>(offset) * pool.headDim + dim;
}

/* mx8: the byte that holds the scale of a group of 32 dimensions. */
size_t scale_at(const PoolView &pool, Part part, int group, int offset) {
  const size_t groups = pool.headDim / 32, numbers = static_cast<size_t>(2) * pool.headDim * pool.blockTokens;
  if (part == Part::kKey) return numbers + static_cast<size_t>(group) * pool.blockTokens + offset;
  return numbers + groups * pool.blockTokens + groups * offset + group;
}

double load(const PoolView &pool, const TokenPlace &at, Part part, int dim) {
  const size_t index = index_of(pool, part, dim, at.offset);
  if (pool.elementBytes == 4) {
    float value;
    memcpy(&value, at.head + index * 4, 4);
    return value;
  }
  if (is_mx8(pool)) {
    const int scale = at.head[scale_at(pool, part, dim / 32, at.offset)];
    if (scale == 255) return NAN;
    return scale < 7 ? 0 : ldexp(static_cast<int8_t>(at.head[index]), scale - 133);
  }
  uint16_t bits;
  memcpy(&bits, at.head + index * 2, 2);
  return half_to_float(bits);
}

/* Stores dimensions [first, first + 32) in mx8. */
void store_group(const PoolView &pool, const TokenPlace &at, Part part, int first, const float *values) {
  double greatest = 0;
  bool isFinite = true;
  for (int i = 0; i < 32; i++) {
    isFinite = isFinite && isfinite(values[i]);
    greatest = fmax(greatest, fabs(values[i]));
  }
  const int scale = !isFinite ? 255 : greatest < ldexp(1, -120) ? 7 : ilogb(greatest) + 127;
  at.head[scale_at(pool, part, first / 32, at.offset)] = static_cast<unsigned char>(scale);
  for (int i = 0; i < 32; i++) {
    const double steps = isFinite ? nearbyint(ldexp(values[i], 133 - scale)) : 0;
    const double number = fmin(fmax(steps, -127), 127);
    at.head[index_of(pool, part, first + i, at.offset)] = static_cast<unsigned char>(static_cast<int8_t>(number));
  }
}

/* Rounds to float32 first: the fast kernels hold that precision before they store. */
void store(const PoolView &pool, const TokenPlace &at, Part part, const Vector &vector) {
  const std::vector<float> values(vector.begin(), vector.end());
  for (int d = 0; d < pool.headDim; d++) {
    const size_t index = index_of(pool, part, d, at.offset);
    if (pool.elementBytes == 4) {
      memcpy(at.head + index * 4, &values[d], 4);
    } else if (!is_mx8(pool)) {
      const uint16_t bits = float_to_half(values[d]);
      memcpy(at.head + index * 2, &bits, 2);
    } else if (d % 32 == 0) {
      store_group(pool, at, part, d, &values[d]);
    }
  }
}

Vector load_all(const PoolView &pool, const TokenPlace &at, Part part) {
  Vector values(pool.headDim);
  for (int d = 0; d < pool.headDim; d++) values[d] = load(pool, at, part, d);
  return values;
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

double rope_factor(const PoolView &pool, int layer) {
  return pool.ropeFactors[rope_table(pool, layer)];
}

void rotate(const PoolView &pool, int layer, Vector &head, double position, double factor) {
  if (!rotates(pool, layer)) return;
  const double *frequencies = pool.inverseFrequencies[rope_table(pool, layer)];
  const int half = pool.rotaryDim / 2;
  for (int i = 0; i < half; i++) {
    const int a = pool.interleaved ? 2 * i : i;
    const int b = pool.interleaved ? 2 * i + 1 : i + half;
    const double angle = position * frequencies[i];
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
    rotate(pool, call.layer, rotated, position, rope_factor(pool, call.layer));
    int seen = step.segmentTokenCounts[s];
    if (s == lastSegment) seen -= step.pieceRows[piece + 1] - 1 - row;
    for (int t = 0; t < seen; t++) {
      if (slides(pool, call.layer) && position - (step.segmentPositions[s] + t) >= pool.window) continue;
      const int token = step.segmentFirstTokens[s] + t;
      const int block = step.blockIds[step.segmentBlockStarts[s] + token / pool.blockTokens];
      const int slot = block * pool.blockTokens + token % pool.blockTokens;
      const TokenPlace at = place(pool, call.layer, kvHead, slot);
      double dot = 0;
      for (int d = 0; d < pool.headDim; d++) dot += rotated[d] * load(pool, at, Part::kKey, d);
      const double score = dot * pool.softmaxScale, cap = pool.scoreCap;
      scores.push_back(cap > 0 ? cap * tanh(score / cap) : score);
      slots.push_back(slot);
    }
  }
  const double sink = sink_of(pool, call.layer, head);
  double greatest = sink;
  for (double score : scores) greatest = fmax(greatest, score);
  double sum = pool.sinks ? exp(sink - greatest) : 0;
  Vector out(pool.headDim, 0.0);
  for (size_t t = 0; t < scores.size(); t++) {
    const double weight = exp(scores[t] - greatest);
    const TokenPlace at = place(pool, call.layer, kvHead, slots[t]);
    sum += weight;
    for (int d = 0; d < pool.headDim; d++) out[d] += weight * load(pool, at, Part::kValue, d);
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
      rotate(pool, call.layer, rotated, step.positions[row], rope_factor(pool, call.layer));
      const TokenPlace at = place(pool, call.layer, kvHead, step.slots[row]);
      store(pool, at, Part::kKey, rotated);
      store(pool, at, Part::kValue, Vector(v, v + pool.headDim));
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

void copy_head(const PoolView &pool, const TokenCopies &copies, int layer, int kvHead) {
  for (int i = 0; i < copies.count; i++) {
    const TokenPlace from = place(pool, layer, kvHead, copies.sourceSlots[i]);
    const TokenPlace to = place(pool, layer, kvHead, copies.targetSlots[i]);
    Vector key = load_all(pool, from, Part::kKey);
    rotate(pool, layer, key, copies.deltas[i], 1);
    store(pool, to, Part::kKey, key);
    store(pool, to, Part::kValue, load_all(pool, from, Part::kValue));
  }
}

void copy_tokens(const PoolView &pool, const TokenCopies &copies) {
  for (int head = 0; head < pool.layers * pool.kvHeads; head++) {
    copy_head(pool, copies, head / pool.kvHeads, head % pool.kvHeads);
  }
}

void deviations(const PoolView &pool, const StepView &step, const LayerCall &call) {
  for (int row = 0; row < step.rows; row++) {
    double sum = 0;
    for (int kvHead = 0; kvHead < pool.kvHeads; kvHead++) {
      const float *k = call.qkv + row * call.qkvStride + static_cast<size_t>(pool.queryHeads + kvHead) * pool.headDim;
      const float *v = k + static_cast<size_t>(pool.kvHeads) * pool.headDim;
      Vector rotated = normalised(pool, k, call.kNorm);
      rotate(pool, call.layer, rotated, step.positions[row], rope_factor(pool, call.layer));
      const TokenPlace at = place(pool, call.layer, kvHead, step.slots[row]);
      for (int d = 0; d < pool.headDim; d++) {
        const double inKey = rotated[d] - load(pool, at, Part::kKey, d);
        const double inValue = v[d] - load(pool, at, Part::kValue, d);
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
