/* Matrix fragments (m16n8k16, bf16 in, float32 out), shared-memory matrices, asynchronous copies; sm_80 and later. */
#ifndef SPANGATE_MMA_CUH
#define SPANGATE_MMA_CUH

#include "common.cuh"

/* Makes a launch with too little shared memory a fault instead of a wrong result. */
__device__ __forceinline__ void require_shared_memory(int byteCount) {
  uint32 bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  if (bytes < byteCount) __trap();
}

__device__ __forceinline__ uint32 shared_address(const void *p) {
  return static_cast<uint32>(__cvta_generic_to_shared(p));
}

/* Loads four 8x8 matrices of bf16; lane i gives the address of row i % 8 of matrix i / 8. */
__device__ __forceinline__ void load_matrices(uint32 (&to)[4], const bf16 *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32 (&to)[4], const bf16 *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/* sum [16][8] += a [16][16] b [16][8] */
__device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Copies 16 bytes from global to shared memory; writes zeros if not `valid` (the address must still be readable). */
__device__ __forceinline__ void copy_async(const bf16 *to, const bf16 *from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void copy_async(uint32 to, const bf16 *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* A policy of the L2 cache for what is read once: it is given up before all else. */
__device__ __forceinline__ uint64 evict_first() {
  uint64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

/* Copies 16 bytes from global to shared memory by a policy. */
__device__ __forceinline__ void copy_vector(void *to, const void *from, uint64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "l"(policy)
               : "memory");
}

/* Copies 4 bytes from global to shared memory. */
__device__ __forceinline__ void copy_word(const int *to, const int *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most N groups of this thread's copies are in flight. */
template <int N>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
