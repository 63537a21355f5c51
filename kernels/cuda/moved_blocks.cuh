/* Blocks that a launch moves or looks at: their numbers in the pool, and how many tokens of each count. */
#ifndef SPANGATE_MOVED_BLOCKS_CUH
#define SPANGATE_MOVED_BLOCKS_CUH

constexpr int kMostBlocks = 128;

struct MovedBlocks {
  int blocks[kMostBlocks]; /* a negative number: this one is passed over */
  int tokenCounts[kMostBlocks];
};

#endif
