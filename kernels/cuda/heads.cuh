/*
 * One head of one row, held by one warp. A lane holds two pairs of values that RoPE rotates together (or four values
 * that it does not rotate): dimensions a, a + 1 and b, b + 1. That is 128 dimensions; of longer heads, for which files
 * are compiled with their HEAD_DIM, a lane holds as many again.
 */
#ifndef SPANGATE_HEADS_CUH
#define SPANGATE_HEADS_CUH

#include "common.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
constexpr int kLaneParts = HEAD_DIM > 128 ? 2 : 1;

/* KV pool of one layer: [block][kvHead] of { K: [blockTokens][headDim], V: [blockTokens][headDim] }, bf16. */
struct HeadShape {
  int headDim;   /* a multiple of 4, at most 128 * kLaneParts */
  int rotaryDim; /* a multiple of 4; 0: no RoPE; pairs are (i, i + rotaryDim / 2) */
  int kvHeads;
  int blockTokens;
};

__device__ __forceinline__ size_t key_offset(const HeadShape &shape, int slot, int kvHead) {
  const size_t head = size_t(slot / shape.blockTokens) * shape.kvHeads + kvHead;
  return (head * 2 * shape.blockTokens + slot % shape.blockTokens) * shape.headDim;
}

__device__ __forceinline__ size_t value_offset(const HeadShape &shape, int slot, int kvHead) {
  return key_offset(shape, slot, kvHead) + size_t(shape.blockTokens) * shape.headDim;
}

/* The dimensions of a head that a lane holds: of each part two pairs. */
struct LanePlace {
  bool used[kLaneParts], rotates[kLaneParts];
  int a[kLaneParts], b[kLaneParts], pair[kLaneParts];
};

__device__ __forceinline__ LanePlace lane_place(const HeadShape &shape) {
  const int half = shape.rotaryDim / 2;
  LanePlace place;
#pragma unroll
  for (int p = 0; p < kLaneParts; p++) {
    const int unit = 2 * (threadIdx.x & 31) + 64 * p;
    place.used[p] = unit < shape.headDim / 2;
    place.rotates[p] = unit < half;
    place.pair[p] = unit;
    place.a[p] = place.rotates[p] ? unit : shape.rotaryDim + 2 * (unit - half);
    place.b[p] = place.rotates[p] ? unit + half : place.a[p] + 2;
  }
  return place;
}

struct LaneValues {
  float x[4 * kLaneParts]; /* of each part at a, a + 1, b, b + 1 */
};

__device__ __forceinline__ LaneValues load_head(const bf16 *head, const LanePlace &place) {
  LaneValues v = {};
#pragma unroll
  for (int p = 0; p < kLaneParts; p++) {
    if (!place.used[p]) continue;
    const uint32 first = *reinterpret_cast<const uint32 *>(head + place.a[p]);
    const uint32 second = *reinterpret_cast<const uint32 *>(head + place.b[p]);
    float *x = v.x + 4 * p;
    x[0] = low_float(first), x[1] = high_float(first), x[2] = low_float(second), x[3] = high_float(second);
  }
  return v;
}

__device__ __forceinline__ void store_head(bf16 *head, const LanePlace &place, const LaneValues &v) {
#pragma unroll
  for (int p = 0; p < kLaneParts; p++) {
    if (!place.used[p]) continue;
    const float *x = v.x + 4 * p;
    *reinterpret_cast<uint32 *>(head + place.a[p]) = pack_bf16(x[0], x[1]);
    *reinterpret_cast<uint32 *>(head + place.b[p]) = pack_bf16(x[2], x[3]);
  }
}

/* RMSNorm over the head with weights `w` + `offset`; the whole warp must call it. */
__device__ __forceinline__ void normalise_head(LaneValues &v, const LaneValues &w, float offset, int headDim,
                                               float epsilon) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 4 * kLaneParts; i++) squares += v.x[i] * v.x[i];
  const float factor = rsqrtf(warp_sum(squares) / headDim + epsilon);
#pragma unroll
  for (int i = 0; i < 4 * kLaneParts; i++) v.x[i] *= factor * (w.x[i] + offset);
}

/* (cos, sin) of a lane's pairs. */
struct LaneRotations {
  float2 rotation[2 * kLaneParts];
};

/* @param rotations the table's row for the position, [rotaryDim / 2] */
__device__ __forceinline__ LaneRotations load_rotations(const float2 *rotations, const LanePlace &place) {
  LaneRotations t = {};
#pragma unroll
  for (int p = 0; p < kLaneParts; p++) {
    if (!place.used[p] || !place.rotates[p]) continue;
    t.rotation[2 * p] = rotations[place.pair[p]], t.rotation[2 * p + 1] = rotations[place.pair[p] + 1];
  }
  return t;
}

/* Rotates two dimensions with the two that they form pairs with; t: (cos, sin) of both pairs. */
__device__ __forceinline__ void rotate_pairs(uint32 &x, uint32 &y, const float4 &t) {
  const float x0 = low_float(x), x1 = high_float(x), y0 = low_float(y), y1 = high_float(y);
  x = pack_bf16(x0 * t.x - y0 * t.y, x1 * t.z - y1 * t.w);
  y = pack_bf16(y0 * t.x + x0 * t.y, y1 * t.z + x1 * t.w);
}

__device__ __forceinline__ void rotate_head(LaneValues &v, const LaneRotations &t, const LanePlace &place) {
#pragma unroll
  for (int p = 0; p < kLaneParts; p++) {
    if (!place.used[p] || !place.rotates[p]) continue;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float2 rotation = t.rotation[2 * p + i];
      float &first = v.x[4 * p + i], &second = v.x[4 * p + 2 + i];
      const float x = first, y = second;
      first = x * rotation.x - y * rotation.y;
      second = y * rotation.x + x * rotation.y;
    }
  }
}

__device__ __forceinline__ void rotate_head(LaneValues &v, const float2 *rotations, const LanePlace &place) {
  rotate_head(v, load_rotations(rotations, place), place);
}

/* Loads a projected head and adds the bias of its projection. */
__device__ __forceinline__ LaneValues projected_head(const bf16 *head, const bf16 *bias, const LanePlace &place) {
  LaneValues v = load_head(head, place);
  if (bias) {
    const LaneValues b = load_head(bias, place);
#pragma unroll
    for (int i = 0; i < 4 * kLaneParts; i++) v.x[i] += b.x[i];
  }
  return v;
}

#endif
