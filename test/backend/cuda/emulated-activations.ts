/** Gated activations in plain loops. */
const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
/** By their numbers (activation.cuh). */
export const gatedActivations: readonly ((gate: number, up: number) => number)[] = [
  (gate, up) => gate * sigmoid(gate) * up,
  (gate, up) => 0.5 * gate * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (gate + 0.044715 * gate ** 3))) * up,
  (gate, up) => {
    const cut = Math.min(gate, 7);
    return cut * sigmoid(1.702 * cut) * (Math.min(Math.max(up, -7), 7) + 1);
  },
];
