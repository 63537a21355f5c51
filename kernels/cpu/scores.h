/* Scores of the tokens that an entry chooses from, by shadows or by K itself, for the queries of one KV head. */
#ifndef SPANGATE_KERNELS_SCORES_H
#define SPANGATE_KERNELS_SCORES_H

#include "sparse.h"

namespace spg {

/* One KV head of one entry of a step's choices, and the memory of the thread that works on it. */
struct HeadChoice {
  const spg_pool &pool;
  const Choice &choice;
  int layer, kvHead;
  ChooseScratch &scratch;
};

/* Tokens of a segment that stand in one panel: [first, end) of it, the first of which has this number. */
struct PanelPart {
  const ChoiceSegment *segment;
  int block, panel; /* the panel of the block */
  int first, end, number;
};

/* bare: [group][headDim] queries, normed and unrotated. */
using BareQueries = const float *;

/* scratch.scores: rows of this many floats. */
size_t score_stride(const HeadChoice &head);
int padded_tokens(int tokens);

/* Write a score in log2 units for each candidate, and -infinity up to the next whole panel. */
void score_shadows(const HeadChoice &head, BareQueries bare);
void score_keys(const HeadChoice &head, BareQueries bare);
/* Quest's: for all tokens of a panel the greatest score that their dimensions' bounds allow. */
void score_bounds(const HeadChoice &head, BareQueries bare);
/* By K, of the tokens of the tail that the row sees, behind the candidates' scores. Returns how many. */
int score_tail(const HeadChoice &head, BareQueries bare, int row);

/* out [headDim] = the row's query head, normed. */
void bare_query(const spg_pool &pool, const LayerCall &call, int row, int queryHead, float *out);

}

#endif
