/*
 * Draws one token from each row of logits, as worker/sample/sampler.ts does: penalties, bias and bans, then
 * temperature, top-k, top-p of what top-k left, and min-p. Temperature 0 is greedy; ties go to the lowest id.
 *
 *   logits [rows][vocabSize] float32 (edited in place and restored), rows [rowCount], edits and saved [all edits]
 *   sampledIds [rows]: the token, or -1 where a logit is NaN or the highest is not finite
 *
 * The filters are searches over the logits (prefix_search.cuh), mostly over the few tokens above 1e-5 of the best. The
 * token differs from the sampler's only where the sampler's rounded sums fall on the other side of a limit.
 *
 * Grid: one block of 1,024 threads a row. Bytes: the row about three times (from L2 after the first).
 * Oracle: worker/sample/sampler.ts.
 */
#include "prefix_search.cuh"

constexpr float kUsualMinWeight = 1e-5f;
/* The rounding error of topP as a float32: a prefix that falls short by that much is enough. */
constexpr double kTopPRounding = 1e-7;

/*
 * Finds the first token, by id, at which the running sum of `value` exceeds `target`; the sum of all must exceed it.
 * Each warp sums a stretch of ids, and the warp whose stretch reaches the target looks for the token.
 */
template <class Value>
__device__ int token_at(const Row &row, uint64 target, Shared &shared, Value value) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int stretch = (row.vocabSize + kThreads - 1) / kThreads * 32;
  const int first = warp * stretch, end = min(first + stretch, row.vocabSize);
  uint64 sum = 0;
#pragma unroll 8
  for (int i = first + lane; i < end; i += 32) sum += value(row.logits[i]);
  sum = warp_sum(sum);
  if (lane == 0) shared.scratch[warp] = sum;
  __syncthreads();
  uint64 before = 0;
  for (int w = 0; w < warp; w++) before += shared.scratch[w];
  if (before <= target && before + sum > target) {
    for (int start = first; start < end; start += 32) {
      uint64 running = start + lane < end ? value(row.logits[start + lane]) : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const uint64 other = __shfl_up_sync(kAllLanes, running, step);
        if (lane >= step) running += other;
      }
      const uint32 beyond = __ballot_sync(kAllLanes, before + running > target);
      if (beyond) {
        if (lane == 0) shared.cell = start + __ffs(beyond) - 1;
        break;
      }
      before += __shfl_sync(kAllLanes, running, 31);
    }
  }
  __syncthreads();
  return shared.cell;
}

/* Like Shortlist.gather: lists the tokens that the filters can keep, or all where those may not be enough. */
__device__ Candidates candidates(const Row &row, const SampleRow &how, uint64 total, Shared &shared) {
  const float floor = how.minP > 0 ? how.minP : kUsualMinWeight;
  /* The limit is set a little low, since the logarithm is rounded; kept_mass checks the weights again. */
  const float low = row.greatest + (logf(floor) - 1e-3f) / row.inverseTemperature;
  const int count = gather(row, low, infinity(), shared);
  if (count > kListSize) return {row.logits, row.vocabSize, total};
  const Candidates list = {shared.list, count, tally<Measure::kMass>(row, {shared.list, count, 0}, low, shared)};
  const bool minPCutsTheRest = how.minP > 0 && (how.topK == 0 || how.topP >= 1);
  const bool reached = how.topK > 0 ? count >= how.topK : double(list.mass) >= double(how.topP) * double(total);
  return minPCutsTheRest || reached ? list : Candidates{row.logits, row.vocabSize, total};
}

/* The mass of the tokens that the filters keep. */
__device__ uint64 kept_mass(const Row &row, const SampleRow &how, const Candidates &from, uint64 total,
                            Shared &shared) {
  uint64 kept = from.mass, base = how.topK > 0 ? from.mass : total;
  /* Tokens out of reach have no mass, so a top-k larger than the count of tokens within reach keeps all mass. */
  const float low = row.greatest - kReach / row.inverseTemperature;
  if (how.topK > 0 && how.topK < tally<Measure::kCount>(row, from, low, shared)) {
    kept = base = shortest_prefix<Measure::kCount>(row, from, how.topK, shared).mass;
  }
  if (how.topP < 1) {
    const uint64 enough = max(1ull, uint64(ceil(double(how.topP) * double(base) * (1 - kTopPRounding))));
    if (enough < kept) kept = min(kept, shortest_prefix<Measure::kMass>(row, from, enough, shared).mass);
  }
  if (how.minP > 0) {
    uint64 probable = 0;
    for_each_logit(from.logits, from.count, [&](float logit, int) {
      if (row.weight(logit) >= how.minP) probable += row.mass(logit);
    });
    kept = min(kept, block_sum(probable, shared.scratch));
  }
  return kept;
}

__device__ int draw(const Row &row, SampleRow how, Shared &shared) {
  const Candidates all = {row.logits, row.vocabSize, 0};
  const uint64 total = tally<Measure::kMass>(row, all, -infinity(), shared);
  if (how.topK >= row.vocabSize) how.topK = 0;
  const uint64 random = random_bits(how) << 11;
  if (how.topK == 0 && how.topP >= 1 && how.minP <= 0) {
    return token_at(row, __umul64hi(random, total), shared, [&](float logit) { return row.mass(logit); });
  }
  const Candidates from = candidates(row, how, total, shared);
  const uint64 kept = kept_mass(row, how, from, total, shared);
  const Prefix last = shortest_prefix<Measure::kMass>(row, from, __umul64hi(random, kept) + 1, shared);
  return token_at(row, last.ties - 1, shared, [&](float logit) { return uint64(logit == last.last); });
}

__device__ float edited(float logit, const TokenEdit &edit, const SampleRow &how) {
  if (edit.flags & kBanned) return -infinity();
  if (edit.flags & kSeen) logit = logit > 0 ? logit / how.repetitionPenalty : logit * how.repetitionPenalty;
  if (edit.generatedCount > 0) logit -= how.frequencyPenalty * edit.generatedCount + how.presencePenalty;
  return logit + edit.bias;
}

extern "C" __global__ void __launch_bounds__(kThreads)
sample_rows(float *logits, int vocabSize, const SampleRow *__restrict__ rows, const TokenEdit *__restrict__ edits,
            float *saved, const int *rowCount, int *__restrict__ sampledIds) {
  __shared__ Shared shared;
  if (blockIdx.x >= *rowCount) return;
  const SampleRow how = rows[blockIdx.x];
  logits += size_t(blockIdx.x) * vocabSize;
  for (int i = how.firstEdit + threadIdx.x; i < how.firstEdit + how.editCount; i += kThreads) {
    saved[i] = logits[edits[i].tokenId];
    logits[edits[i].tokenId] = edited(saved[i], edits[i], how);
  }
  __syncthreads();
  const uint64 best = best_below(logits, vocabSize, ~0ull, shared.scratch);
  int tokenId = token_of(best);
  if (!is_usable(best)) {
    tokenId = -1;
  } else if (how.inverseTemperature > 0) {
    const Row row = {logits, vocabSize, logit_of(best), how.inverseTemperature};
    tokenId = draw(row, how, shared);
  }
  __syncthreads();
  for (int i = how.firstEdit + threadIdx.x; i < how.firstEdit + how.editCount; i += kThreads) {
    logits[edits[i].tokenId] = saved[i];
  }
  if (threadIdx.x == 0) sampledIds[blockIdx.x] = tokenId;
}
