/* Copies by the bulk copy engine, and the barriers that wait for them; sm_90 and later. */
#ifndef SPANGATE_BULK_COPIES_CUH
#define SPANGATE_BULK_COPIES_CUH

#include "common.cuh"

/* Barriers in shared memory: a phase ends after `count` arrivals; a waiter names the parity of the phase. */
__device__ __forceinline__ void barrier_init(uint32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and delays the end of the phase until this many bytes of bulk copies have landed. */
__device__ __forceinline__ void barrier_arrive_expecting(uint32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32 barrier, uint32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/* Starts the copy of a stretch of memory; address and bytes are multiples of 16, and the bytes count for the barrier. */
__device__ __forceinline__ void copy_stretch(uint32 to, const void *from, int bytes, uint32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
/* The same by a policy of the L2 cache (evict_first of mma.cuh). */
__device__ __forceinline__ void copy_stretch(uint32 to, const void *from, int bytes, uint32 barrier, uint64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

/* Makes barriers that this thread initialized known to the copy engine. */
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif
