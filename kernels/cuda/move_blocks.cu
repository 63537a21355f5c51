/*
 * Copies blocks between the KV pool, where a block lies in pieces, one in each layer, and staging memory, where it lies
 * in one piece: layer after layer what the pool has of it. Packing writes zeros for the slots behind a block's last
 * token, because they hold what the block held before, maybe another tenant's.
 *
 *   blocks: the numbers of `count` blocks in the pool, a negative one for a block that is passed over, and how many
 *   tokens of each are packed
 *   staging [count][layers][layerVectors]; pool: `layerStride` vectors from one layer to the next, in each
 *   [block][kvHead] of K [blockTokens][rowVectors], then V
 *   A vector has 16 bytes, a row is K or V of one token and head.
 *
 * Grid: (count, layers) of 256 threads. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "common.cuh"

constexpr int kMostBlocks = 128;

struct MovedBlocks {
  int blocks[kMostBlocks];
  int tokenCounts[kMostBlocks];
};

extern "C" __global__ void __launch_bounds__(256)
pack_blocks(const MovedBlocks moved, const uint4 *pool, long long layerStride, int layerVectors, int rowVectors,
            int blockTokens, uint4 *staging) {
  const int block = moved.blocks[blockIdx.x], tokens = moved.tokenCounts[blockIdx.x];
  if (block < 0) return;
  const uint4 *from = pool + blockIdx.y * layerStride + size_t(block) * layerVectors;
  uint4 *to = staging + (size_t(blockIdx.x) * gridDim.y + blockIdx.y) * layerVectors;
  for (int i = threadIdx.x; i < layerVectors; i += blockDim.x) {
    const bool isToken = i / rowVectors % blockTokens < tokens;
    to[i] = isToken ? from[i] : make_uint4(0, 0, 0, 0);
  }
}

extern "C" __global__ void __launch_bounds__(256)
unpack_blocks(const MovedBlocks moved, const uint4 *staging, uint4 *pool, long long layerStride, int layerVectors) {
  const int block = moved.blocks[blockIdx.x];
  if (block < 0) return;
  const uint4 *from = staging + (size_t(blockIdx.x) * gridDim.y + blockIdx.y) * layerVectors;
  uint4 *to = pool + blockIdx.y * layerStride + size_t(block) * layerVectors;
  for (int i = threadIdx.x; i < layerVectors; i += blockDim.x) to[i] = from[i];
}
