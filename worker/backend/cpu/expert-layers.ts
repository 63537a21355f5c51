/**
 * The layers with experts: a router's product names the experts of each row, and each expert multiplies the rows that it
 * was given, gathered where they lie. A row's sum is made in the order of its experts' numbers, so its bits are its own,
 * whatever rows are beside it.
 */
import type { Experts } from "../../model/experts.ts";
import type { ExpertSet, Matrix, Norm } from "../../native/cpu-kernels.ts";
import type { DenseParts } from "./dense.ts";
import { type GatedMlp, type Packer, paddedOutputs } from "./packer.ts";
import { multiplyAddsBetweenLooks, type Products } from "./products.ts";
import { Routes } from "./routes.ts";

interface ExpertLayer {
  readonly norm: Norm | undefined;
  readonly router: Matrix;
  readonly routerBias: Float32Array | undefined;
  readonly experts: readonly GatedMlp[];
  /** All experts of the layer as one object, for native calls that multiply by many of them. */
  readonly native: ExpertSet;
}

/** Experts [first, end), and the multiply-adds of their gates and ups. */
interface Group {
  readonly first: number;
  readonly end: number;
  readonly work: number;
}

export class ExpertLayers {
  readonly #layers: readonly (ExpertLayer | undefined)[];
  readonly #products: Products;
  /** Multiply-adds of a native call, at most. */
  readonly #mostWork: number;
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
    mostWork: number,
  ) {
    this.#layers = experts.layers.map((has, index) => (has ? layerOf(packer, experts, index) : undefined));
    this.#products = products;
    this.#mostWork = mostWork;
    this.#factor = config.residualMultiplier;
    this.#routes = new Routes(experts, maxRows);
    this.#scores = new Float32Array(maxRows * experts.count);
    this.#gatedWidth = paddedOutputs(experts.ffnSize);
    this.#gated = new Float32Array(maxRows * experts.perToken * this.#gatedWidth);
  }

  /**
   * @param mostWork multiply-adds after which messages are looked at
   * @returns undefined for a model without experts
   */
  static open(
    parts: Pick<DenseParts, "config" | "maxRows">,
    packer: Packer,
    products: Products,
    mostWork = multiplyAddsBetweenLooks,
  ): ExpertLayers | undefined {
    const { experts } = parts.config;
    return experts && new ExpertLayers(parts, experts, packer, products, mostWork);
  }

  /** Adds what the experts of a layer make of the first rows of the residual stream to it. */
  async run(layer: number, residual: Float32Array, rows: number): Promise<void> {
    const parts = this.#layers[layer];
    if (parts === undefined) throw new Error(`layer ${layer} has no experts`);
    const { norm, router, routerBias, experts } = parts;
    await this.#products.multiply(router, residual, rows, this.#scores, { norm, parts: 3, bias: routerBias });
    this.#routes.choose(this.#scores, rows);
    // All rows are read before the first is added to.
    for (const group of this.#groups(experts)) await this.#gate(parts, group, residual);
    for (const group of this.#groups(experts)) await this.#add(parts, group, residual);
  }

  /** Experts that follow each other and together have no more work than a call; one alone may have more. */
  *#groups(experts: readonly GatedMlp[]): Generator<Group> {
    let group: Group | undefined;
    for (const [index, { gateUp }] of experts.entries()) {
      const { outputs, inputs } = gateUp.options;
      const work = this.#routes.of(index).count * outputs * inputs;
      if (work === 0) continue;
      if (group !== undefined && group.work + work <= this.#mostWork) {
        group = { ...group, end: index + 1, work: group.work + work };
        continue;
      }
      if (group !== undefined) yield group;
      group = { first: index, end: index + 1, work };
    }
    if (group !== undefined) yield group;
  }

  async #gate({ norm, experts, native }: ExpertLayer, { first, end, work }: Group, residual: Float32Array) {
    const [{ gateUp, gateUpBias: bias, finish }, width] = [experts[first], this.#gatedWidth];
    if (work > this.#mostWork) {
      const { first: at, count, rows: xRows } = this.#routes.of(first);
      const options = { norm, finish, bias, xRows };
      return this.#products.multiply(gateUp, residual, count, this.#gated.subarray(at * width), options);
    }
    native.gate({ first, end, ...this.#routes.all }, residual, norm, finish, this.#gated, width);
    await this.#products.look(work);
  }

  async #add({ experts, native }: ExpertLayer, { first, end, work }: Group, residual: Float32Array) {
    const [{ down, downBias: bias }, width] = [experts[first], this.#gatedWidth];
    const { all } = this.#routes;
    if (work > this.#mostWork) {
      const { first: at, count, rows: outRows, factors: rowFactors } = this.#routes.of(first);
      const sum = { finish: "add", factor: this.#factor, bias, xStride: width, outRows, rowFactors } as const;
      return this.#products.multiply(down, this.#gated.subarray(at * width), count, residual, sum);
    }
    native.add({ first, end, ...all }, all.factors, this.#factor, this.#gated, width, residual);
    await this.#products.look(work / 2);
  }

  close(): void {
    for (const layer of this.#layers) {
      layer?.native.close();
      layer?.router.close();
      for (const { gateUp, down } of layer?.experts ?? []) for (const each of [gateUp, down]) each.close();
    }
  }
}

function layerOf(packer: Packer, { count, family: { biases } }: Experts, index: number): ExpertLayer {
  const prefix = `model.layers.${index}.mlp`;
  const mlps = Array.from({ length: count }, (_, expert) => packer.mlp(`${prefix}.experts.${expert}`, biases));
  return {
    norm: packer.layerNorms(index).beforeMlp,
    router: packer.router(`${prefix}.router.weight`),
    routerBias: packer.bias(`${prefix}.router.bias`, biases),
    experts: mlps,
    native: packer.experts(mlps),
  };
}
