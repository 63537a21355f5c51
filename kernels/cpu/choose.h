/*
 * Shadows of K, and scores over them: what sparse decoding reads to choose the tokens that a row attends to. choose.cpp is
 * compiled once per instruction set, choose_reference.cpp is the slow twin, and both give the same bits.
 *
 * A token's shadow is y = Hd k of its K as stored (kernels/abi_sparse.h) in 4 bits. Sixteen tokens are a panel:
 *
 *   { codes: uint8 [headDim / 8][16 tokens][4], scales: float16 [16] }
 *
 * Byte i of group j holds dimension 4 j + i in its lower 4 bits and dimension headDim / 2 + 4 j + i in its upper ones, each
 * as the number plus 8. So the numbers of one dimension of 16 tokens lie in one register, and four of a token's side by
 * side, as instructions that add up four products want them.
 */
#ifndef SPANGATE_KERNELS_CHOOSE_H
#define SPANGATE_KERNELS_CHOOSE_H

#include "internal.h"

namespace spg {

/* Numbers of a shadow are -7 to 7, held as 1 to 15. */
constexpr int kShadowLimit = 7, kShadowZero = 8;
/* A query's numbers are -127 to 127. */
constexpr int kQueryLimit = 127;

/* The shadows of one pool: [layers][kvHeads][blocks][panels of a block], so that those of a head are read in one stream. */
struct ShadowView {
  unsigned char *data;
  size_t panelBytes, blockBytes, headBytes, layerBytes;
};

static inline size_t shadow_code_bytes(int headDim) {
  return static_cast<size_t>(headDim) / 2 * kPanelTokens;
}

static inline unsigned char *shadow_head(const ShadowView &view, int layer, int block, int kvHead) {
  return view.data + layer * view.layerBytes + kvHead * view.headBytes + block * view.blockBytes;
}

/* A query after the Hadamard transform, in 8 bits. */
struct ShadowQuery {
  alignas(64) int8_t numbers[kMaxHeadDim];
  int32_t zero;   /* what codes give that stand for 0: kShadowZero times the sum of numbers */
  float factor;   /* a score in log2 units is (codes * numbers - zero) * the token's scale * factor */
};

/* The scores of some queries, `stride` floats apart. */
struct ScoreRows {
  float *scores;
  size_t stride;
  int count;
};

/* Tasks may run on any thread. */
struct ChooseTable {
  /* K of the 16 tokens that begin at `token` of a block, as float32: keys [headDim][16]. */
  void (*loadPanel)(const PoolView &pool, const unsigned char *head, int token, float *keys);
  /* Writes the shadows of tokens [first, end) of a panel whose K is keys [headDim][16], which is overwritten. */
  void (*writeShadows)(int headDim, float *keys, int first, int end, unsigned char *panel);
  /* Writes scores of all 16 tokens of each panel for each query, 16 to a panel. */
  void (*score)(const unsigned char *const *panels, int count, int headDim, const ShadowQuery *queries,
                const ScoreRows &rows);
  /*
   * ranks [tokens] float16 bits of the greatest over the queries of (score - L), L = log2 of the sum of 2^score. tokens is
   * a multiple of 16; scores of -infinity fill it up. best: [tokens] scratch.
   */
  void (*rank)(const ScoreRows &rows, int tokens, float *best, uint16_t *ranks);
  /*
   * set = the tokens whose rank, of the lower 15 bits, is in [low, end); end is at most 2^15. ranks can be read up to 32 past
   * the last.
   */
  void (*within)(const uint16_t *ranks, int tokens, uint16_t low, uint16_t end, uint64_t *set);
};

const ChooseTable *avx512vnni_choose();
const ChooseTable *avx512_choose();
const ChooseTable *avxvnni_choose();
const ChooseTable *avx2_choose();
const ChooseTable *reference_choose();

/* The part of a head that the Hadamard transform takes next: the greatest power of two of what is left. */
static inline int hadamard_part(int left) {
  int part = 1;
  while (part * 2 <= left) part *= 2;
  return part;
}

}

#endif
