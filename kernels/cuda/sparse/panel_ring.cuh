/*
 * A ring of panels of shadows (shadow.cuh) in shared memory: stages of two pieces each, filled ahead. A piece is a panel,
 * and the ring is a warp's, or the panels of kPieces KV heads that lie one behind the other, and the ring is that of a
 * thread block, whose first warp fills it. From sm_90 on one lane asks the bulk copy engine for a piece, elsewhere the lanes
 * copy it asynchronously.
 */
#ifndef SPANGATE_PANEL_RING_CUH
#define SPANGATE_PANEL_RING_CUH

#include "mma.cuh"
#include "shadow.cuh"
#if __CUDA_ARCH__ >= 900
#include "bulk_copies.cuh"
#endif

constexpr int kStages = 4, kStagePanels = 2;

/* A stage, and how often the ring went round before it. */
struct RingPlace {
  int stage;
  uint32 round;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, round++;
  }
};

/* At an address that is a multiple of 16. */
template <int kPieces>
struct PanelRing {
  static constexpr int kBytes = kPieces * kPanelBytes;
  unsigned char panels[kStages][kStagePanels][kBytes];
  uint64 barriers[kStages + kStages % 2];

  /* The whole warp or thread block, once. */
  __device__ __forceinline__ void open() {
#if __CUDA_ARCH__ >= 900
    if ((kPieces > 1 ? threadIdx.x : threadIdx.x & 31) == 0) {
      for (uint64 &barrier : barriers) barrier_init(shared_address(&barrier), 1);
      publish_barriers();
    }
    if constexpr (kPieces > 1) __syncthreads();
    else __syncwarp();
#endif
  }

  /*
   * Starts the copies of up to two pieces, of which the second may be null, to a stage that nobody reads any more. The
   * whole warp must call it as often as it waits, with nothing to copy too.
   */
  __device__ __forceinline__ void copy(const RingPlace &place, const unsigned char *first, const unsigned char *second,
                                       uint64 policy) {
#if __CUDA_ARCH__ >= 900
    if ((threadIdx.x & 31) != 0 || first == nullptr) return;
    const uint32 barrier = shared_address(&barriers[place.stage]), to = shared_address(panels[place.stage][0]);
    barrier_arrive_expecting(barrier, second == nullptr ? kBytes : 2 * kBytes);
    copy_stretch(to, first, kBytes, barrier, policy);
    if (second != nullptr) copy_stretch(to + kBytes, second, kBytes, barrier, policy);
#else
    for (int p = 0; p < kStagePanels; p++) {
      const unsigned char *from = p == 0 ? first : second;
      for (int at = (threadIdx.x & 31) * kVectorBytes; from != nullptr && at < kBytes; at += 32 * kVectorBytes) {
        copy_vector(panels[place.stage][p] + at, from + at, policy);
      }
    }
    commit_copies();
#endif
  }

  /* Until the pieces of a stage are there, of which kStages - 1 were asked for before. */
  __device__ __forceinline__ void wait(const RingPlace &place) {
#if __CUDA_ARCH__ >= 900
    barrier_wait(shared_address(&barriers[place.stage]), place.round & 1);
#else
    wait_copies<kStages - 2>();
    if constexpr (kPieces > 1) __syncthreads();
    else __syncwarp();
#endif
  }
};

#endif
