/*
 * Attention over segments (attention.cuh): items with few rows read K and V at the memory's rate (attention_few.cuh),
 * items with many are bound by arithmetic (attention_many.cuh). The arguments are those of AttentionArguments in order.
 *
 *   rowCount * queryHeads / kvHeads of an item is at most 128; headDim is what the kernel was compiled for
 *
 * Grid: (n, kvHeads) blocks of 128 threads with 384 * 2 * (HEAD_DIM + 8) bytes of dynamic shared memory, two of which
 * fit on a multiprocessor. Block (b, h) takes items b, b + n, ... for KV head h. So n = 2 * multiprocessors / kvHeads
 * serves any step, and a step whose items come in descending order is balanced.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "attention_few.cuh"
#include "attention_many.cuh"

extern "C" __global__ void __launch_bounds__(kWarps * 32, 2)
attention(const bf16 *qkv, const bf16 *pool, const float2 *turns, const AttentionItem *items,
          const AttentionSlice *slices, const int *blockIds, const int *positions, const int *itemCount, int queryHeads,
          int kvHeads, int headDim, int rotaryDim, int blockTokens, float scaleLog2, bf16 *out, float *partialOut,
          float *partialSums) {
  extern __shared__ __align__(16) bf16 shared[];
  __shared__ float logSums[kWarps][few_rows::kRows];
  if (headDim != kHeadDim) __trap();
  const AttentionArguments a = {qkv,      pool,        turns,     items,      slices,     blockIds,
                                positions, itemCount,  queryHeads, kvHeads,   rotaryDim,  blockTokens,
                                scaleLog2, out,        partialOut, partialSums};
  for (int index = blockIdx.x; index < *itemCount; index += gridDim.x) {
    const Unit unit = unit_at(a, index, blockIdx.y);
    if (unit.packedCount <= few_rows::kRows) {
      few_rows::attend_unit(a, unit, shared, logSums);
    } else {
      many_rows::attend_unit(a, unit, shared);
    }
    __syncthreads(); /* shared memory is free again */
  }
}
