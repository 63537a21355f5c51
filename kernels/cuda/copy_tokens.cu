/*
 * Copies K and V of single tokens from slot to slot in every layer: K turned further by the token's delta positions
 * (it stands that much later than its source), V as it is.
 *
 *   sourceSlots, targetSlots, deltas [tokens]; layerTurns [layers]: 0 where the layer has no RoPE
 *   pool: all layers, `layerStride` elements from one to the next; turns as in qkv_finish.cu, and `inverseFactor` takes
 *   out the factor that the table's rows carry, since a stored K has it already
 *
 * No slot is a target twice, or both source and target. Grid: (tokens, layers) of 256 threads, a warp a head.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "heads.cuh"

extern "C" __global__ void __launch_bounds__(256)
copy_tokens(const int *__restrict__ sourceSlots, const int *__restrict__ targetSlots, const int *__restrict__ deltas,
            const int *tokenCount, const int *__restrict__ layerTurns, const float2 *__restrict__ turns,
            float inverseFactor, int kvHeads, int headDim, int rotaryDim, int blockTokens, long long layerStride,
            bf16 *pool) {
  const int token = blockIdx.x, layer = blockIdx.y;
  if (token >= *tokenCount) return;
  const HeadShape shape = {headDim, rotaryDim, kvHeads, blockTokens};
  const LanePlace place = lane_place(shape);
  const int source = sourceSlots[token], target = targetSlots[token], delta = deltas[token];
  const bool isTurned = delta != 0 && layerTurns[layer] != 0;
  pool += layer * layerStride;
  for (int head = threadIdx.x >> 5; head < kvHeads; head += blockDim.x >> 5) {
    LaneValues k = load_head(pool + key_offset(shape, source, head), place);
    if (isTurned) {
      if (place.turns)
#pragma unroll
        for (int i = 0; i < 4; i++) k.x[i] *= inverseFactor;
      rotate_head(k, turns + (long long)(delta) * (rotaryDim / 2), place);
    }
    store_head(pool + key_offset(shape, target, head), place, k);
    const LaneValues v = load_head(pool + value_offset(shape, source, head), place);
    store_head(pool + value_offset(shape, target, head), place, v);
  }
}
