/* Products of what tile_parts.h took apart. */
#ifndef SPANGATE_KERNELS_TILE_PRODUCTS_H
#define SPANGATE_KERNELS_TILE_PRODUCTS_H

#if defined(__AMX_TILE__)

#include "products.h"
#include "tiles.h"

namespace {

using spg::kTileBytes;

/* Queries, tokens or dimensions of one tile's side, and of what is multiplied at a time. */
constexpr int kSide = 16, kChunk = 32;
/* A tile of each part of the same numbers, one behind the other. */
constexpr int kBothParts = 2 * kTileBytes;

/*
 * What is multiplied lies in chunks of 32 along what is summed up; a chunk's products are, in this order, those of the
 * first parts of the rows with the second ones of the columns, with the first ones, and of the second parts of the rows with
 * the first ones of the columns. All distances are bytes.
 */
struct Factors {
  const unsigned char *rows, *columns;
  size_t rowPanel, columnPanel; /* from panel to panel of 16 */
  size_t columnStep;            /* from chunk to chunk of the columns; of the rows it is kBothParts */
  int chunks;
  int panels; /* of columns that there are */
  float *out; /* [rows][stride] */
  size_t stride;
};

template <int index>
inline void add_first() {
  if (index == 0) _tile_dpbf16ps(0, 4, 6);
  if (index == 1) _tile_dpbf16ps(1, 4, 6);
  if (index == 2) _tile_dpbf16ps(2, 4, 6);
  if (index == 3) _tile_dpbf16ps(3, 4, 6);
}

template <int index>
inline void add_second_and_third() {
  if (index == 0) _tile_dpbf16ps(0, 4, 7);
  if (index == 1) _tile_dpbf16ps(1, 4, 7);
  if (index == 2) _tile_dpbf16ps(2, 4, 7);
  if (index == 3) _tile_dpbf16ps(3, 4, 7);
  if (index == 0) _tile_dpbf16ps(0, 5, 7);
  if (index == 1) _tile_dpbf16ps(1, 5, 7);
  if (index == 2) _tile_dpbf16ps(2, 5, 7);
  if (index == 3) _tile_dpbf16ps(3, 5, 7);
}

template <int index, int parts>
inline void add_column(const Factors &f, const unsigned char *columns) {
  if (index >= f.panels) return;
  const unsigned char *column = columns + index * f.columnPanel;
  if (parts == 2) {
    _tile_loadd(6, column + kTileBytes, 64);
    add_first<index>();
  }
  _tile_loadd(7, column, 64);
  add_second_and_third<index>();
}

/* One panel of rows by up to four of columns; adds to what is there if `resumes`. */
template <int parts>
inline void multiply_few(const Factors &f, bool resumes) {
  const size_t bytes = f.stride * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (resumes) {
    _tile_loadd(0, f.out, bytes);
    if (f.panels > 1) _tile_loadd(1, f.out + kSide, bytes);
    if (f.panels > 2) _tile_loadd(2, f.out + 2 * kSide, bytes);
    if (f.panels > 3) _tile_loadd(3, f.out + 3 * kSide, bytes);
  }
  for (int i = 0; i < f.chunks; i++) {
    _tile_loadd(4, f.rows + i * kBothParts, 64);
    _tile_loadd(5, f.rows + i * kBothParts + kTileBytes, 64);
    const unsigned char *columns = f.columns + i * f.columnStep;
    add_column<0, parts>(f, columns);
    add_column<1, parts>(f, columns);
    add_column<2, parts>(f, columns);
    add_column<3, parts>(f, columns);
  }
  _tile_stored(0, f.out, bytes);
  if (f.panels > 1) _tile_stored(1, f.out + kSide, bytes);
  if (f.panels > 2) _tile_stored(2, f.out + 2 * kSide, bytes);
  if (f.panels > 3) _tile_stored(3, f.out + 3 * kSide, bytes);
}

template <bool kTwo>
inline void add_pairs() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (kTwo) _tile_dpbf16ps(2, 5, 6);
  if (kTwo) _tile_dpbf16ps(3, 5, 7);
}

/* One panel of rows, or two, by up to two of columns. Calls `tick` after each chunk. */
template <bool kTwo, int parts, class Tick>
inline void multiply_many(const Factors &f, Tick tick) {
  _tile_zero(0);
  _tile_zero(1);
  if (kTwo) _tile_zero(2);
  if (kTwo) _tile_zero(3);
  for (int i = 0; i < f.chunks; i++) {
    const unsigned char *rows = f.rows + i * kBothParts, *columns = f.columns + i * f.columnStep;
    _tile_loadd(4, rows, 64);
    if (kTwo) _tile_loadd(5, rows + f.rowPanel, 64);
    if (parts == 2) {
      _tile_loadd(6, columns + kTileBytes, 64);
      _tile_loadd(7, columns + f.columnPanel + kTileBytes, 64);
      add_pairs<kTwo>();
    }
    _tile_loadd(6, columns, 64);
    _tile_loadd(7, columns + f.columnPanel, 64);
    add_pairs<kTwo>();
    _tile_loadd(4, rows + kTileBytes, 64);
    if (kTwo) _tile_loadd(5, rows + f.rowPanel + kTileBytes, 64);
    add_pairs<kTwo>();
    tick();
  }
  const size_t bytes = f.stride * sizeof(float);
  _tile_stored(0, f.out, bytes);
  if (f.panels > 1) _tile_stored(1, f.out + kSide, bytes);
  if (kTwo) _tile_stored(2, f.out + kSide * f.stride, bytes);
  if (kTwo && f.panels > 1) _tile_stored(3, f.out + kSide * f.stride + kSide, bytes);
}

}

#endif
#endif
