/*
 * One head of one row, held by one warp. A lane holds two pairs of values that RoPE rotates together (or four values
 * that it does not rotate): dimensions a, a + 1 and b, b + 1. So a head has at most 128.
 */
#ifndef SPANGATE_HEADS_CUH
#define SPANGATE_HEADS_CUH

#include "common.cuh"

/* KV pool of one layer: [block][kvHead] of { K: [blockTokens][headDim], V: [blockTokens][headDim] }, bf16. */
struct HeadShape {
  int headDim;   /* a multiple of 4, at most 128 */
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

/* The dimensions of a head that a lane holds. */
struct LanePlace {
  bool used, rotates;
  int a, b, pair;
};

__device__ __forceinline__ LanePlace lane_place(const HeadShape &shape) {
  const int unit = 2 * (threadIdx.x & 31), half = shape.rotaryDim / 2;
  LanePlace place;
  place.used = unit < shape.headDim / 2;
  place.rotates = unit < half;
  place.pair = unit;
  place.a = place.rotates ? unit : shape.rotaryDim + 2 * (unit - half);
  place.b = place.rotates ? unit + half : place.a + 2;
  return place;
}

struct LaneValues {
  float x[4]; /* at a, a + 1, b, b + 1 */
};

__device__ __forceinline__ LaneValues load_head(const bf16 *head, const LanePlace &place) {
  LaneValues v = {};
  if (!place.used) return v;
  const uint32 first = *reinterpret_cast<const uint32 *>(head + place.a);
  const uint32 second = *reinterpret_cast<const uint32 *>(head + place.b);
  v.x[0] = low_float(first), v.x[1] = high_float(first), v.x[2] = low_float(second), v.x[3] = high_float(second);
  return v;
}

__device__ __forceinline__ void store_head(bf16 *head, const LanePlace &place, const LaneValues &v) {
  if (!place.used) return;
  *reinterpret_cast<uint32 *>(head + place.a) = pack_bf16(v.x[0], v.x[1]);
  *reinterpret_cast<uint32 *>(head + place.b) = pack_bf16(v.x[2], v.x[3]);
}

/* RMSNorm over the head with weights `w`; the whole warp must call it. */
__device__ __forceinline__ void normalise_head(LaneValues &v, const LaneValues &w, int headDim, float epsilon) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) squares += v.x[i] * v.x[i];
  const float factor = rsqrtf(warp_sum(squares) / headDim + epsilon);
#pragma unroll
  for (int i = 0; i < 4; i++) v.x[i] *= factor * w.x[i];
}

/* (cos, sin) of a lane's two pairs. */
struct LaneRotations {
  float2 rotation[2];
};

/* @param rotations the table's row for the position, [rotaryDim / 2] */
__device__ __forceinline__ LaneRotations load_rotations(const float2 *rotations, const LanePlace &place) {
  LaneRotations t = {};
  if (place.used && place.rotates) t = {{rotations[place.pair], rotations[place.pair + 1]}};
  return t;
}

/* Rotates two dimensions with the two that they form pairs with; t: (cos, sin) of both pairs. */
__device__ __forceinline__ void rotate_pairs(uint32 &x, uint32 &y, const float4 &t) {
  const float x0 = low_float(x), x1 = high_float(x), y0 = low_float(y), y1 = high_float(y);
  x = pack_bf16(x0 * t.x - y0 * t.y, x1 * t.z - y1 * t.w);
  y = pack_bf16(y0 * t.x + x0 * t.y, y1 * t.z + x1 * t.w);
}

__device__ __forceinline__ void rotate_head(LaneValues &v, const LaneRotations &t, const LanePlace &place) {
  if (!place.used || !place.rotates) return;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float x = v.x[i], y = v.x[2 + i];
    v.x[i] = x * t.rotation[i].x - y * t.rotation[i].y;
    v.x[2 + i] = y * t.rotation[i].x + x * t.rotation[i].y;
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
    for (int i = 0; i < 4; i++) v.x[i] += b.x[i];
  }
  return v;
}

#endif
