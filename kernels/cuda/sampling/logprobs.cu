/*
 * Log-probabilities of the model's own distribution, as in worker/sample/logprobs.ts: softmax of the raw logits.
 *
 *   logits [rows][vocabSize] float32, rows [rowCount] (sampling.cuh), sampledIds [rows]
 *   chosen [rows]: of the sampled token; topIds, topLogprobs [rows][topStride]: of the row's topLogprobs best, ties by
 *   lowest id. Rows with topLogprobs -1, or a sampled id below 0, are left as they are.
 *
 * Grid: one block of 1,024 threads a row. Bytes: the row twice, and once more for each of the best.
 * Oracle: worker/sample/logprobs.ts.
 */
#include "sampling.cuh"

extern "C" __global__ void __launch_bounds__(1024)
logprobs(const float *__restrict__ logits, int vocabSize, const SampleRow *__restrict__ rows,
         const int *__restrict__ sampledIds, const int *rowCount, int topStride, float *__restrict__ chosen,
         int *__restrict__ topIds, float *__restrict__ topLogprobs) {
  __shared__ uint64 scratch[32];
  __shared__ double sums[32];
  const size_t row = blockIdx.x;
  if (row >= *rowCount) return;
  const int topCount = min(rows[row].topLogprobs, topStride), sampled = sampledIds[row];
  if (topCount < 0 || sampled < 0) return;
  logits += row * vocabSize;
  uint64 best = best_below(logits, vocabSize, ~0ull, scratch);
  const float greatest = logit_of(best);
  double sum = 0;
  for_each_logit(logits, vocabSize, [&](float logit, int) { sum += expf(logit - greatest); });
  const double normalizer = greatest + log(block_sum(sum, sums));
  if (threadIdx.x == 0) chosen[row] = float(logits[sampled] - normalizer);
  for (int n = 0; n < topCount && best > 0; n++) {
    if (threadIdx.x == 0) {
      topIds[row * topStride + n] = token_of(best);
      topLogprobs[row * topStride + n] = float(logit_of(best) - normalizer);
    }
    best = best_below(logits, vocabSize, best, scratch);
  }
}
