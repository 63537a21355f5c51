/*
 * How products of experts find their rows. An assignment is one of the experts of a row: assignment c is of row c /
 * perToken. The assignments of a step, in the order of their experts, are cut into tiles: of one expert, so many
 * assignments at most.
 */
#ifndef SPANGATE_EXPERT_TILES_CUH
#define SPANGATE_EXPERT_TILES_CUH

#include "common.cuh"

/* Assignments order[first .. first + count) of one expert; count 0: no tile. */
struct alignas(16) ExpertTile {
  int expert, first, count, unused;
};

#endif
