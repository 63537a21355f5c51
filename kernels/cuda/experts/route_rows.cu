/*
 * Which experts each row goes to, and with which weights: those of its greatest scores, by softmax.
 *
 *   logits [rows][experts] float32, from the router; bias [experts] bf16 or null
 *   score = logit + bias; one that is NaN is the lowest; of equal scores the lower expert comes first
 *   chosen, factors [rows][perToken]: the experts, best first, and their weights: the softmax over all experts, or
 *   with `normalised` over the chosen ones
 *
 *   route_rows  many rows. A warp a row: ceil(rows / 4) blocks of 128 threads
 *   route_row   a step of one row, with the router's product: logits = input * weights, as matvec_float of matvec.cu has
 *               it, weights [experts][in] bf16, in a multiple of 8; tiles and order [perToken] get what group_rows.cu
 *               makes of the row's assignments. A warp an expert: ceil(experts / 4) blocks of 128 threads, of which the
 *               last to arrive chooses; arrivals: one number, zero between launches
 *
 * Oracle: test/backend/cuda/emulated-experts.ts.
 */
#include "choose_experts.cuh"
#include "matvec.cuh"

extern "C" __global__ void __launch_bounds__(128)
route_rows(const float *logits, const bf16 *__restrict__ bias, const int *rowCount, int experts, int perToken,
           int normalised, int *__restrict__ chosen, float *__restrict__ factors) {
  let_next_begin();
  wait_for_previous();
  const int row = blockIdx.x * 4 + (threadIdx.x >> 5);
  if (row >= *rowCount) return;
  const size_t first = size_t(row) * perToken;
  choose_experts({logits + size_t(row) * experts, bias}, experts, perToken, normalised,
                 {chosen + first, factors + first, nullptr, nullptr});
}

/* A warp's product of the input with one expert's weights; loads of weights begin before the kernel before has ended. */
__device__ __forceinline__ float router_product(const bf16 *input, const bf16 *weights, int in) {
  constexpr int kLoads = 8;
  const int lane = threadIdx.x & 31, vectors = in / 8;
  const uint4 *from = reinterpret_cast<const uint4 *>(weights);
  float sum = 0;
  for (int first = lane; first - lane < vectors; first += kLoads * 32) {
    uint4 w[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      w[i] = make_uint4(0, 0, 0, 0);
      if (first + i * 32 < vectors) w[i] = load_weights(from + first + i * 32);
    }
    if (first == lane) wait_for_previous();
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      if (first + i * 32 >= vectors) break;
      float x[8], y[8];
      unpack8(reinterpret_cast<const uint4 *>(input)[first + i * 32], x);
      unpack8(w[i], y);
#pragma unroll
      for (int j = 0; j < 8; j++) sum = fmaf(y[j], x[j], sum);
    }
  }
  return warp_sum(sum);
}

extern "C" __global__ void __launch_bounds__(128)
route_row(const bf16 *input, const bf16 *__restrict__ weights, int in, const float *squares, int squareCount,
          float epsilon, const bf16 *__restrict__ bias, int experts, int perToken, int normalised, float *logits,
          int *arrivals, int *chosen, float *factors, ExpertTile *tiles, int *order) {
  __shared__ bool isLast;
  let_next_begin();
  const int expert = blockIdx.x * 4 + (threadIdx.x >> 5);
  const float product = router_product(input, weights + size_t(min(expert, experts - 1)) * in, in);
  const float factor = norm_factor(squares, squareCount, in, epsilon);
  if ((threadIdx.x & 31) == 0 && expert < experts) {
    logits[expert] = product * factor;
    __threadfence();
  }
  __syncthreads();
  if (threadIdx.x == 0) isLast = atomicAdd(arrivals, 1) == int(gridDim.x) - 1;
  __syncthreads();
  if (!isLast || threadIdx.x >= 32) return;
  if (threadIdx.x == 0) *arrivals = 0;
  __threadfence();
  choose_experts({logits, bias}, experts, perToken, normalised, {chosen, factors, tiles, order});
}
