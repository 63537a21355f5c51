/*
 * Sparse decoding: the part of the C ABI (abi.h) by which rows choose what they read.
 *
 * CHOICES. A row of sparse decoding attends to a buffer of chosen tokens and a tail of its own run. What it chooses from
 * are segments, whose tokens are numbered one after the other. For each layer and KV head alone, before attention:
 *
 *   y_i  = Hd k_i of the stored K, 4 bits a number and a float16 scale max|y| / 7 a token (the shadow). Hd: the orthonormal
 *          Hadamard transform of each power-of-two part of the head, the greatest first.
 *   z_hi = softmax_scale log2(e) (Hd q_h rotated to p - offset, 8 bits) . y_i,  L_h = log2 of the sum over i of 2^z_hi
 *   score_i = the greatest of z_hi - L_h over the KV head's query heads, as float16
 *
 * The first `forced` tokens of each segment are in the buffer always, in its first slots; the best `tokens` others get the
 * rest of it, of equal scores the lower numbers. Tokens that stay chosen keep their slots, new ones fill the slots that
 * became free, both rising: only these are copied, K rotated by the segment's offset and V as it is.
 *
 * A seat keeps for a request the lists, the queries that chose them, and in a ring the newest queries q, normed but not
 * rotated. By the ring (SPG_CHOOSE_AHEAD) every refresh_steps steps the query that is predicted from those before chooses,
 * and the row's own one wherever its cosine with the query that chose is below least_cosine for a head of the group. With
 * x_1 the newest of at most 17, G their products and b those with x_1, in units of their mean square, windows k = 2 to 16:
 *
 *   w = 0; four times: p = softmax(w), u = G p, s = p.u, beta = p.b, g_i = p_i (u_i - b_i - s + beta) + 0.03 w_i,
 *                      H_ij = p_i p_j (G_ij - u_i - u_j + s) + 0.03 [i = j], w -= H^-1 g     over x_2 to x_(k+1)
 *   predicted = mean over k = 1 to 16 of the sum of p_i x_i, i = 1 to k; p = 1 for k = 1; uniform p should g's objective rise
 *
 * What is chosen has the same bits with every instruction set, for the same stored K and the same q.
 */
#ifndef SPANGATE_KERNELS_ABI_SPARSE_H
#define SPANGATE_KERNELS_ABI_SPARSE_H

#include "abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Makes room for choices beside the pool: a shadow of all K that is written from here on, seats [0, seats), each with lists of
 * at most list_tokens, and rings where `rings` is 1. Once for a pool, before anything is written. Refused where a layer
 * slides, scores are capped or have sinks, or blocks have fewer than 16 tokens.
 */
SPG_API int32_t spg_sparse_open(spg_pool *pool, int32_t seats, int32_t list_tokens, int32_t rings);
SPG_API int64_t spg_shadow_bytes(const spg_pool *pool);
/* Of a block in a layer and KV head: [block_tokens / 16] of { codes [head_dim / 8][16][4], scales float16 [16] }. */
SPG_API const void *spg_shadow_data(const spg_pool *pool, int32_t layer, int32_t block_id, int32_t kv_head);
/* Shadows of blocks that were written from outside. block_ids: [block_count]. */
SPG_API int32_t spg_shadow_blocks(spg_pool *pool, const int32_t *block_ids, int32_t block_count);

/*
 * Sums: the seat has a new owner; only its ring is filled; what is chosen is copied anew. The first and the last take effect
 * in all layers when the choices begin.
 */
enum spg_choice_flag { SPG_FRESH = 1, SPG_WATCH = 2, SPG_STALE = 4 };
/* By the row's query, by the predicted one, by the one before it; by K itself; in Quest's way, in TOVA's; as the paper's
   listing predicts. */
enum spg_choice_mode {
  SPG_CHOOSE_NOW = 0,
  SPG_CHOOSE_AHEAD = 1,
  SPG_CHOOSE_LAST = 2,
  SPG_CHOOSE_EXACT = 3,
  SPG_CHOOSE_QUEST = 4,
  SPG_CHOOSE_TOVA = 5,
  SPG_CHOOSE_LISTING = 6
};
/*
 * The choices of the step that has begun; a step begins without any. pieces (rising), seats (all different), flags, modes,
 * tokens, refresh_steps, least_cosines: [count]. segments: [count + 1] the first segment of each entry in the arrays
 * behind it, [segment_count] as in spg_step_begin; segment_forced: how many of a segment's first tokens are forced. The
 * piece of an entry has one row and two segments, the buffer (offset 0, from a block's first token on, forced tokens + at
 * most `tokens` others) and the tail; that of a watched one any, and no segments to choose from. No block of a buffer is
 * read or written as anything else in the step.
 */
SPG_API int32_t spg_step_choices(spg_pool *pool, const int32_t *pieces, const int32_t *seats, const int32_t *flags,
                                 const int32_t *modes, const int32_t *tokens, const int32_t *refresh_steps,
                                 const float *least_cosines, const int32_t *segments, int32_t count,
                                 const int32_t *segment_block_starts, const int32_t *segment_first_tokens,
                                 const int32_t *segment_token_counts, const int32_t *segment_offsets,
                                 const int32_t *segment_forced, int32_t segment_count, const int32_t *block_ids,
                                 int32_t block_id_count);
/*
 * What spg_sparse_counts writes, sums since the seat was fresh: lists that steps read, those that were chosen in their step,
 * those of them by the check, tokens that were copied; and over `measured` looks at one layer the part of the row's
 * attention that the buffer and the tail have, and the part of the exact choice that is in the lists.
 */
enum spg_choice_count {
  SPG_COUNT_LISTS = 0,
  SPG_COUNT_CHOSEN = 1,
  SPG_COUNT_CHOSEN_AGAIN = 2,
  SPG_COUNT_CHANGED = 3,
  SPG_COUNT_MASS = 4,
  SPG_COUNT_OVERLAP = 5,
  SPG_COUNT_MEASURED = 6,
  SPG_COUNTS = 7
};
/* out: [SPG_COUNTS]. */
SPG_API int32_t spg_sparse_counts(const spg_pool *pool, int32_t seat, double *out);
/* The numbers of the tokens that a list holds, by slot: out [list_tokens], -1 behind its end. For tests. */
SPG_API int32_t spg_sparse_list(const spg_pool *pool, int32_t seat, int32_t layer, int32_t kv_head, int32_t *out);
/* out [dim] = predict_query of queries [known][dim], the newest first; listing 1: predict_by_listing. For tests. */
SPG_API int32_t spg_predict_query(const float *newest, int32_t known, int32_t dim, int32_t listing, float *out);

#ifdef __cplusplus
}
#endif
#endif
