/*
 * Shared by every CUDA kernel. NVRTC compiles it at run time, so nothing is included from outside this folder.
 *
 * Conventions: tensors are row-major; bf16 is stored as unsigned short; a pointer named `...Count` leads to a
 * number in device memory, so that a captured graph serves any step that fits its grid: blocks and threads
 * beyond the count do nothing. Sums and norms are float32.
 *
 * OVERLAP (sm_90 and later). A launch may begin while the kernel before it still runs: as soon as each block of that
 * kernel has called let_next_begin or ended. The launch calls wait_for_previous before it reads what earlier kernels
 * wrote and before it writes anything; what it does until then (loading weights into registers, reading the step's own
 * integers) costs no time. Every kernel of a chain waits, even if it needs nothing, so that the end of one is the end
 * of all before it. What other kernels wrote is read through pointers without __restrict__, or the compiler may read it
 * early.
 */
#ifndef SPANGATE_COMMON_CUH
#define SPANGATE_COMMON_CUH

typedef unsigned short bf16;
typedef unsigned int uint32;
typedef unsigned long long uint64;

constexpr uint32 kAllLanes = 0xffffffffu;

__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(uint32(x) << 16); }
__device__ __forceinline__ float low_float(uint32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_float(uint32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Two floats as bf16, the first in the low half; round to nearest even. */
__device__ __forceinline__ uint32 pack_bf16(float low, float high) {
  uint32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float round_bf16(float x) { return low_float(pack_bf16(x, 0.0f)); }

/* Eight bf16 (16 bytes) to floats, and back. */
__device__ __forceinline__ void unpack8(const uint4 &from, float (&to)[8]) {
  const uint32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    to[2 * i] = low_float(words[i]);
    to[2 * i + 1] = high_float(words[i]);
  }
}

__device__ __forceinline__ uint4 pack8(const float (&from)[8]) {
  return make_uint4(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]), pack_bf16(from[4], from[5]),
                    pack_bf16(from[6], from[7]));
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

template <class T>
__device__ __forceinline__ T warp_max(T x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    const T other = __shfl_xor_sync(kAllLanes, x, step);
    x = other > x ? other : x;
  }
  return x;
}

/* Sum over the block; every thread gets it. `scratch`: 32 entries, which can be used again after the next barrier. */
template <class T>
__device__ T block_sum(T x, T *scratch) {
  x = warp_sum(x);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? scratch[lane] : T(0));
  __syncthreads();
  return x;
}

/* Maximum over the block, of numbers that are not negative. */
__device__ __forceinline__ uint64 block_max(uint64 x, uint64 *scratch) {
  x = warp_max(x);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = warp_max(lane < warps ? scratch[lane] : 0ull);
  __syncthreads();
  return x;
}

#endif
