/*
 * Copies K and V of single tokens from slot to slot in every layer: K turned further by the token's delta positions
 * (it stands that much later than its source), V as it is. Where source and target are one slot, K is turned in place.
 *
 *   sourceSlots, targetSlots, deltas [tokens]; layerTurns [layers]: 0 where the layer has no RoPE
 *   pool: all layers, `layerStride` elements from one to the next; turns as in qkv_finish.cu, and `inverseFactor` takes
 *   out the factor that the table's rows carry, since a stored K has it already
 *
 * No slot is a target twice, or the source of one token and the target of another. Grid: (tokens / 4, layers) of 256
 * threads, a warp a head; the loads of four tokens are in flight before the first is stored.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "heads.cuh"

constexpr int kTokensPerBlock = 4;

extern "C" __global__ void __launch_bounds__(256, 4)
copy_tokens(const int *__restrict__ sourceSlots, const int *__restrict__ targetSlots, const int *__restrict__ deltas,
            const int *tokenCount, const int *__restrict__ layerTurns, const float2 *__restrict__ turns,
            float inverseFactor, int kvHeads, int headDim, int rotaryDim, int blockTokens, long long layerStride,
            bf16 *pool) {
  const int first = blockIdx.x * kTokensPerBlock, layer = blockIdx.y;
  const int count = min(kTokensPerBlock, *tokenCount - first);
  if (count <= 0) return;
  const HeadShape shape = {headDim, rotaryDim, kvHeads, blockTokens};
  const LanePlace place = lane_place(shape);
  const bool layerIsTurned = layerTurns[layer] != 0;
  int source[kTokensPerBlock], target[kTokensPerBlock], delta[kTokensPerBlock];
#pragma unroll
  for (int i = 0; i < kTokensPerBlock; i++) {
    const int token = first + min(i, count - 1);
    source[i] = sourceSlots[token], target[i] = targetSlots[token], delta[i] = layerIsTurned ? deltas[token] : 0;
  }
  pool += layer * layerStride;
  for (int head = threadIdx.x >> 5; head < kvHeads; head += blockDim.x >> 5) {
    LaneValues k[kTokensPerBlock];
#pragma unroll
    for (int i = 0; i < kTokensPerBlock; i++) k[i] = load_head(pool + key_offset(shape, source[i], head), place);
#pragma unroll
    for (int i = 0; i < kTokensPerBlock; i++) {
      if (i >= count) break;
      if (delta[i] != 0) {
        if (place.turns)
#pragma unroll
          for (int j = 0; j < 4; j++) k[i].x[j] *= inverseFactor;
        rotate_head(k[i], turns + (long long)(delta[i]) * (rotaryDim / 2), place);
      }
      store_head(pool + key_offset(shape, target[i], head), place, k[i]);
    }
#pragma unroll
    for (int i = 0; i < kTokensPerBlock; i++) {
      if (i >= count || source[i] == target[i]) continue;
      const LaneValues v = load_head(pool + value_offset(shape, source[i], head), place);
      store_head(pool + value_offset(shape, target[i], head), place, v);
    }
  }
}
