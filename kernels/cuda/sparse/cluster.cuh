/*
 * Thread blocks of a cluster, which run at the same time and read each other's shared memory (sm_90 and later). Elsewhere
 * a thread block is alone.
 */
#ifndef SPANGATE_CLUSTER_CUH
#define SPANGATE_CLUSTER_CUH

#include "common.cuh"

#if __CUDA_ARCH__ >= 900
constexpr bool kHasClusters = true;
#define CLUSTER_OF(count) __cluster_dims__(count, 1, 1)
#else
constexpr bool kHasClusters = false;
#define CLUSTER_OF(count)
#endif

/* All threads of all kPeers thread blocks of the cluster come here before one goes on. */
template <int kPeers>
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kPeers > 1) {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

#if __CUDA_ARCH__ >= 900
/* Where another thread block of the cluster has what this one has at an address of its shared memory. */
__device__ __forceinline__ uint32 peer_address(const void *own, int peer) {
  uint32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<uint32>(__cvta_generic_to_shared(own))), "r"(peer));
  return address;
}
#endif

/* A word of a thread block's shared memory, by the address of the same word in this one's. */
template <int kPeers>
__device__ __forceinline__ uint32 peer_word(const void *own, int peer) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kPeers > 1) {
    uint32 word;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(peer_address(own, peer)) : "memory");
    return word;
  }
#endif
  return *static_cast<const uint32 *>(own);
}

template <int kPeers>
__device__ __forceinline__ float2 peer_pair(const float2 *own, int peer) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kPeers > 1) {
    float2 pair;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(peer_address(own, peer))
                 : "memory");
    return pair;
  }
#endif
  return *own;
}

#endif
