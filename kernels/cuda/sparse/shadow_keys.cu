/*
 * Writes the shadows (shadow.cuh) of K that the pool holds: of tokens in slots, and of whole blocks that were filled from
 * outside. Whoever writes K into a pool with shadows launches one of them behind it.
 *
 *   slots [slotCount]; moved: as in move_blocks.cu, of which the numbers of the blocks count
 *   pool, shadows: from the first layer on that is written, layerStride elements and shadowStride bytes from one layer to
 *   the next
 *
 * Grid: (slots or moved blocks * blockTokens, ceil(kvHeads / 8), layers) of 256 threads, a warp a head of a token.
 * Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "moved_blocks.cuh"
#include "shadow.cuh"

__device__ __forceinline__ void shadow_slot(const HeadShape &shape, int slot, long long layerStride,
                                            long long shadowStride, const bf16 *pool, unsigned char *shadows) {
  __shared__ float heads[8][HEAD_DIM];
  const int warp = threadIdx.x >> 5, kvHead = blockIdx.y * 8 + warp;
  if (kvHead >= shape.kvHeads) return;
  const bf16 *key = pool + blockIdx.z * layerStride + key_offset(shape, slot, kvHead);
  for (int i = threadIdx.x & 31; i < HEAD_DIM; i += 32) heads[warp][i] = to_float(key[i]);
  transform(heads[warp]);
  const int blockShift = 31 - __clz(shape.blockTokens), token = slot % shape.blockTokens;
  const size_t panel = panel_index(slot >> blockShift, token, kvHead, shape.kvHeads, blockShift);
  write_shadow(heads[warp], shadows + blockIdx.z * shadowStride + panel * kPanelBytes, token % kPanelTokens);
}

extern "C" __global__ void __launch_bounds__(256)
shadow_slots(const int *slots, const int *slotCount, int kvHeads, int blockTokens, long long layerStride,
             long long shadowStride, const bf16 *pool, unsigned char *shadows) {
  let_next_begin();
  const bool isIdle = int(blockIdx.x) >= *slotCount;
  const int slot = isIdle ? 0 : slots[blockIdx.x];
  wait_for_previous();
  if (isIdle) return;
  shadow_slot({HEAD_DIM, 0, kvHeads, blockTokens}, slot, layerStride, shadowStride, pool, shadows);
}

extern "C" __global__ void __launch_bounds__(256)
shadow_blocks(const MovedBlocks moved, int kvHeads, int blockTokens, long long layerStride, long long shadowStride,
              const bf16 *pool, unsigned char *shadows) {
  const int block = moved.blocks[blockIdx.x / blockTokens];
  if (block < 0) return;
  const int slot = block * blockTokens + blockIdx.x % blockTokens;
  shadow_slot({HEAD_DIM, 0, kvHeads, blockTokens}, slot, layerStride, shadowStride, pool, shadows);
}
