/* From ranks to the slots of a buffer: which tokens are chosen, and which slot each of them gets. */
#ifndef SPANGATE_KERNELS_SELECT_H
#define SPANGATE_KERNELS_SELECT_H

#include <stddef.h>
#include <stdint.h>

#include "choose.h"

namespace spg {

/* Token sets are bits by number. */
static inline bool has_token(const uint64_t *set, int number) {
  return (set[number / 64] >> (number % 64) & 1) != 0;
}
static inline void add_token(uint64_t *set, int number) {
  set[number / 64] |= uint64_t(1) << (number % 64);
}

/*
 * chosen gets the `take` tokens of 0 to tokens - 1 that are no members yet and have the best rank, and of equal ranks the
 * lower numbers. ranks: float16 bits of numbers that are not above 0, so fewer bits are better; overwritten where a token
 * is a member. At least `take` tokens must be no members. scratch: as large as chosen.
 */
void choose_best(const ChooseTable &table, uint16_t *ranks, int tokens, int take, uint64_t *chosen, uint64_t *scratch);

/*
 * Gives the tokens of a set slots first to slots - 1 of a list. Those that have one keep it; the others get the slots that
 * become free, both in rising order. list: [slots] numbers of tokens, below 0: free. taken [slots]: the slots that got
 * another token, rising. The set is left without its tokens. Returns how many slots that are.
 */
int fill_slots(int32_t *list, int first, int slots, uint64_t *set, int tokens, int32_t *taken);

}

#endif
