/*
 * Gated activations, by their numbers:
 *   0: f(x) = x / (1 + exp(-x)), which is SiLU; f(gate) * up
 *   1: f(x) = x / (1 + exp(-1.5957691 * (x + 0.044715 * x^3))), which is GELU as tanh approximates it; f(gate) * up
 *   2: gpt-oss's. The gate is cut at 7, the up at -7 and 7; gate / (1 + exp(-1.702 * gate)) * (up + 1)
 */
#ifndef SPANGATE_ACTIVATION_CUH
#define SPANGATE_ACTIVATION_CUH

constexpr int kGelu = 1, kClamped = 2;

__device__ __forceinline__ float gated(float gate, float up, int activation) {
  float exponent = gate;
  if (activation == kGelu) exponent = 1.5957691216f * (gate + 0.044715f * gate * gate * gate);
  if (activation == kClamped) {
    gate = fminf(gate, 7.0f), up = fmaxf(fminf(up, 7.0f), -7.0f) + 1.0f;
    exponent = 1.702f * gate;
  }
  return gate / (1.0f + __expf(-exponent)) * up;
}

#endif
