/*
 * The four warps of attention_wgmma.cu that keep K and V in the ring where the pool is in mx8. The first of them copies
 * the next tile's K as the pool has it once all four have made bf16 of this tile's, and then V likewise; each warp makes
 * two of the eight parts of 16 tokens.
 */
#ifndef SPANGATE_WGMMA_MX8_CUH
#define SPANGATE_WGMMA_MX8_CUH

#include "mx8_tile.cuh"
#include "wgmma_ring.cuh"

class TileMaker {
 public:
  __device__ __forceinline__ TileMaker(const PlanArguments &a, uint32 shared, int warp)
      : a(a), shared(shared), warp(warp), phase(0), part(-1) {}

  __device__ __forceinline__ void make_all() {
    TileWalk at(a);
    find_part(at);
    for (int kind = 0; kind < 2; kind++) start_copies(at, kind);
#pragma unroll 1
    while (!at.done()) {
      const TileInfo info = tile_info(a, at);
      const int start = at.start(), end = at.end();
      at.next(a);
      find_part(at);
#pragma unroll
      for (int kind = 0; kind < 2; kind++) {
        barrier_wait(landed(kind), phase);
        barrier_wait(shared + kEmptyAt + ring.slot * 8, ring.parity ^ 1);
        if (kind == 0 && warp == 0 && lane() == 0) store_info(shared + kInfosAt + ring.slot * 16, info);
        /* Scores outside the slice are masked; V there becomes zeros. */
        write_parts(kind, kind == 0 ? 0 : start, kind == 0 ? kTokens : end);
        order_before_products();
        __syncwarp();
        if (lane() == 0) {
          barrier_arrive(shared + kFullAt + ring.slot * 8);
          barrier_arrive(read(kind));
        }
        if (warp == 0 && !at.done()) barrier_wait(read(kind), phase);
        start_copies(at, kind);
        ring.advance();
      }
      phase ^= 1;
    }
  }

 private:
  const PlanArguments &a;
  uint32 shared;
  int warp;
  uint32 phase; /* parity of the tile */
  int part;     /* the pool's part that the first warp's lane copies for the tile that comes next, or -1: none */
  RingPlace<kSlots> ring;

  __device__ __forceinline__ static int lane() { return int(threadIdx.x & 31); }
  __device__ __forceinline__ uint32 landed(int kind) const { return shared + kLandedAt + kind * 8; }
  __device__ __forceinline__ uint32 read(int kind) const { return shared + kLandedAt + (2 + kind) * 8; }
  __device__ __forceinline__ uint32 packed(int kind) const { return shared + kPackedAt + kind * kPackedBytes; }

  __device__ __forceinline__ void find_part(const TileWalk &at) {
    part = -1;
    const int inTile = lane() * kMx8PartTokens, place = at.row + inTile;
    if (warp != 0 || at.done() || inTile >= min(kTokens, at.end())) return;
    const int block = a.blockIds[at.slice.block + place / a.blockTokens];
    part = mx8_part_at(block, place & (a.blockTokens - 1), at.unit.kvHead, a.kvHeads, a.blockTokens);
  }

  /* The first warp starts the copies of a tile's K (kind 0) or V (1), each lane those of a part. */
  __device__ __forceinline__ void start_copies(const TileWalk &at, int kind) {
    if (warp != 0 || at.done()) return;
    const int bytes = __popc(__ballot_sync(kAllLanes, part >= 0)) * (kNumberBytes + kScaleBytes);
    if (lane() == 0) barrier_arrive_expecting(landed(kind), bytes);
    __syncwarp();
    if (part < 0) return;
    const unsigned char *from = reinterpret_cast<const unsigned char *>(a.pool) + size_t(part) * mx8_part_bytes(kHeadDim);
    const uint32 to = packed(kind);
    copy_stretch(to + lane() * kNumberBytes, from + mx8_numbers_at(kHeadDim, kind != 0), kNumberBytes, landed(kind));
    copy_stretch(to + kPackedParts * kNumberBytes + lane() * kScaleBytes, from + mx8_scales_at(kHeadDim, kind != 0),
                 kScaleBytes, landed(kind));
  }

  /* Rows of the tile outside [start, end) become zeros. */
  __device__ __forceinline__ void write_parts(int kind, int start, int end) const {
    const uint32 tile = shared + kRingAt + ring.slot * kTileBytes;
#pragma unroll 1
    for (int i = warp; i < kPackedParts; i += kCopyWarps) {
      const uint32 scales = packed(kind) + kPackedParts * kNumberBytes + i * kScaleBytes;
      const int first = i * kMx8PartTokens;
      write_mx8_rows<kHalfBytes>(tile, first, {packed(kind) + i * kNumberBytes, scales}, 0, start - first, end - first);
    }
  }
};

#endif
