/*
 * What rows choose from, as words of a step's buffer (worker/backend/cuda/sparse/choice-words.ts writes them): a head of
 * kHeadWords words at `*choicePlace`, where indices of words count from the buffer's start, and then the entries:
 *
 *   entryCount, first word of the entries, unitCount, first word of the units
 *
 * An entry is a row that chooses. Its candidates are numbered one after the other over its segments; a unit is at most
 * kUnitTokens of them that follow each other in one segment. A step without choices has the place 0.
 *
 * The query heads of a KV head are worked on four at a time, in passes; the last may have fewer.
 *
 * SCORES float16 [kvHeads][passes][scoreStride][4], behind those of scoreStart tokens: of a number and a query head
 *
 *   z = softmax_scale log2(e) (Hd q_h rotated to position - offset, 8 bits) . y
 *
 * infinity where the token is forced, and minus infinity for a head that a pass has not. PARTS float32
 * [units][kvHeads][passes][4]: log2 of the sum of 2^z over a unit's tokens, from before z is rounded to float16; minus
 * infinity for a head that there is not.
 */
#ifndef SPANGATE_CHOICE_PLAN_CUH
#define SPANGATE_CHOICE_PLAN_CUH

#include "common.cuh"

constexpr int kUnitTokens = 256;
constexpr int kHeadWords = 8;
/* Query heads that share a KV head, at most; and how many of them are worked on at a time. */
constexpr int kMaxGroup = 16, kPassHeads = 4;
__host__ __device__ constexpr int passes_of(int group) { return (group + kPassHeads - 1) / kPassHeads; }

/* Bits of float16: the score of a forced token, and of a head that there is not. */
constexpr unsigned short kForcedScore = 0x7c00, kNoScore = 0xfc00;

struct ChoiceEntry {
  int row, position;
  int seat, isFresh;
  int take;                    /* tokens that the list gets, forced ones with them */
  int candidates;              /* of all segments */
  int scoreStart, scoreStride; /* multiples of 8 */
  int firstUnit, unitCount;
  int firstSegment, segmentCount; /* the first word of its ChoiceSegments, and how many they are */
  int tailBlocks, tailFirst, tailTokens, tailOffset; /* the tail: first word of its block ids, as in ChoiceSegment */
};

struct ChoiceUnit {
  int entry;
  int number, tokens;
  int blocks, firstToken; /* first word of the segment's block ids, and the unit's first token counted from there */
  int offset;
  int forced; /* so many of its first tokens are */
  int unused;
};

struct ChoiceSegment {
  int number; /* of its first token */
  int blocks, firstToken, offset;
};

struct ChoicePlan {
  const int *step;
  int entryCount, unitCount;
  const ChoiceEntry *entries;
  const ChoiceUnit *units;
};

__device__ __forceinline__ ChoicePlan choice_plan(const int *step, const int *choicePlace) {
  const int place = *choicePlace;
  const int *head = step + place;
  const ChoiceEntry *entries = reinterpret_cast<const ChoiceEntry *>(head + kHeadWords);
  if (place == 0) return {step, 0, 0, entries, nullptr};
  return {step, head[0], head[2], entries, reinterpret_cast<const ChoiceUnit *>(step + head[3])};
}

/* Index of the first score of a KV head's first pass. */
__device__ __forceinline__ size_t scores_at(const ChoiceEntry &entry, int kvHead, int kvHeads, int passes) {
  const size_t ofEntry = size_t(entry.scoreStart) * kvHeads + size_t(kvHead) * entry.scoreStride;
  return ofEntry * passes * kPassHeads;
}

/* A token of the pool: blocks have 2^blockShift of them. */
struct TokenPlace {
  int block, token;
};

/* Of a run of blocks, whose first block id is step[blocks]. */
__device__ __forceinline__ TokenPlace place_in(const int *step, int blocks, int token, int blockShift) {
  return {step[blocks + (token >> blockShift)], token & ((1 << blockShift) - 1)};
}

#endif
