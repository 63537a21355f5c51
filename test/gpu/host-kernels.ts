/** Small kernels for the checks of the host layer. */
import type { CudaSource } from "../../worker/native/cuda/compile/nvrtc.ts";

/** `Extra` as bytes, for a parameter of 24 bytes by value. */
export function extraBytes(whole: number, fraction: number, wide: number): Uint8Array {
  const view = new DataView(new ArrayBuffer(24));
  view.setInt32(0, whole, true);
  view.setFloat32(4, fraction, true);
  view.setFloat64(8, wide, true);
  view.setBigInt64(16, 3n, true);
  return new Uint8Array(view.buffer);
}

export const hostKernels: CudaSource = {
  name: "host.cu",
  headers: { "extra.cuh": "struct Extra { int whole; float fraction; double wide; long long three; };\n" },
  options: [],
  text: `
#include "extra.cuh"

extern "C" __global__ void affine(float *data, int count, float factor, long long shift, Extra extra,
                                  const float *addend, unsigned int twice) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float sum = data[i] * factor + (float)shift + (float)extra.whole + extra.fraction + (float)extra.wide;
  sum += (float)extra.three + (addend == nullptr ? 0.0f : addend[i]);
  data[i] = twice ? 2.0f * sum : sum;
}

extern "C" __global__ void increment(int *data) { data[threadIdx.x] += 1; }

extern "C" __global__ void nothing() {}

extern "C" __global__ void reverse(float *data, int count) {
  extern __shared__ float copy[];
  for (int i = threadIdx.x; i < count; i += blockDim.x) copy[i] = data[i];
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) data[i] = copy[count - 1 - i];
}

extern "C" __global__ void spin(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {}
}

extern "C" __global__ void fault(int *nowhere) { *nowhere = 1; }
`,
};
