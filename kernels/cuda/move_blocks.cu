/*
 * Copies blocks between the KV pool, where a block lies in pieces, one in each layer, and staging memory, where it lies
 * in one piece: layer after layer what the pool has of it. Packing writes zeros for the slots behind a block's last
 * token, because they hold what the block held before, maybe another tenant's.
 *
 *   blocks: the numbers of `count` blocks in the pool, a negative one for a block that is passed over, and how many
 *   tokens of each are packed
 *   staging [count][layers][layerVectors]; pool: `layerStride` vectors from one layer to the next, in each
 *   [block][kvHead] of K [blockTokens][rowVectors], then V
 *   A vector has 16 bytes, a row is K or V of one token and head; in mx8 its numbers alone (mx8.cuh).
 *
 * Grid: (count, layers) of 256 threads. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "moved_blocks.cuh"
#include "mx8.cuh"

#if KV_MX8
/* How many bytes of a vector are of the block's first tokens; the others follow them. */
__device__ __forceinline__ int kept_bytes(int i, int rowVectors, int blockTokens, int tokens) {
  const int headDim = 16 * rowVectors, partVectors = mx8_part_bytes(headDim) / 16;
  const int part = i / partVectors % (blockTokens / kMx8PartTokens), byte = i % partVectors * 16;
  const int left = tokens - part * kMx8PartTokens, scalesAt = mx8_scales_at(headDim, false);
  if (byte < scalesAt) return byte / headDim % kMx8PartTokens < left ? 16 : 0;
  const int tokenBytes = headDim / kMx8Group;
  return left * tokenBytes - (byte - scalesAt) % (kMx8PartTokens * tokenBytes);
}
#else
__device__ __forceinline__ int kept_bytes(int i, int rowVectors, int blockTokens, int tokens) {
  return i / rowVectors % blockTokens < tokens ? 16 : 0;
}
#endif

/* The first `count` bytes of a vector, and zeros; count may be below 0 or above 16. */
__device__ __forceinline__ uint4 first_bytes(uint4 x, int count) {
  const auto kept = [&](uint32 word, int at) {
    const int bytes = min(max(count - at, 0), 4);
    return bytes == 4 ? word : word & ((1u << 8 * bytes) - 1);
  };
  return make_uint4(kept(x.x, 0), kept(x.y, 4), kept(x.z, 8), kept(x.w, 12));
}

extern "C" __global__ void __launch_bounds__(256)
pack_blocks(const MovedBlocks moved, const uint4 *pool, long long layerStride, int layerVectors, int rowVectors,
            int blockTokens, uint4 *staging) {
  const int block = moved.blocks[blockIdx.x], tokens = moved.tokenCounts[blockIdx.x];
  if (block < 0) return;
  const uint4 *from = pool + blockIdx.y * layerStride + size_t(block) * layerVectors;
  uint4 *to = staging + (size_t(blockIdx.x) * gridDim.y + blockIdx.y) * layerVectors;
  for (int i = threadIdx.x; i < layerVectors; i += blockDim.x) {
    to[i] = first_bytes(from[i], kept_bytes(i, rowVectors, blockTokens, tokens));
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
