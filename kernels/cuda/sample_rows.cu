/*
 * One token from each row of logits, as worker/sample/sampler.ts draws it: penalties, bias and bans, then temperature,
 * top-k, top-p of what top-k left, and min-p; temperature 0 is greedy; ties go to the lowest id.
 *
 *   logits [rows][vocabSize] float32 (edited in place and restored), rows [rowCount], edits and saved [all edits]
 *   sampledIds [rows]: the token, or -1 where a logit is NaN or the highest is not finite
 *
 * Weights are whole numbers, exp((logit - max) / temperature) * 2^40, so that every sum is exact and the same in any
 * order; a token is another than the twin's only where that one's sums are rounded. The filters all keep a prefix of
 * the tokens in order of rank, so each is a search for the logit where a count or a mass is reached, by halving over
 * the logits' keys; mostly over the few tokens above 1e-5 of the best, which then lie in shared memory.
 *
 * Grid: one block of 1,024 threads a row. Bytes: the row about three times (from L2 after the first).
 * Oracle: worker/sample/sampler.ts.
 */
#include "sampling.cuh"

constexpr int kThreads = 1024, kWarps = kThreads / 32, kListSize = 8192;
constexpr float kUsualMinWeight = 1e-5f, kWeightScale = 1099511627776.0f;

struct Row {
  const float *logits;
  int vocabSize;
  float greatest, inverseTemperature;

  __device__ __forceinline__ float weight(float logit) const {
    return expf((logit - greatest) * inverseTemperature);
  }
  __device__ __forceinline__ uint64 mass(float logit) const { return uint64(weight(logit) * kWeightScale); }
};

/* The tokens that filters look at: keys in shared memory, or the whole row where `keys` is null. */
struct Candidates {
  const uint32 *keys;
  int count;
  uint64 mass;

  __device__ __forceinline__ uint32 key(const Row &row, int i) const { return keys ? keys[i] : key_of(row.logits[i]); }
};

enum class Measure { kCount, kMass };

/* Count or mass of the candidates with a key of at least `pivot`. */
template <Measure measure>
__device__ uint64 tally(const Row &row, const Candidates &from, uint32 pivot, uint64 *scratch) {
  uint64 sum = 0;
  for (int i = threadIdx.x; i < from.count; i += kThreads) {
    const uint32 key = from.key(row, i);
    if (key >= pivot) sum += measure == Measure::kCount ? 1 : row.mass(float_of(key));
  }
  return block_sum(sum, scratch);
}

/* The shortest prefix, in order of rank, that reaches a target. */
struct Prefix {
  uint32 pivot;  /* key of its last token */
  uint64 ties;   /* how many tokens of that key belong to it: those with the lowest ids */
  uint64 mass;
};

/* The target must be at least 1 and be reached by all candidates together. */
template <Measure measure>
__device__ Prefix shortest_prefix(const Row &row, const Candidates &from, uint64 target, uint64 *scratch) {
  uint32 low = 0, high = key_of(row.greatest);
  while (low < high) {
    const uint32 middle = high - (high - low) / 2;
    if (tally<measure>(row, from, middle, scratch) >= target) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const uint64 above = tally<measure>(row, from, low + 1, scratch), each = row.mass(float_of(low));
  if (measure == Measure::kMass) {
    const uint64 ties = (target - above + each - 1) / each;
    return {low, ties, above + ties * each};
  }
  const uint64 ties = target - above;
  return {low, ties, tally<Measure::kMass>(row, from, low + 1, scratch) + ties * each};
}

/*
 * The first token, by id, at which the running sum of `value` exceeds `target`; the sum of all must. Each warp sums a
 * stretch of ids, and the one that gets there looks for the token.
 */
template <class Value>
__device__ int token_at(const Row &row, uint64 target, uint64 *warpSums, int *found, Value value) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int stretch = (row.vocabSize + kThreads - 1) / kThreads * 32;
  const int first = warp * stretch, end = min(first + stretch, row.vocabSize);
  uint64 sum = 0;
  for (int i = first + lane; i < end; i += 32) sum += value(row.logits[i]);
  sum = warp_sum(sum);
  if (lane == 0) warpSums[warp] = sum;
  __syncthreads();
  uint64 before = 0;
  for (int w = 0; w < warp; w++) before += warpSums[w];
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
        if (lane == 0) *found = start + __ffs(beyond) - 1;
        break;
      }
      before += __shfl_sync(kAllLanes, running, 31);
    }
  }
  __syncthreads();
  return *found;
}

