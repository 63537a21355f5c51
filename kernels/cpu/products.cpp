/*
 * Products of rows with packed matrices (products.h), compiled once for each set of instructions (kernels/manifest.ts),
 * each under a name of its own. Everything else in this file has internal linkage.
 *
 * The bits of a row's results do not depend on the other rows. int8: sums inside a group are whole numbers, and groups
 * are added in ascending order, so every set of instructions gives the same bits. b16: without AMX each output is one
 * chain of fused multiply-adds over ascending inputs, the same on all; AMX adds products in pairs, in an order that its
 * definition fixes.
 */
#include "products.h"

#include "greatest.h"
#include "products_amx.h"
#include "products_e4m3.h"
#include "products_mx4.h"
#include "products_rows.h"
#include "products_vector.h"

namespace {

#if defined(__AMX_TILE__)

size_t panel_bytes(const MatrixView &matrix, int parts) {
  return static_cast<size_t>(matrix.tiles) * (matrix.form == SPG_B16 ? parts : 1) * spg::kTileBytes;
}

void multiply(const MatrixView &matrix, const PackedRows &rows, const ProductCall &call, const ProductRange &range) {
  multiply_by_tiles(matrix, rows, call, range);
}

#else

/* Without AMX rows of b16 stay float32. */
size_t panel_bytes(const MatrixView &matrix, int) {
  return static_cast<size_t>(matrix.tiles) * spg::kTileBytes * (matrix.form == SPG_B16 ? 2 : 1);
}

void multiply(const MatrixView &matrix, const PackedRows &rows, const ProductCall &call, const ProductRange &range) {
  multiply_by_vectors(matrix, rows, call, range);
}

#endif

void widen_pairs(const MatrixView &matrix, int firstPair, int endPair, unsigned char *out) {
  matrix.form == SPG_MX4 ? widen_mx4_pairs(matrix, firstPair, endPair, out)
                         : widen_e4m3_pairs(matrix, firstPair, endPair, out);
}

}

namespace spg {

const ProductTable *SPG_PRODUCT_TABLE() {
  static const ProductTable table = {panel_bytes, pack_rows, multiply, norm_rows, widen_pairs, greatest};
  return &table;
}

}
