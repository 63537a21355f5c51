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

void choose_best(const ChooseTable &table, uint16_t *ranks, int tokens, int take, uint64_t *chosen, uint64_t *scratch) {
  if (take < 1) return;
  const int words = (tokens + 63) / 64;
  for (int word = 0; word < words; word++) {
    for (uint64_t left = chosen[word]; left; left &= left - 1) ranks[word * 64 + __builtin_ctzll(left)] = kMagnitude;
  }
  int32_t counts[kBins] = {}, low[1 << kLowBits] = {};
  for (int i = 0; i < tokens; i++) counts[(ranks[i] & kMagnitude) >> kLowBits]++;
  const int bin = bin_of(counts, take);
  table.within(ranks, tokens, static_cast<uint16_t>(bin << kLowBits), static_cast<uint16_t>((bin + 1) << kLowBits), scratch);
  for (int word = 0; word < words; word++) {
    for (uint64_t left = scratch[word]; left; left &= left - 1) {
      low[ranks[word * 64 + __builtin_ctzll(left)] & ((1 << kLowBits) - 1)]++;
    }
  }
  const int limit = bin << kLowBits | bin_of(low, take);
  table.within(ranks, tokens, 0, static_cast<uint16_t>(limit), scratch);
  for (int word = 0; word < words; word++) chosen[word] |= scratch[word];
  table.within(ranks, tokens, static_cast<uint16_t>(limit), static_cast<uint16_t>(limit + 1), scratch);
  for (int word = 0; word < words && take > 0; word++) {
    for (uint64_t left = scratch[word]; left && take > 0; left &= left - 1, take--) chosen[word] |= left & -left;
  }
}

int fill_slots(int32_t *list, int first, int slots, uint64_t *set, int tokens, int32_t *taken) {
  /* About half of the slots become free, in no order that a branch could follow. */
  int free = 0;
  for (int slot = first; slot < slots; slot++) {
    const int number = list[slot], known = number < 0 ? 0 : number;
    uint64_t &word = set[known / 64];
    const uint64_t bit = number < 0 ? 0 : uint64_t(1) << (known % 64);
    const bool stays = (word & bit) != 0;
    word &= ~bit;
    list[slot] = stays ? number : -1;
    taken[free] = slot;
    free += !stays;
  }
  int count = 0;
  for (int word = 0; word * 64 < tokens; word++) {
    for (uint64_t left = set[word]; left && count < free; left &= left - 1) {
      list[taken[count++]] = word * 64 + __builtin_ctzll(left);
    }
    set[word] = 0;
  }
  return count;
}

}
