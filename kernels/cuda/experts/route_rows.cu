/*
 * Which experts each row goes to, and with which weights: those of its greatest scores, by softmax.
 *
 *   logits [rows][experts] float32, from the router; bias [experts] bf16 or null
 *   score = logit + bias; one that is NaN is the lowest; of equal scores the lower expert comes first
 *   chosen, factors [rows][perToken]: the experts, best first, and their weights: the softmax over all experts, or with
 *   `normalised` over the chosen ones
 *   tiles [perToken], order [perToken], or null: where the step has one row, what group_rows.cu makes of its choices
 *
 * A warp a row: its lanes keep the best of their experts of those that were not taken yet. Grid: ceil(rows / 4) blocks of
 * 128 threads. Oracle: test/backend/cuda/emulated-experts.ts.
 */
#include "expert_tiles.cuh"

/* Orders scores as unsigned numbers, with the lower expert's greater; 0 is less than all. */
__device__ __forceinline__ uint64 place_of(float score, int expert) {
  const uint32 bits = __float_as_uint(score);
  const uint32 rising = score != score ? 1u : bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64(rising) << 32 | uint32(~expert);
}

struct Scores {
  const float *logits;
  const bf16 *bias;

  __device__ __forceinline__ float at(int expert) const {
    return logits[expert] + (bias ? to_float(bias[expert]) : 0.0f);
  }
};

extern "C" __global__ void __launch_bounds__(128)
route_rows(const float *logits, const bf16 *__restrict__ bias, const int *rowCount, int experts, int perToken,
           int normalised, int *__restrict__ chosen, float *__restrict__ factors, ExpertTile *__restrict__ tiles,
           int *__restrict__ order) {
  let_next_begin();
  wait_for_previous();
  const int lane = threadIdx.x & 31, row = blockIdx.x * 4 + (threadIdx.x >> 5);
  if (row >= *rowCount) return;
  const Scores scores = {logits + size_t(row) * experts, bias};
  uint64 before = ~0ull; /* the expert that was taken last: only later ones are left */
  float greatest = 0, sum = 0;
  for (int rank = 0; rank < perToken; rank++) {
    uint64 best = 0;
    for (int expert = lane; expert < experts; expert += 32) {
      const uint64 place = place_of(scores.at(expert), expert);
      if (place < before && place > best) best = place;
    }
    before = best = warp_max(best);
    const int expert = ~uint32(best);
    const float score = scores.at(expert);
    if (rank == 0) greatest = score;
    const float weight = __expf(score - greatest);
    if (normalised) sum += weight;
    if (lane != 0) continue;
    chosen[size_t(row) * perToken + rank] = expert;
    factors[size_t(row) * perToken + rank] = weight;
    if (tiles) tiles[rank] = {expert, rank, 1, 0}, order[rank] = rank;
  }
  if (!normalised) {
    for (int expert = lane; expert < experts; expert += 32) sum += __expf(scores.at(expert) - greatest);
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int rank = lane; rank < perToken; rank += 32) factors[size_t(row) * perToken + rank] /= sum;
}
