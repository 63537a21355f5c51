/*
 * Products of rows with a matrix of weights, and what stands around them: the data that the files of products share.
 * Like internal.h it is plain data, since products.cpp is compiled once for each set of instructions.
 *
 * A matrix [outputs][inputs] is cut into panels of 16 outputs and along its inputs into tiles of 1,024 bytes: 32 inputs
 * in bfloat16, 64 in int8. Inside a tile the numbers of one output that one instruction multiplies lie together (two in
 * bfloat16, four in int8), then the 16 outputs, then the other inputs. That is what AMX wants of its second operand,
 * and one register of AVX-512 is 16 outputs of it. Two panels are a pair; a pair's tiles lie in the order in which they
 * are read:
 *
 *   [pair][tile][part][panel of the pair][16][16 outputs][2 or 4 inputs]
 *
 * Inputs and outputs that the matrix does not have are zero.
 *
 * MX4 is cut as bfloat16 is, a tile of a panel being [16][16 outputs] bytes, each two inputs of an output, the first in
 * the lower bits; and 16 scales, of the tile's inputs for each output. E4M3 is cut so too, a tile of a panel being
 * [16][16 outputs][2 inputs] bytes, and scales in float32; its `parts` are those of the bfloat16 that it becomes.
 */
#ifndef SPANGATE_KERNELS_PRODUCTS_H
#define SPANGATE_KERNELS_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>

#include "../abi.h"

namespace spg {

constexpr int kPanelOutputs = 16;
constexpr int kPairOutputs = 2 * kPanelOutputs;
constexpr int kTileBytes = 1024;
/* MX4: a tile that becomes kTileBytes of bfloat16 numbers, and the inputs that share a scale, a tile's. */
constexpr int kMx4TileBytes = 256, kE4m3TileBytes = 512;
constexpr int kMx4Group = 32;
/* Rows that AMX multiplies at a time. */
constexpr int kPanelRows = 16;
/* int8: at most so many tiles share a scale; groups are as equal as whole tiles allow. */
constexpr int kGroupTiles = 4;
/* int8: a group whose greatest number is below this is zero; 127 divided by it is finite. */
constexpr float kLeastAmax = 1e-30f;

struct MatrixView {
  int form; /* spg_form */
  int outputs, inputs;
  int pairs, tiles;
  /* b16: how many bfloat16 numbers make up a weight. */
  int parts;
  /* int8: scales along the inputs. */
  int groups;
  /* The pair with which `data` begins. */
  int firstPair;
  const unsigned char *data;
  /* mx4, [pair][tile][32]. */
  const unsigned char *blockScales;
  /* int8, [pair][group][32], and e4m3, [pair][tile][32]: a weight is its number times the scale. */
  const float *scales;
  /* int8: 128 times the sum of a group's numbers. */
  const int32_t *sums;
};

/* Is the matrix widened to b16 for each product? */
static inline bool is_narrow(const MatrixView &matrix) {
  return matrix.form == SPG_MX4 || matrix.form == SPG_E4M3;
}

static inline int tile_inputs(const MatrixView &matrix) {
  return matrix.form == SPG_INT8 ? 64 : 32;
}

/* The first tile of a group; of the group after the last one, the number of tiles. */
static inline int group_start(const MatrixView &matrix, int group) {
  return static_cast<int>(static_cast<int64_t>(matrix.tiles) * group / matrix.groups);
}

static inline size_t pair_bytes(const MatrixView &matrix) {
  const size_t panels = static_cast<size_t>(2) * matrix.tiles;
  if (matrix.form == SPG_E4M3) return panels * kE4m3TileBytes;
  return panels * matrix.parts * (matrix.form == SPG_MX4 ? kMx4TileBytes : kTileBytes);
}

static inline const unsigned char *pair_data(const MatrixView &matrix, int pair) {
  return matrix.data + static_cast<size_t>(pair - matrix.firstPair) * pair_bytes(matrix);
}

/* The rows of a product as packRows leaves them. */
struct PackedRows {
  /* Panels of 16 rows, each of panelBytes. */
  unsigned char *data;
  size_t panelBytes;
  /* int8, [panel][group][16]: a number stands for itself times the scale. */
  float *scales;
  /* AMX, b16: how many bfloat16 numbers make up an activation. */
  int parts;
  int rows;
};

/* Rows before they are packed: [rows][inputs], `stride` floats apart. */
struct PlainRows {
  const float *data;
  size_t stride;
  /* Which row of `data` each is, or null: the first ones. */
  const int32_t *places;
  /* [inputs] weights of an RMSNorm that is applied first, or null. */
  const float *norm;
  float normEps;
};

/* Where a product goes, and what is done to it on its way. */
struct ProductCall {
  int finish; /* spg_finish */
  float *out;
  size_t outStride;
  /* out = finish(factor * product + bias); [outputs], or null. */
  const float *bias;
  float factor;
  /* Which row of `out` each goes to, or null; what it is multiplied by last, or null. */
  const int32_t *places;
  const float *rowFactors;
};

static inline const float *plain_row(const PlainRows &rows, int row) {
  return rows.data + static_cast<size_t>(rows.places ? rows.places[row] : row) * rows.stride;
}

static inline float *out_row(const ProductCall &call, int row) {
  return call.out + static_cast<size_t>(call.places ? call.places[row] : row) * call.outStride;
}

static inline bool is_gate(int finish) {
  return finish >= SPG_GATE && finish <= SPG_GATE_CLAMPED;
}

/* Pairs [firstPair, endPair) for row panels [firstPanel, endPanel). */
struct ProductRange {
  int firstPair, endPair, firstPanel, endPanel;
};

/* out = factor * RMSNorm of rows of `width` numbers, or added to what is there. `out` may be the rows themselves. */
struct NormCall {
  PlainRows rows;
  int width;
  bool adds;
  float factor;
  float *out;
  size_t outStride;
};

/* The first of a row's greatest numbers. */
struct Greatest {
  /* -1: none is above -infinity. */
  int index;
  float value;
  /* One is NaN; the others say nothing then. */
  bool isNan;
};

/* The kernels of one set of instructions. Tasks may run in any order and on any thread. */
struct ProductTable {
  size_t (*panelBytes)(const MatrixView &matrix, int parts);
  void (*packRows)(const MatrixView &matrix, const PlainRows &plain, const PackedRows &packed, int panel);
  void (*multiply)(const MatrixView &matrix, const PackedRows &rows, const ProductCall &call,
                   const ProductRange &range);
  /* Rows [firstRow, endRow). */
  void (*normRows)(const NormCall &call, int firstRow, int endRow);
  /* Pairs [firstPair, endPair) of a matrix in mx4 or e4m3 as they would lie in b16. */
  void (*widenPairs)(const MatrixView &matrix, int firstPair, int endPair, unsigned char *out);
  Greatest (*greatest)(const float *x, int count);
};

const ProductTable *amx_products();
const ProductTable *avx512vnni_products();
const ProductTable *avx512_products();
const ProductTable *avxvnni_products();
const ProductTable *avx2_products();
const ProductTable *reference_products();

}

#endif
