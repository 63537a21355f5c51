/*
 * Writes the shadows (shadow.cuh) of K that the pool holds: of tokens in slots, and of whole blocks that were filled from
 * outside. Whoever writes K into a pool with shadows launches one of them behind it.
 *
 *   slots [slotCount]; moved: as in move_blocks.cu, of which the numbers of the blocks count
 *   pool, shadows: from the first layer on that is written, layerStride elements and shadowStride bytes from one layer to
 *   the next
 *
 * MEMORY. K is read and a quarter of its bytes are written. Four lanes have a token's head, and a warp eight tokens: a lane
 * loads 16 bytes at a time, and has those numbers whose sums with each other are most of the transform's.
 *
 * Grid: (ceil(slots / 8) or moved blocks * blockTokens / 8, ceil(kvHeads / 8), layers) of 256 threads, a warp a head.
 * Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "moved_blocks.cuh"
#include "shadow.cuh"

constexpr int kWarpTokens = 8;
/* A lane t of four has of step s the numbers 32 s + 8 t to 32 s + 8 t + 7. */
constexpr int kSteps = kShadowVectors, kChunk = 8;

struct LaneHead {
  float y[kSteps][kChunk];
};

/* What is left of the transform of the head's parts from step `kStart` on, once each step is transformed. */
template <int kStart>
__device__ __forceinline__ void transform_parts(LaneHead &head) {
  if constexpr (kStart < kSteps) {
    constexpr int kPart = part_of(kSteps - kStart);
#pragma unroll
    for (int half = 1; half < kPart; half *= 2) {
#pragma unroll
      for (int s = 0; s < kPart; s++) {
        if ((s & half) != 0) continue;
#pragma unroll
        for (int i = 0; i < kChunk; i++) add_pair(head.y[kStart + s][i], head.y[kStart + s + half][i]);
      }
    }
    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(float(32 * kPart)));
#pragma unroll
    for (int s = kStart; s < kStart + kPart; s++) {
#pragma unroll
      for (int i = 0; i < kChunk; i++) head.y[s][i] = __fmul_rn(head.y[s][i], factor);
    }
    transform_parts<kStart + kPart>(head);
  }
}

/* Hd of a head: pairs that are neighbours first, then those two apart, and so on. */
__device__ __forceinline__ void transform_lane(LaneHead &head) {
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int s = 0; s < kSteps; s++) {
#pragma unroll
    for (int half = 1; half < kChunk; half *= 2) {
#pragma unroll
      for (int i = 0; i < kChunk; i++) {
        if ((i & half) == 0) add_pair(head.y[s][i], head.y[s][i + half]);
      }
    }
#pragma unroll
    for (int half = 1; half < 4; half *= 2) {
#pragma unroll
      for (int i = 0; i < kChunk; i++) {
        const float own = head.y[s][i], other = __shfl_xor_sync(kAllLanes, own, half);
        head.y[s][i] = (t & half) == 0 ? __fadd_rn(own, other) : __fsub_rn(other, own);
      }
    }
  }
  transform_parts<0>(head);
}

__device__ __forceinline__ uint32 shadow_code(float y, float inverse) {
  const float limit = kShadowLimit;
  const float rounded = inverse > 0 ? fminf(fmaxf(rintf(__fmul_rn(y, inverse)), -limit), limit) : 0.0f;
  return uint32(int(rounded) + kShadowZero);
}

/* Codes of a step's numbers, a byte each. */
__device__ __forceinline__ uint2 codes_of(const float (&y)[kChunk], float inverse) {
  uint32 words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kChunk; i++) words[i / 4] |= shadow_code(y[i], inverse) << 8 * (i % 4);
  return make_uint2(words[0], words[1]);
}

/*
 * Codes of the numbers half a head behind those of step s, of which the lower half of the head is asked for. They are the
 * lane's own where a head has an even number of steps, else those of the lane two further on.
 */
__device__ __forceinline__ uint2 upper_codes(const uint2 (&codes)[kSteps], int s) {
  if (kSteps % 2 == 0) return codes[s + kSteps / 2];
  const int behind = s + (kSteps - 1) / 2;
  const uint2 near = codes[behind], far = codes[min(behind + 1, kSteps - 1)];
  const bool isUpper = (threadIdx.x & 2) != 0;
  return make_uint2(__shfl_xor_sync(kAllLanes, isUpper ? near.x : far.x, 2),
                    __shfl_xor_sync(kAllLanes, isUpper ? near.y : far.y, 2));
}

