/*
 * Weights of experts in 8 or 4 bits (expert_forms.cuh) as bfloat16, for products of many rows (experts_wgmma.cu).
 *
 *   weights [rows][in], out [rows][in] bf16; a product with a scale that is no power of two is rounded once
 *
 * Grid: any; a thread takes a unit of 16 bytes at a time. Bytes: 3 a weight, or 2.5.
 * Oracle: test/backend/cuda/emulated-experts.ts.
 */
#include "common.cuh"
#include "expert_forms.cuh"

extern "C" __global__ void __launch_bounds__(256)
widen_e4m3(const uint4 *__restrict__ weights, const float *__restrict__ scales, int scaleStride, int rowShift,
           int inShift, int in, int rows, uint4 *__restrict__ out) {
  let_next_begin();
  wait_for_previous();
  const ExpertMatrix m = {weights, scales, scaleStride, rowShift, inShift, in};
  const int units = in / E4m3::kWeights;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < size_t(rows) * units;
       i += size_t(gridDim.x) * blockDim.x) {
    const uint4 w = weights[i];
    const float scale = E4m3::scale(m, int(i / units), int(i % units));
    const uint32 words[4] = {w.x, w.y, w.z, w.w};
    uint32 pairs[8];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32 even = E4m3::even(words[j]), odd = E4m3::odd(words[j]);
      pairs[2 * j] = pack_bf16(low_float(even) * scale, low_float(odd) * scale);
      pairs[2 * j + 1] = pack_bf16(high_float(even) * scale, high_float(odd) * scale);
    }
    out[2 * i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    out[2 * i + 1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
  }
}

extern "C" __global__ void __launch_bounds__(256)
widen_mx4(const uint4 *__restrict__ weights, const unsigned char *__restrict__ scales, int in, int rows,
          uint4 *__restrict__ out) {
  let_next_begin();
  wait_for_previous();
  const ExpertMatrix m = {weights, scales, 0, 0, 0, in};
  const int units = in / Mx4::kWeights;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < size_t(rows) * units;
       i += size_t(gridDim.x) * blockDim.x) {
    const uint4 w = weights[i];
    const Mx4::Scale scale = Mx4::scale(m, int(i / units), int(i % units));
    const uint32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32 a = Mx4::pair<0>(words[j], scale), b = Mx4::pair<1>(words[j], scale);
      const uint32 c = Mx4::pair<2>(words[j], scale), d = Mx4::pair<3>(words[j], scale);
      out[4 * i + j] = make_uint4(low_halves(a, b), low_halves(c, d), high_halves(a, b), high_halves(c, d));
    }
  }
}
