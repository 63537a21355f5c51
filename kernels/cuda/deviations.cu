/*
 * Measures how far K and V of a step's rows are from what their slots hold: out [rows] float32 = the squared L2 norm of
 * the difference, K (normalised and rotated) and V of all heads together. Both sides are bf16, so rows that were
 * computed the same way differ by 0. The kernel stores nothing else. Arguments as in qkv_finish.cu.
 *
 * Grid: one block of 256 threads a row, a warp a head. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "heads.cuh"

__device__ __forceinline__ float squared_distance(const LaneValues &v, const LaneValues &stored) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4 * kLaneParts; i++) {
    const float difference = round_bf16(v.x[i]) - stored.x[i];
    sum += difference * difference;
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(256)
deviations(const bf16 *__restrict__ qkv, const bf16 *__restrict__ bias, const bf16 *__restrict__ kNorm,
           float normOffset, float epsilon, const float2 *__restrict__ rotations, const int *__restrict__ positions, const int *__restrict__ slots,
           const int *rowCount, int queryHeads, int kvHeads, int headDim, int rotaryDim, int blockTokens,
           const bf16 *__restrict__ pool, float *__restrict__ out) {
  __shared__ float scratch[32];
  const int row = blockIdx.x, heads = queryHeads + 2 * kvHeads, slot = row < *rowCount ? slots[row] : 0;
  if (row >= *rowCount) return;
  const HeadShape shape = {headDim, rotaryDim, kvHeads, blockTokens};
  const LanePlace place = lane_place(shape);
  float sum = 0;
  for (int head = queryHeads + (threadIdx.x >> 5); head < heads; head += blockDim.x >> 5) {
    const bf16 *data = qkv + (size_t(row) * heads + head) * headDim;
    LaneValues v = projected_head(data, bias ? bias + head * headDim : nullptr, place);
    const int kvHead = (head - queryHeads) % kvHeads;
    const bool isKey = head < queryHeads + kvHeads;
    if (isKey) {
      if (kNorm) normalise_head(v, load_head(kNorm, place), normOffset, headDim, epsilon);
      rotate_head(v, rotations + (long long)(positions[row]) * (rotaryDim / 2), place);
    }
    const size_t at = isKey ? key_offset(shape, slot, kvHead) : value_offset(shape, slot, kvHead);
    sum += squared_distance(v, load_head(pool + at, place));
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) out[row] = sum;
}
