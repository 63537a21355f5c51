/* The slow, obvious twin of choose.cpp: a token at a time, in the operations that choose.h and abi_sparse.h name. */
#include <math.h>
#include <string.h>

#include <vector>

#include "choose.h"
#include "half.h"

namespace spg {
namespace {

float key_of(const PoolView &pool, const unsigned char *head, int dim, int token) {
  const size_t index = static_cast<size_t>(dim) * pool.blockTokens + token;
  if (pool.elementBytes == 4) {
    float value;
    memcpy(&value, head + index * 4, 4);
    return value;
  }
  if (is_mx8(pool)) {
    const int scale = head[key_scales_at(pool, token) + static_cast<size_t>(dim / kMx8Group) * pool.blockTokens];
    if (scale == kMx8NanScale) return NAN;
    return scale < kMx8LeastScale ? 0 : ldexpf(static_cast<int8_t>(head[index]), scale - kMx8Bias);
  }
  uint16_t bits;
  memcpy(&bits, head + index * 2, 2);
  return half_to_float(bits);
}

void load_panel(const PoolView &pool, const unsigned char *head, int token, float *keys) {
  for (int d = 0; d < pool.headDim; d++) {
    for (int t = 0; t < kPanelTokens; t++) keys[d * kPanelTokens + t] = key_of(pool, head, d, token + t);
  }
}

/* Hd x: first pairs that are neighbours, then pairs two apart, and so on. */
void transform(std::vector<float> &x) {
  const int dim = static_cast<int>(x.size());
  for (int start = 0; start < dim;) {
    const int part = hadamard_part(dim - start);
    for (int half = 1; half < part; half *= 2) {
      for (int i = 0; i < part; i++) {
        if (i & half) continue;
        const float a = x[start + i], b = x[start + i + half];
        x[start + i] = a + b;
        x[start + i + half] = a - b;
      }
    }
    const float factor = 1.0f / sqrtf(static_cast<float>(part));
    for (int i = start; i < start + part; i++) x[i] *= factor;
    start += part;
  }
}

void write_shadows(int headDim, float *keys, int first, int end, unsigned char *panel) {
  for (int t = first; t < end; t++) {
    std::vector<float> y(headDim);
    for (int d = 0; d < headDim; d++) y[d] = keys[d * kPanelTokens + t];
    transform(y);
    float greatest = 0;
    bool isFinite = true;
    for (float x : y) {
      isFinite = isFinite && isfinite(x);
      greatest = fmaxf(greatest, fabsf(x));
    }
    const uint16_t bits = isFinite ? float_to_half(greatest / kShadowLimit) : 0;
    const float scale = half_to_float(bits), inverse = scale > 0 ? 1.0f / scale : 0;
    memcpy(panel + shadow_code_bytes(headDim) + t * 2, &bits, 2);
    for (int d = 0; d < headDim; d++) {
      const float number = inverse > 0 ? rintf(y[d] * inverse) : 0;
      const int code = static_cast<int>(fminf(fmaxf(number, -kShadowLimit), kShadowLimit)) + kShadowZero;
      const int inHalf = d % (headDim / 2), shift = d < headDim / 2 ? 0 : 4;
      unsigned char *byte = panel + (static_cast<size_t>(inHalf / 4) * kPanelTokens + t) * 4 + inHalf % 4;
      *byte = static_cast<unsigned char>((*byte & (shift ? 0x0f : 0xf0)) | code << shift);
    }
  }
}

void score(const unsigned char *const *panels, int count, int headDim, const ShadowQuery *queries,
           const ScoreRows &rows) {
  for (int q = 0; q < rows.count; q++) {
    for (int i = 0; i < count * kPanelTokens; i++) {
      const unsigned char *panel = panels[i / kPanelTokens];
      const int t = i % kPanelTokens;
      int32_t sum = 0;
      for (int d = 0; d < headDim; d++) {
        const int inHalf = d % (headDim / 2), shift = d < headDim / 2 ? 0 : 4;
        const int code = panel[(static_cast<size_t>(inHalf / 4) * kPanelTokens + t) * 4 + inHalf % 4] >> shift & 15;
        sum += (code - kShadowZero) * queries[q].numbers[d];
      }
      uint16_t scale;
      memcpy(&scale, panel + shadow_code_bytes(headDim) + t * 2, 2);
      rows.scores[q * rows.stride + i] = static_cast<float>(sum) * half_to_float(scale) * queries[q].factor;
    }
  }
}

/* 2^x for x <= 0, by the polynomial of vector.h. */
float exp2_nonpositive(float x) {
  static const float coefficients[] = {0.00015353361959569156f, 0.0013398873852565885f, 0.00961843691766262f,
                                       0.055503323674201965f,   0.24022647738456726f,   0.6931471824645996f,
                                       1.0f};
  const float clamped = x > -127.0f ? x : -127.0f, n = rintf(clamped), f = clamped - n;
  float p = coefficients[0];
  for (int i = 1; i < 7; i++) p = fmaf(p, f, coefficients[i]);
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

void rank(const ScoreRows &rows, int tokens, float *best, uint16_t *ranks) {
  for (int q = 0; q < rows.count; q++) {
    const float *scores = rows.scores + q * rows.stride;
    float top = -INFINITY, sums[kPanelTokens] = {}, total = 0;
    for (int i = 0; i < tokens; i++) top = scores[i] > top ? scores[i] : top;
    for (int i = 0; i < tokens; i++) sums[i % kPanelTokens] += exp2_nonpositive(scores[i] - top);
    for (float sum : sums) total += sum;
    const float own = top + log2f(total);
    for (int i = 0; i < tokens; i++) {
      const float share = scores[i] - own;
      best[i] = q > 0 && best[i] >= share ? best[i] : share;
    }
  }
  for (int i = 0; i < tokens; i++) ranks[i] = float_to_half(best[i]);
}

void within(const uint16_t *ranks, int tokens, uint16_t low, uint16_t end, uint64_t *set) {
  for (int i = 0; i < tokens; i += 64) set[i / 64] = 0;
  for (int i = 0; i < tokens; i++) {
    const int rank = ranks[i] & 0x7fff;
    if (rank >= low && rank < end) set[i / 64] |= uint64_t(1) << (i % 64);
  }
}

}

const ChooseTable *reference_choose() {
  static const ChooseTable table = {load_panel, write_shadows, score, rank, within};
  return &table;
}

}
