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

/* All threads of all thread blocks of the cluster come here before one goes on. */
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
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
__device__ __forceinline__ int peer_word(const int *own, int peer) {
#if __CUDA_ARCH__ >= 900
  int word;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(word) : "r"(peer_address(own, peer)) : "memory");
  return word;
#else
  return *own;
#endif
}

__device__ __forceinline__ int4 peer_words(const int4 *own, int peer) {
#if __CUDA_ARCH__ >= 900
  int4 words;
  asm volatile("ld.shared::cluster.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(peer_address(own, peer))
               : "memory");
  return words;
#else
  return *own;
#endif
}

#endif