/* As Shortlist.gather: the tokens that the filters can keep, or all where that is not known to be enough. */
__device__ Candidates gather(const Row &row, const SampleRow &how, uint64 total, uint32 *list, int *listCount,
                             uint64 *scratch) {
  if (threadIdx.x == 0) *listCount = 0;
  __syncthreads();
  const float floor = how.minP > 0 ? how.minP : kUsualMinWeight;
  uint64 mass = 0;
  for (int i = threadIdx.x; i < row.vocabSize; i += kThreads) {
    const float logit = row.logits[i], weight = row.weight(logit);
    if (weight < floor) continue;
    mass += row.mass(logit);
    const int at = atomicAdd(listCount, 1);
    if (at < kListSize) list[at] = key_of(logit);
  }
  mass = block_sum(mass, scratch);
  const int count = *listCount;
  const bool minPCutsTheRest = how.minP > 0 && (how.topK == 0 || how.topP >= 1);
  const bool reached = how.topK > 0 ? count >= how.topK : double(mass) >= double(how.topP) * double(total);
  if (count <= kListSize && (minPCutsTheRest || reached)) return {list, count, mass};
  return {nullptr, row.vocabSize, total};
}

/* Mass of what the filters keep. */
__device__ uint64 kept_mass(const Row &row, const SampleRow &how, const Candidates &from, uint64 total,
                            uint64 *scratch) {
  uint64 kept = from.mass, base = how.topK > 0 ? from.mass : total;
  if (how.topK > 0 && how.topK < from.count) {
    kept = base = shortest_prefix<Measure::kCount>(row, from, how.topK, scratch).mass;
  }
  if (how.topP < 1) {
    const uint64 enough = max(1ull, uint64(ceil(double(how.topP) * double(base))));
    if (enough < kept) kept = min(kept, shortest_prefix<Measure::kMass>(row, from, enough, scratch).mass);
  }
  if (how.minP > 0) {
    uint64 probable = 0;
    for (int i = threadIdx.x; i < from.count; i += kThreads) {
      const float logit = float_of(from.key(row, i));
      if (row.weight(logit) >= how.minP) probable += row.mass(logit);
    }
    kept = min(kept, block_sum(probable, scratch));
  }
  return kept;
}

__device__ int draw(const Row &row, SampleRow how, uint32 *list, int *cell, uint64 *scratch, uint64 *warpSums) {
  uint64 total = 0;
  for (int i = threadIdx.x; i < row.vocabSize; i += kThreads) total += row.mass(row.logits[i]);
  total = block_sum(total, scratch);
  if (how.topK >= row.vocabSize) how.topK = 0;
  const uint64 random = random_bits(how) << 11;
  if (how.topK == 0 && how.topP >= 1 && how.minP <= 0) {
    return token_at(row, __umul64hi(random, total), warpSums, cell, [&](float logit) { return row.mass(logit); });
  }
  const Candidates from = gather(row, how, total, list, cell, scratch);
  const uint64 kept = kept_mass(row, how, from, total, scratch);
  const Prefix last = shortest_prefix<Measure::kMass>(row, from, __umul64hi(random, kept) + 1, scratch);
  return token_at(row, last.ties - 1, warpSums, cell, [&](float logit) { return uint64(key_of(logit) == last.pivot); });
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
  __shared__ uint64 scratch[32], warpSums[kWarps];
  __shared__ uint32 list[kListSize];
  __shared__ int cell;
  if (blockIdx.x >= *rowCount) return;
  const SampleRow how = rows[blockIdx.x];
  logits += size_t(blockIdx.x) * vocabSize;
  for (int i = how.firstEdit + threadIdx.x; i < how.firstEdit + how.editCount; i += kThreads) {
    saved[i] = logits[edits[i].tokenId];
    logits[edits[i].tokenId] = edited(saved[i], edits[i], how);
  }
  __syncthreads();
  const uint64 best = best_below(logits, vocabSize, ~0ull, scratch);
  int tokenId = token_of(best);
  if (!is_usable(best)) {
    tokenId = -1;
  } else if (how.inverseTemperature > 0) {
    const Row row = {logits, vocabSize, float_of(uint32(best >> 32)), how.inverseTemperature};
    tokenId = draw(row, how, list, &cell, scratch, warpSums);
  }
  __syncthreads();
  for (int i = how.firstEdit + threadIdx.x; i < how.firstEdit + how.editCount; i += kThreads) {
    logits[edits[i].tokenId] = saved[i];
  }
  if (threadIdx.x == 0) sampledIds[blockIdx.x] = tokenId;
}
