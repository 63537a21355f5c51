/*
 * How products of experts find their rows. A choice is one of the experts of a row: choice c is of row c / perToken. The
 * choices of a step, in the order of their experts, are cut into tiles: of one expert, so many choices at most.
 */
#ifndef SPANGATE_EXPERT_TILES_CUH
#define SPANGATE_EXPERT_TILES_CUH

#include "common.cuh"

/* Choices order[first .. first + count) of one expert; count 0: no tile. */
struct alignas(16) ExpertTile {
  int expert, first, count, unused;
};

#endif
