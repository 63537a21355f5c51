/** The numbers by which kernels know gated activations (activation.cuh). */
export const activations = { silu: 0, gelu: 1, clamped: 2 } as const;