/*
 * Four lanes write the shadow of a token's K in one KV head. K that is not finite has a shadow of zeros. The whole warp must
 * call it.
 */
__device__ __forceinline__ void write_shadow(const LaneHead &head, unsigned char *panel, int token, bool isThere) {
  const int t = threadIdx.x & 3;
  float greatest = 0, zeros = 0;
#pragma unroll
  for (int s = 0; s < kSteps; s++) {
#pragma unroll
    for (int i = 0; i < kChunk; i++) greatest = fmaxf(greatest, fabsf(head.y[s][i])), zeros += head.y[s][i] * 0.0f;
  }
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    greatest = fmaxf(greatest, __shfl_xor_sync(kAllLanes, greatest, step));
    zeros += __shfl_xor_sync(kAllLanes, zeros, step);
  }
  greatest += zeros;
  const bool isFinite = greatest - greatest == 0.0f;
  const unsigned short scale = isFinite ? to_finite_half(__fdiv_rn(greatest, float(kShadowLimit))) : 0;
  const float unit = half_to_float(scale), inverse = unit > 0 ? __fdiv_rn(1.0f, unit) : 0.0f;
  uint2 codes[kSteps];
#pragma unroll
  for (int s = 0; s < kSteps; s++) codes[s] = codes_of(head.y[s], inverse);
#pragma unroll
  for (int s = 0; s < (kSteps + 1) / 2; s++) {
    const uint2 upper = upper_codes(codes, s);
    const int chunk = 4 * s + t;
    if (!isThere || chunk >= 2 * kSteps) continue;
    unsigned char *vector = panel + (chunk / 2 * kPanelTokens + token) * kVectorBytes;
    *reinterpret_cast<uint2 *>(vector + chunk % 2 * kChunk) = make_uint2(codes[s].x | upper.x << 4, codes[s].y | upper.y << 4);
  }
  if (isThere && t == 0) *reinterpret_cast<unsigned short *>(panel + kScalesAt + 2 * token) = scale;
}

/* The slots of a warp's tokens are those of its lanes, four lanes with the same; -1: there is none. */
__device__ __forceinline__ void shadow_warp(const HeadShape &shape, int slot, long long layerStride, long long shadowStride,
                                            const bf16 *pool, unsigned char *shadows) {
  const int t = threadIdx.x & 3, kvHead = blockIdx.y * 8 + (threadIdx.x >> 5);
  if (kvHead >= shape.kvHeads) return;
  const bool isThere = slot >= 0;
  const int own = isThere ? slot : 0;
  const bf16 *key = pool + blockIdx.z * layerStride + key_offset(shape, own, kvHead) + kChunk * t;
  LaneHead head;
#pragma unroll
  for (int s = 0; s < kSteps; s++) {
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (isThere && 32 * s + kChunk * t < HEAD_DIM) eight = *reinterpret_cast<const uint4 *>(key + 32 * s);
    unpack8(eight, head.y[s]);
  }
  transform_lane(head);
  const int blockShift = 31 - __clz(shape.blockTokens), token = own % shape.blockTokens;
  const size_t panel = panel_index(own >> blockShift, token, kvHead, shape.kvHeads, blockShift);
  write_shadow(head, shadows + blockIdx.z * shadowStride + panel * kPanelBytes, token % kPanelTokens, isThere);
}

extern "C" __global__ void __launch_bounds__(256)
shadow_slots(const int *slots, const int *slotCount, int kvHeads, int blockTokens, long long layerStride,
             long long shadowStride, const bf16 *pool, unsigned char *shadows) {
  let_next_begin();
  const int count = *slotCount, first = blockIdx.x * kWarpTokens, index = first + (threadIdx.x & 31) / 4;
  const int slot = index < count ? slots[index] : -1;
  wait_for_previous();
  if (first >= count) return;
  shadow_warp({HEAD_DIM, 0, kvHeads, blockTokens}, slot, layerStride, shadowStride, pool, shadows);
}

extern "C" __global__ void __launch_bounds__(256)
shadow_blocks(const MovedBlocks moved, int kvHeads, int blockTokens, long long layerStride, long long shadowStride,
              const bf16 *pool, unsigned char *shadows) {
  const int token = blockIdx.x * kWarpTokens + (threadIdx.x & 31) / 4, block = moved.blocks[token / blockTokens];
  if (block < 0) return;
  const int slot = block * blockTokens + token % blockTokens;
  shadow_warp({HEAD_DIM, 0, kvHeads, blockTokens}, slot, layerStride, shadowStride, pool, shadows);
}
