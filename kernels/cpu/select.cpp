#include "select.h"

#include <algorithm>

namespace spg {
namespace {

constexpr uint16_t kMagnitude = 0x7fff;
/* Ranks have 15 bits, which are counted in two rounds: the upper 11, and the lower 4 of those at the limit. */
constexpr int kLowBits = 4, kBins = 1 << (15 - kLowBits);

/* The first bin with which the count comes to `take`; take becomes what is wanted of it. */
int bin_of(const int32_t *counts, int &take) {
  int bin = 0;
  for (; counts[bin] < take; bin++) take -= counts[bin];
  return bin;
}

}

void choose_best(uint16_t *ranks, int tokens, int take, uint64_t *chosen) {
  if (take < 1) return;
  int32_t counts[kBins] = {}, low[1 << kLowBits] = {};
  for (int word = 0; word * 64 < tokens; word++) {
    for (uint64_t left = chosen[word]; left; left &= left - 1) ranks[word * 64 + __builtin_ctzll(left)] = kMagnitude;
  }
  for (int i = 0; i < tokens; i++) counts[(ranks[i] & kMagnitude) >> kLowBits]++;
  const int bin = bin_of(counts, take);
  for (int i = 0; i < tokens; i++) {
    const int rank = ranks[i] & kMagnitude;
    if (rank >> kLowBits == bin) low[rank & ((1 << kLowBits) - 1)]++;
  }
  const int limit = bin << kLowBits | bin_of(low, take);
  for (int start = 0; start < tokens; start += 64) {
    const int end = std::min(64, tokens - start);
    uint64_t below = 0, equal = 0;
    for (int i = 0; i < end; i++) {
      const int rank = ranks[start + i] & kMagnitude;
      below |= static_cast<uint64_t>(rank < limit) << i;
      equal |= static_cast<uint64_t>(rank == limit) << i;
    }
    chosen[start / 64] |= below;
    for (; equal && take > 0; equal &= equal - 1, take--) chosen[start / 64] |= equal & -equal;
  }
}

int fill_slots(int32_t *list, int first, int slots, uint64_t *set, int tokens, int32_t *taken) {
  for (int slot = first; slot < slots; slot++) {
    const int number = list[slot];
    if (number < 0) continue;
    if (has_token(set, number)) set[number / 64] &= ~(uint64_t(1) << (number % 64));
    else list[slot] = -1;
  }
  int count = 0, slot = first;
  for (int word = 0; word * 64 < tokens; word++) {
    for (uint64_t left = set[word]; left; left &= left - 1) {
      while (slot < slots && list[slot] >= 0) slot++;
      if (slot == slots) return count;
      list[slot] = word * 64 + __builtin_ctzll(left);
      taken[count++] = slot;
    }
    set[word] = 0;
  }
  return count;
}

}
