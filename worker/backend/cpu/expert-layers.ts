/**
 * The layers with experts: a router's product names the experts of each row, and each expert multiplies the rows that it
 * was given, gathered where they lie. A row's sum is made in the order of its experts' numbers, so its bits are its own,
 * whatever rows are beside it.
 */
import type { Experts } from "../../model/experts.ts";
import type { Matrix, Norm } from "../../native/cpu-kernels.ts";
import type { DenseParts } from "./dense.ts";
import { type GatedMlp, type Packer, paddedOutputs } from "./packer.ts";
import type { Products } from "./products.ts";
import { Routes } from "./routes.ts";

interface ExpertLayer {
  readonly norm: Norm | undefined;
  readonly router: Matrix;
  readonly routerBias: Float32Array | undefined;
  readonly experts: readonly GatedMlp[];
}

export class ExpertLayers {
  readonly #layers: readonly (ExpertLayer | undefined)[];
  readonly #products: Products;
  readonly #factor: number;
  readonly #routes: Routes;
  /** [maxRows, experts] what the router says. */
  readonly #scores: Float32Array;
  /** [maxRows * perToken, gatedWidth] rows of the first expert, then of the second, … */
  readonly #gated: Float32Array;
  readonly #gatedWidth: number;

  private constructor(
    { config, maxRows }: Pick<DenseParts, "config" | "maxRows">,
    experts: Experts,
    packer: Packer,
    products: Products,
  ) {
    this.#layers = experts.layers.map((has, index) => (has ? layerOf(packer, experts, index) : undefined));
    this.#products = products;
    this.#factor = config.residualMultiplier;
    this.#routes = new Routes(experts, maxRows);
    this.#scores = new Float32Array(maxRows * experts.count);
    this.#gatedWidth = paddedOutputs(experts.ffnSize);
    this.#gated = new Float32Array(maxRows * experts.perToken * this.#gatedWidth);
  }

  /** @returns undefined for a model without experts */
  static open(
    parts: Pick<DenseParts, "config" | "maxRows">,
    packer: Packer,
    products: Products,
  ): ExpertLayers | undefined {
    const { experts } = parts.config;
    return experts && new ExpertLayers(parts, experts, packer, products);
  }

  /** Adds what the experts of a layer make of the first rows of the residual stream to it. */
  async run(layer: number, residual: Float32Array, rows: number): Promise<void> {
    const parts = this.#layers[layer];
    if (parts === undefined) throw new Error(`layer ${layer} has no experts`);
    const { norm, router, routerBias, experts } = parts;
    const [routes, width] = [this.#routes, this.#gatedWidth];
    await this.#products.multiply(router, residual, rows, this.#scores, { norm, parts: 3, bias: routerBias });
    routes.choose(this.#scores, rows);
    // All rows are read before the first is added to.
    for (const [index, { gateUp, gateUpBias: bias, finish }] of experts.entries()) {
      const { first, count, rows: xRows } = routes.of(index);
      if (count === 0) continue;
      await this.#products.multiply(gateUp, residual, count, this.#gated.subarray(first * width), {
        norm,
        finish,
        bias,
        xRows,
      });
    }
    for (const [index, { down, downBias: bias }] of experts.entries()) {
      const { first, count, rows: outRows, factors: rowFactors } = routes.of(index);
      if (count === 0) continue;
      const sum = { finish: "add", factor: this.#factor, bias, xStride: width, outRows, rowFactors } as const;
      await this.#products.multiply(down, this.#gated.subarray(first * width), count, residual, sum);
    }
  }

  close(): void {
    for (const layer of this.#layers) {
      layer?.router.close();
      for (const { gateUp, down } of layer?.experts ?? []) for (const each of [gateUp, down]) each.close();
    }
  }
}

function layerOf(packer: Packer, { count, family: { biases } }: Experts, index: number): ExpertLayer {
  const prefix = `model.layers.${index}.mlp`;
  return {
    norm: packer.layerNorms(index).beforeMlp,
    router: packer.router(`${prefix}.router.weight`),
    routerBias: packer.bias(`${prefix}.router.bias`, biases),
    experts: Array.from({ length: count }, (_, expert) => packer.mlp(`${prefix}.experts.${expert}`, biases)),
  };
}
