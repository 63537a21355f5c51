/** What is done once before the first user: the fastest algorithm for each product of a decode step. */
import type { ComputeDevice, DeviceBuffer, MatmulShape } from "./device.ts";
import type { ForwardParts } from "./forward.ts";

/** Layers that take turns, so that their weights come from memory and not from the cache. */
const maxLayers = 8;

interface Product {
  readonly input: DeviceBuffer;
  readonly weights: readonly DeviceBuffer[];
  readonly output: DeviceBuffer;
  readonly inWidth: number;
  readonly outputType: MatmulShape["outputType"];
}

function productsOf({ config, weights, workspace }: ForwardParts): Product[] {
  const { hiddenSize, headCount, headDim, ffnSize } = config;
  const { normed, qkv, attended, delta, gateUp, activated, logits } = workspace;
  const layers = weights.layers.slice(0, maxLayers);
  const outputType = "bfloat16";
  return [
    { input: normed, weights: layers.map((layer) => layer.qkv), output: qkv, inWidth: hiddenSize, outputType },
    {
      input: attended,
      weights: layers.map((layer) => layer.output),
      output: delta,
      inWidth: headCount * headDim,
      outputType,
    },
    { input: normed, weights: layers.map((layer) => layer.gateUp), output: gateUp, inWidth: hiddenSize, outputType },
    { input: activated, weights: layers.map((layer) => layer.down), output: delta, inWidth: ffnSize, outputType },
    { input: normed, weights: [weights.head], output: logits, inWidth: hiddenSize, outputType: "float32" },
  ];
}

/** @param rowCounts sizes of steps */
export function tuneProducts(device: ComputeDevice, parts: ForwardParts, rowCounts: readonly number[]): void {
  // What the products read is not there yet: any number but NaN will do.
  const { normed, attended, activated } = parts.workspace;
  for (const buffer of [normed, attended, activated]) device.fill(buffer, 0x3c);
  for (const rows of rowCounts) {
    for (const { input, weights, output, inWidth, outputType } of productsOf(parts)) {
      const outWidth = weights[0].byteLength / 2 / inWidth;
      const operandSets = weights.map((matrix) => ({ input, weights: matrix, output }));
      device.tune({ rows, inWidth, outWidth, outputType }, operandSets);
    }
  }
}
