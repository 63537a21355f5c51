/* Queries in 8 bits, as they are compared with shadows (shadow.cuh). Rounded one by one, as on the CPU (kernels/cpu/choose.h). */
#ifndef SPANGATE_ROUNDED_QUERIES_CUH
#define SPANGATE_ROUNDED_QUERIES_CUH

#include "choice_plan.cuh"
#include "shadow.cuh"

constexpr int kQueryLimit = 127;
/* A row of codes is padded to an odd number of 16-byte vectors. */
constexpr int kCodeStride = HEAD_DIM + 16;
/* Numbers of a head that a lane has. Heads of other sizes than multiples of 32 have no shadows. */
constexpr int kLaneNumbers = HEAD_DIM < 32 ? 1 : HEAD_DIM / 32;
/* Query heads that are rounded at a time. */
constexpr int kTogether = 2;

/* The query heads of a KV head, for one warp. */
struct Queries {
  signed char codes[kMaxGroup][kCodeStride];
  int zero[kMaxGroup]; /* what codes give that stand for 0 */
  float factor[kMaxGroup];
};

/* The dimension of a lane's number i: of each power-of-two part of the head a lane has neighbours. */
__device__ __forceinline__ int dimension_of(int i, int lane) {
  int start = 0;
  for (int part = part_of(kLaneNumbers); i >= start + part; part = part_of(kLaneNumbers - start)) start += part;
  const int part = part_of(kLaneNumbers - start);
  return 32 * start + lane * part + i - start;
}

/* Numbers of `heads` heads, in registers, as dimension_of spreads them over the lanes. */
struct LaneQueries {
  float y[kTogether][kLaneNumbers];
};

/* Hd of the head's parts from number kStart on: pairs that are neighbours first, then those two apart, and so on. */
template <int kStart>
__device__ __forceinline__ void transform_queries(LaneQueries &queries) {
  if constexpr (kStart < kLaneNumbers) {
    constexpr int kPart = part_of(kLaneNumbers - kStart);
    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(float(32 * kPart)));
#pragma unroll
    for (int half = 1; half < kPart; half *= 2) {
#pragma unroll
      for (int i = 0; i < kPart * kTogether; i++) {
        float *own = queries.y[i / kPart] + kStart;
        if ((i % kPart & half) == 0) add_pair(own[i % kPart], own[i % kPart + half]);
      }
    }
#pragma unroll
    for (int half = 1; half < 32; half *= 2) {
#pragma unroll
      for (int i = 0; i < kPart * kTogether; i++) {
        float &own = queries.y[i / kPart][kStart + i % kPart];
        const float other = __shfl_xor_sync(kAllLanes, own, half);
        own = (threadIdx.x & half) == 0 ? __fadd_rn(own, other) : __fsub_rn(other, own);
      }
    }
#pragma unroll
    for (int i = 0; i < kPart * kTogether; i++) {
      float &own = queries.y[i / kPart][kStart + i % kPart];
      own = __fmul_rn(own, factor);
    }
    transform_queries<kStart + kPart>(queries);
  }
}

/* q of query heads first, ..., first + kTogether - 1 of `heads`, rotated by a row of rotations; the last again behind it. */
__device__ __forceinline__ void load_queries(const bf16 *q, int first, int heads, const float2 *row, int rotaryDim,
                                             LaneQueries &queries) {
  const int lane = threadIdx.x & 31, half = rotaryDim / 2;
#pragma unroll
  for (int i = 0; i < kLaneNumbers; i++) {
    const int d = dimension_of(i, lane);
    const bool isFirst = d < half, isTurned = d < rotaryDim;
    const float2 turn = isTurned ? row[isFirst ? d : d - half] : make_float2(1, 0);
#pragma unroll
    for (int h = 0; h < kTogether; h++) {
      const bf16 *own = q + min(first + h, heads - 1) * HEAD_DIM + d;
      float x = to_float(*own);
      if (isTurned) {
        const float straight = __fmul_rn(x, turn.x), crossed = __fmul_rn(to_float(own[isFirst ? half : -half]), turn.y);
        x = isFirst ? __fsub_rn(straight, crossed) : __fadd_rn(straight, crossed);
      }
      queries.y[h][i] = x;
    }
  }
}

/* Rounds one head to 8 bits. */
__device__ __forceinline__ void round_query(const float (&y)[kLaneNumbers], float scaleLog2, Queries &queries, int head) {
  const int lane = threadIdx.x & 31;
  float greatest = 0, zeros = 0;
#pragma unroll
  for (int i = 0; i < kLaneNumbers; i++) greatest = fmaxf(greatest, fabsf(y[i])), zeros += y[i] * 0.0f;
  greatest = warp_max(greatest) + warp_sum(zeros); /* NaN where a number is not finite */
  const float inverse = greatest > 0 ? __fdiv_rn(float(kQueryLimit), greatest) : 0.0f;
  /* One that is not finite, or too small to be divided by, scores every token 0. */
  const bool isZero = !(inverse > 0) || inverse - inverse != 0.0f;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kLaneNumbers; i++) {
    const int number = isZero ? 0 : int(rintf(__fmul_rn(y[i], inverse)));
    queries.codes[head][dimension_of(i, lane)] = static_cast<signed char>(number);
    sum += number;
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    queries.zero[head] = kShadowZero * sum;
    queries.factor[head] = isZero ? 0.0f : __fmul_rn(__fdiv_rn(greatest, float(kQueryLimit)), scaleLog2);
  }
}

/* One warp: q [heads][HEAD_DIM] rotated, transformed, and rounded to 8 bits. */
__device__ __forceinline__ void round_queries(const bf16 *q, int heads, const float2 *row, int rotaryDim, float scaleLog2,
                                              Queries &queries) {
  __syncwarp(); /* no lane reads those before any more */
  for (int first = 0; first < heads; first += kTogether) {
    LaneQueries own;
    load_queries(q, first, heads, row, rotaryDim, own);
    transform_queries<0>(own);
#pragma unroll
    for (int h = 0; h < kTogether; h++) {
      if (first + h < heads) round_query(own.y[h], scaleLog2, queries, first + h);
    }
  }
  __syncwarp();
}

#endif
