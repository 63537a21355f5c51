/*
 * Products of one row with the weights of its experts, by rings (matvec_ring.cuh): what a decode step of batch 1 does.
 *
 *   weights [experts][outputs][in] in a form; chosen, factors [perToken]: the row's experts and what they count, perToken
 *   at most 32
 *   gated   out [perToken][ffn] bf16: expert_rows.cuh has the parameters
 *   down    input [perToken][in] bf16; sum[o] = the sum of factors[r] * (input[r] times output o of expert chosen[r]).
 *           residual[o] += sum[o] * scale; next and squares as in matvec.cu
 *
 * Which weights are read is known when the router has chosen. Down is launched behind gated, which lets it begin when
 * it has itself waited for the router: so down fills its rings before it waits, and looks again behind that whether it
 * filled them with the right experts.
 *
 * Grid: any number of blocks of 256 threads. Oracle: test/backend/cuda/emulated-experts.ts.
 */
#ifndef SPANGATE_EXPERTS_RING_CUH
#define SPANGATE_EXPERTS_RING_CUH

#include "matvec_ring.cuh"

/* A lane's expert of the row; it is read past the first-level cache, which may hold another step's. */
__device__ __forceinline__ int chosen_of_lane(const int *chosen, int perToken) {
  const int lane = threadIdx.x & 31;
  return lane < perToken ? __ldcg(chosen + lane) : 0;
}

template <class Weights>
struct GatedRows {
  using Form = Weights;
  const Form form;
  const int chosen, ffn, gateStep, upOffset, count, vectors;

  __device__ __forceinline__ int row(int pair, int i) const {
    const int rank = pair / ffn;
    return __shfl_sync(kAllLanes, chosen, rank) * 2 * ffn + (pair - rank * ffn) * gateStep + i * upOffset;
  }
  __device__ __forceinline__ const uint4 *at(int row, int vector) const { return form.at(row, vector); }
  __device__ __forceinline__ float scale(int row, int vector) const { return form.scale(row, vector); }
  static __device__ __forceinline__ float add(float sum, const uint4 &weights, const uint4 *input, float scale) {
    return Form::add(sum, weights, input, scale);
  }
};

/* A row goes through all experts: of each, what one output has of weights. */
template <class Weights>
struct DownRows {
  using Form = Weights;
  const Form form;
  const int outputs, count, vectors, expertVectors;
  int chosen;
  float factor;

  __device__ __forceinline__ int row(int pair, int i) const { return min(2 * pair + i, outputs - 1); }
  __device__ __forceinline__ const uint4 *at(int row, int vector) const {
    const int rank = vector / expertVectors;
    return form.at(__shfl_sync(kAllLanes, chosen, rank) * outputs + row, vector - rank * expertVectors);
  }
  __device__ __forceinline__ float scale(int row, int vector) const {
    const int rank = vector / expertVectors, expert = __shfl_sync(kAllLanes, chosen, rank);
    return form.scale(expert * outputs + row, vector - rank * expertVectors) *
           __shfl_sync(kAllLanes, factor, rank);
  }
  static __device__ __forceinline__ float add(float sum, const uint4 &weights, const uint4 *input, float scale) {
    return Form::add_scaled(sum, weights, input, scale);
  }
};

template <class Form>
__device__ __forceinline__ void gated_experts(const Form &form, const int *chosen, int perToken, int ffn, int gateStep,
                                              int upOffset, int activation, const bf16 *input, const OpenRow &open,
                                              bf16 *out) {
  wait_for_previous();
  /* Only now: what is launched next takes the row's experts to be chosen. */
  let_next_begin();
  const GatedRows<Form> source = {form,     chosen_of_lane(chosen, perToken), ffn, gateStep,
                                  upOffset, perToken * ffn,                   form.in / Form::kWeights};
  Ring<GatedRows<Form>> ring(source);
  multiply_all(ring, source, input, open, [](const int (&)[kOutputs]) {},
               [=](int pair, const int (&)[kOutputs], float gate, float up) {
                 if ((threadIdx.x & 31) == 0) put(out + pair, gated(gate, up, activation));
               });
}

template <class Form>
__device__ __forceinline__ void down_experts(const Form &form, const int *chosen, const float *factors, int perToken,
                                             int outputs, const bf16 *input, const AddedRow &to) {
  const int lane = threadIdx.x & 31, expertVectors = form.in / Form::kWeights;
  DownRows<Form> source = {form,          outputs,
                           (outputs + 1) / 2, perToken * expertVectors,
                           expertVectors, chosen_of_lane(chosen, perToken),
                           0.0f};
  Ring<DownRows<Form>> ring(source);
  let_next_begin();
  wait_for_previous();
  const int expert = chosen_of_lane(chosen, perToken);
  source.factor = lane < perToken ? __ldcg(factors + lane) : 0.0f;
  if (__any_sync(kAllLanes, expert != source.chosen)) {
    source.chosen = expert;
    wait_copies<0>();
    ring.fill();
  }
  add_all(ring, source, input, to);
}

#endif
