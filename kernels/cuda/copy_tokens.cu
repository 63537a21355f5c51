/*
 * Copies K and V of single tokens from slot to slot in every layer. K is rotated further by the token's delta positions
 * (the target stands that much later than its source); V is copied unchanged. Where source and target are one slot, K
 * is rotated in place.
 *
 *   sourceSlots, targetSlots, deltas [tokens]
 *   layerRotates [layers]: 0 where the layer has no RoPE, 1 where it rotates by `rotations`, 2 by `slidingRotations`
 *   pool: all layers, `layerStride` elements from one to the next; rotations as in qkv_finish.cu; `inverseFactor`
 *   and `slidingInverseFactor` remove the factor that the rows of each table carry, since a stored K has it already
 *
 * No slot is a target twice, or the source of one token and the target of another. Grid: (tokens / 16, layers) of 256
 * threads, a warp a head. Where headDim and rotaryDim are multiples of 16, a lane has two runs of 8 values that are
 * rotated together, a head takes 2, 4 or 8 lanes (16 where files are compiled for longer heads), and all loads of a head's 16 tokens are in flight before the first
 * store; otherwise a whole warp copies a token.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "heads.cuh"

constexpr int kTokensPerBlock = 16;

/* One layer of the pool: this thread block's tokens in it, and whether it has RoPE. */
struct Copies {
  const int *sourceSlots, *targetSlots, *deltas;
  int count;
  bool rotated;
  const float2 *rotations;
  float inverseFactor;
};

__device__ __forceinline__ size_t token_offset(const HeadShape &shape, int slot) {
  const int block = slot / shape.blockTokens;
  return (size_t(block) * shape.kvHeads * 2 * shape.blockTokens + (slot - block * shape.blockTokens)) * shape.headDim;
}

/* Rotates 8 values with the 8 that they form pairs with, by (cos, sin). */
__device__ __forceinline__ void rotate8(uint4 &first, uint4 &second, const float2 (&rotation)[8], float factor) {
  float x[8], y[8];
  unpack8(first, x), unpack8(second, y);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float a = x[i] * factor, b = y[i] * factor;
    x[i] = a * rotation[i].x - b * rotation[i].y;
    y[i] = b * rotation[i].x + a * rotation[i].y;
  }
  first = pack8(x), second = pack8(y);
}

/* Copies with 2, 4, 8 or 16 lanes a token; a lane copies `kSteps` tokens. */
template <int kLanes>
__device__ __forceinline__ void copy_wide(const Copies &copies, const HeadShape &shape, bf16 *pool) {
  constexpr int kSteps = kTokensPerBlock * kLanes / 32;
  const int lane = threadIdx.x & 31, unit = lane % kLanes;
  const bool rotates = unit < shape.rotaryDim / 16;
  const int a = rotates ? 8 * unit : 16 * unit, b = rotates ? a + shape.rotaryDim / 2 : a + 8;
  size_t source[kSteps], target[kSteps];
  int delta[kSteps];
  bool used[kSteps], moves[kSteps];
#pragma unroll
  for (int s = 0; s < kSteps; s++) {
    const int token = s * (32 / kLanes) + lane / kLanes;
    used[s] = token < copies.count && unit < shape.headDim / 16;
    const int from = used[s] ? copies.sourceSlots[token] : 0, to = used[s] ? copies.targetSlots[token] : 0;
    delta[s] = used[s] && rotates && copies.rotated ? copies.deltas[token] : 0;
    moves[s] = used[s] && from != to;
    source[s] = token_offset(shape, from), target[s] = token_offset(shape, to);
  }
  const size_t valueOffset = size_t(shape.blockTokens) * shape.headDim;
  float2 rotation[8];
  int rotatedBy = 0;
  for (int head = threadIdx.x >> 5; head < shape.kvHeads; head += blockDim.x >> 5) {
    const size_t headOffset = 2 * head * valueOffset;
    uint4 first[kSteps], second[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      if (!used[s]) continue;
      const bf16 *k = pool + headOffset + source[s];
      first[s] = *reinterpret_cast<const uint4 *>(k + a), second[s] = *reinterpret_cast<const uint4 *>(k + b);
    }
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      if (delta[s] != 0) {
        if (delta[s] != rotatedBy) {
          const float4 *row = reinterpret_cast<const float4 *>(
              copies.rotations + (long long)(delta[s]) * (shape.rotaryDim / 2) + 8 * unit);
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float4 two = row[i];
            rotation[2 * i] = make_float2(two.x, two.y), rotation[2 * i + 1] = make_float2(two.z, two.w);
          }
          rotatedBy = delta[s];
        }
        rotate8(first[s], second[s], rotation, copies.inverseFactor);
      }
      if (!used[s]) continue;
      bf16 *k = pool + headOffset + target[s];
      *reinterpret_cast<uint4 *>(k + a) = first[s], *reinterpret_cast<uint4 *>(k + b) = second[s];
    }
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      if (!moves[s]) continue;
      const bf16 *v = pool + headOffset + valueOffset + source[s];
      first[s] = *reinterpret_cast<const uint4 *>(v + a), second[s] = *reinterpret_cast<const uint4 *>(v + b);
    }
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      if (!moves[s]) continue;
      bf16 *v = pool + headOffset + valueOffset + target[s];
      *reinterpret_cast<uint4 *>(v + a) = first[s], *reinterpret_cast<uint4 *>(v + b) = second[s];
    }
  }
}

