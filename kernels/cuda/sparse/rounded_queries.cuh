/* Queries in 8 bits, as they are compared with shadows (shadow.cuh). Rounded one by one, as on the CPU (kernels/cpu/choose.h). */
#ifndef SPANGATE_ROUNDED_QUERIES_CUH
#define SPANGATE_ROUNDED_QUERIES_CUH

#include "choice_plan.cuh"
#include "shadow.cuh"

/* Words of the codes of half a head. */
constexpr int kWords = HEAD_DIM < 32 ? 4 : HEAD_DIM / 8;
constexpr int kQueryLimit = 127;

/* Queries in 8 bits, as they are multiplied with words of codes: first those of the lower 4 bits, then of the upper. */
struct Queries {
  int4 words[kMaxGroup / kPassHeads][2 * kWords];
  int zero[kMaxGroup]; /* what codes give that stand for 0 */
  float factor[kMaxGroup];
};

/* One warp: q [HEAD_DIM] rotated by a row of rotations, transformed, and rounded to 8 bits. */
__device__ __forceinline__ void round_query(const bf16 *q, const float2 *row, int rotaryDim, float scaleLog2, float *y,
                                            Queries &queries, int index) {
  const int lane = threadIdx.x & 31, half = rotaryDim / 2;
  for (int i = lane; i < HEAD_DIM; i += 32) {
    float x = to_float(q[i]);
    if (i < rotaryDim) {
      const float other = to_float(q[i < half ? i + half : i - half]);
      const float2 turn = row[i < half ? i : i - half];
      const float own = __fmul_rn(x, turn.x), crossed = __fmul_rn(other, turn.y);
      x = i < half ? __fsub_rn(own, crossed) : __fadd_rn(own, crossed);
    }
    y[i] = x;
  }
  transform(y);
  const float greatest = greatest_of(y), inverse = greatest > 0 ? __fdiv_rn(float(kQueryLimit), greatest) : 0.0f;
  /* One that is not finite, or too small to be divided by, scores every token 0. */
  const bool isZero = !(inverse > 0) || inverse - inverse != 0.0f;
  int sum = 0;
  int *words = reinterpret_cast<int *>(queries.words[index / kPassHeads]) + index % kPassHeads;
  for (int word = lane; word < 2 * kWords; word += 32) {
    uint32 four = 0;
    for (int i = 0; i < 4; i++) {
      const int d = 4 * word + i;
      const int number = isZero || d >= HEAD_DIM ? 0 : int(rintf(__fmul_rn(y[d], inverse)));
      sum += number;
      four |= uint32(number & 255) << 8 * i;
    }
    words[word * kPassHeads] = int(four);
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    queries.zero[index] = kShadowZero * sum;
    queries.factor[index] = isZero ? 0.0f : __fmul_rn(__fdiv_rn(greatest, float(kQueryLimit)), scaleLog2);
  }
  __syncwarp();
}

#endif