__device__ __forceinline__ void copy_any(const Copies &copies, const HeadShape &shape, bf16 *pool) {
  const LanePlace place = lane_place(shape);
  for (int token = 0; token < copies.count; token++) {
    const int source = copies.sourceSlots[token], target = copies.targetSlots[token], delta = copies.deltas[token];
    for (int head = threadIdx.x >> 5; head < shape.kvHeads; head += blockDim.x >> 5) {
      LaneValues k = load_head(pool + key_offset(shape, source, head), place);
      if (delta != 0 && copies.rotated) {
#pragma unroll
        for (int i = 0; i < 4 * kLaneParts; i++)
          if (place.rotates[i / 4]) k.x[i] *= copies.inverseFactor;
        rotate_head(k, copies.rotations + (long long)(delta) * (shape.rotaryDim / 2), place);
      }
      store_head(pool + key_offset(shape, target, head), place, k);
      if (source == target) continue;
      const LaneValues v = load_head(pool + value_offset(shape, source, head), place);
      store_head(pool + value_offset(shape, target, head), place, v);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256, 2 / kLaneParts)
copy_tokens(const int *__restrict__ sourceSlots, const int *__restrict__ targetSlots, const int *__restrict__ deltas,
            const int *tokenCount, const int *__restrict__ layerRotates, const float2 *__restrict__ rotations,
            float inverseFactor, const float2 *__restrict__ slidingRotations, float slidingInverseFactor, int kvHeads,
            int headDim, int rotaryDim, int blockTokens, long long layerStride, bf16 *pool) {
  const int first = blockIdx.x * kTokensPerBlock, count = min(kTokensPerBlock, *tokenCount - first);
  if (count <= 0) return;
  const HeadShape shape = {headDim, rotaryDim, kvHeads, blockTokens};
  const int table = layerRotates[blockIdx.y];
  const Copies copies = {sourceSlots + first, targetSlots + first, deltas + first, count, table != 0,
                         table == 2 ? slidingRotations : rotations,
                         table == 2 ? slidingInverseFactor : inverseFactor};
  pool += blockIdx.y * layerStride;
  if ((headDim | rotaryDim) % 16 != 0) return copy_any(copies, shape, pool);
  if (headDim <= 32) return copy_wide<2>(copies, shape, pool);
  if (headDim <= 64) return copy_wide<4>(copies, shape, pool);
  copy_wide<8 * kLaneParts>(copies, shape, pool);
}
