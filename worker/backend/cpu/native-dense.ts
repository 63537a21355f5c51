/**
 * Dense algebra by our own products: a layer is four of them, and norms, gate, bias and residual are done on their way
 * in and out. The residual stream stays in the first of its two buffers. What a step does is a list of operations that is
 * made once; one native call runs as many of them as may pass between two looks at messages.
 */
import type { LayerNorms } from "../../model/family.ts";
import type { Norm } from "../../native/cpu-kernels.ts";
import type { BufferName, Operation, Sequence, SequenceBuffers } from "../../native/sequence.ts";
import type { Dense, DenseParts } from "./dense.ts";
import { ExpertLayers } from "./expert-layers.ts";
import { gatherRows } from "./logit-rows.ts";
import { Packer, paddedOutputs } from "./packer.ts";
import { Products } from "./products.ts";

/** The experts of a layer are many calls, so no sequence has them. */
type DenseOperation = Operation | { readonly kind: "experts"; readonly layer: number };

interface Stage {
  readonly operations: readonly DenseOperation[];
  /** Multiply-adds of a row in its products. */
  readonly rowWork: number;
}

export class NativeDense implements Dense {
  readonly #parts: DenseParts;
  readonly #buffers: SequenceBuffers;
  readonly #stages: readonly Stage[];
  /** [stages + 1] the sequence's first operation of each stage. */
  readonly #starts: readonly number[];
  readonly #products = new Products();
  readonly #experts: ExpertLayers | undefined;
  /** undefined: operations are called one after the other. */
  readonly #sequence: Sequence | undefined;

  private constructor(parts: DenseParts, packer: Packer) {
    const { pool, callWork } = parts;
    this.#parts = parts;
    this.#stages = new StageMaker(parts, packer).stages();
    this.#experts = ExpertLayers.open(parts, packer, this.#products);
    this.#buffers = buffersOf(parts);
    const starts = [0];
    for (const [index, { operations }] of this.#stages.entries()) starts.push(starts[index] + operations.length);
    this.#starts = starts;
    const operations = this.#stages.flatMap((stage) => stage.operations);
    this.#sequence = callWork > 0 && operations.every(isNative) ? pool.openSequence(operations) : undefined;
  }

  static async open(parts: DenseParts): Promise<NativeDense> {
    return new NativeDense(parts, new Packer(parts));
  }

  run(index: number, rows: number): Promise<void> {
    return this.runStages(2 * index, 2 * index + 1, rows);
  }

  head(rows: number): Promise<void> {
    return this.run(this.#parts.config.layerCount, rows);
  }

  async runStages(first: number, end: number, rows: number): Promise<void> {
    for (let stage = first; stage < end; ) {
      const { next, work } = this.#together(stage, end, rows);
      if (next === stage) {
        for (const operation of this.#stages[stage].operations) await this.#runOperation(operation, rows);
        stage += 1;
      } else {
        this.#sequence?.run(this.#starts[stage], this.#starts[next], rows, this.#buffers);
        await this.#products.look(work);
        stage = next;
      }
    }
  }

  /** The stage after those that one call runs, and their multiply-adds: none when the first one is too long for a call. */
  #together(first: number, end: number, rows: number): { readonly next: number; readonly work: number } {
    let [next, work] = [first, 0];
    if (this.#sequence === undefined) return { next, work };
    while (next < end && work + rows * this.#stages[next].rowWork <= this.#parts.callWork) {
      work += rows * this.#stages[next].rowWork;
      next += 1;
    }
    return { next, work };
  }

  async #runOperation(operation: DenseOperation, rows: number): Promise<void> {
    const { pool, kernels } = this.#parts;
    const { qkv, attention, residual } = this.#buffers;
    if (operation.kind === "attention") return pool.attention(operation.layer, qkv, attention, operation.norms);
    if (operation.kind === "experts") return this.#experts?.run(operation.layer, residual, rows);
    const [x, out] = [this.#buffers[operation.x], this.#buffers[operation.out]];
    if (operation.kind === "product") return this.#products.multiply(operation.matrix, x, rows, out, operation.options);
    const { offset, options } = operation;
    kernels.normRows(x.subarray(offset), rows, out.subarray(offset), options);
  }

  keepRows(rows: Int32Array): void {
    const { residual } = this.#buffers;
    gatherRows(residual, rows, this.#parts.config.hiddenSize, residual);
  }

  async dispose(): Promise<void> {
    this.#sequence?.close();
    for (const operation of this.#stages.flatMap(({ operations }) => operations)) {
      if (operation.kind === "product") operation.matrix.close();
    }
    this.#experts?.close();
  }
}

/** Floats of a row that the MLP's gate leaves; zeros behind `ffnSize`. */
const gatedWidth = ({ config }: Pick<DenseParts, "config">): number => paddedOutputs(config.ffnSize);

/** Those of the step, and room for what the gate leaves and for what waits for a norm before it is added. */
function buffersOf(parts: DenseParts): SequenceBuffers {
  const { config, maxRows, buffers } = parts;
  const { residual, qkv, attention, logits } = buffers;
  const hasMlps = config.experts?.layers.every((has) => has) !== true;
  const hasBranches = config.layerNorms.afterAttention !== undefined || config.layerNorms.afterMlp !== undefined;
  // A native call takes no empty array.
  const room = (width: number, isUsed: boolean) => new Float32Array(isUsed ? maxRows * width : 1);
  return {
    ...{ residual: residual[0], qkv, attention, logits },
    ...{ branch: room(config.hiddenSize, hasBranches), gated: room(gatedWidth(parts), hasMlps) },
  };
}

/** Packs a model's weights and names what is done with them. */
class StageMaker {
  readonly #parts: DenseParts;
  readonly #packer: Packer;

  constructor(parts: DenseParts, packer: Packer) {
    this.#parts = parts;
    this.#packer = packer;
  }

  /** As `Dense.runStages` counts them. */
  stages(): Stage[] {
    const { layerCount } = this.#parts.config;
    const stages: Stage[] = [];
    for (let layer = 0; layer <= layerCount; layer++) {
      const before = layer === 0 ? [] : this.#behindAttention(layer - 1);
      stages.push(stageOf([...before, ...(layer === layerCount ? [this.#head()] : this.#projections(layer))]));
      const norms = this.#parts.headNorms[layer];
      if (layer < layerCount) stages.push(stageOf([{ kind: "attention", layer, norms }]));
    }
    return stages;
  }

  /** q, k and v of a layer. */
  #projections(index: number): DenseOperation[] {
    const { qkv: matrix, qkvBias: bias } = this.#packer.projections(index);
    const norm = this.#norms(index).beforeAttention;
    const product: DenseOperation = { kind: "product", matrix, x: "residual", out: "qkv", options: { norm, bias } };
    if (this.#parts.config.qkNorm !== "projection") return [product];
    const named = (name: string) => this.#packer.norm(`model.layers.${index}.self_attn.${name}`);
    const [q, k] = [named("q_norm"), named("k_norm")];
    const xStride = matrix.options.outputs;
    const inPlace = { finish: "store", xStride, outStride: xStride } as const;
    return [
      product,
      { kind: "norm", x: "qkv", out: "qkv", offset: 0, options: { ...inPlace, norm: q } },
      { kind: "norm", x: "qkv", out: "qkv", offset: q.weights.length, options: { ...inPlace, norm: k } },
    ];
  }

  /** O and MLP, or the experts, of a layer. */
  #behindAttention(index: number): DenseOperation[] {
    const { config } = this.#parts;
    const named = (name: string) => `model.layers.${index}.${name}`;
    const { afterAttention, beforeMlp, afterMlp } = this.#norms(index);
    const matrix = this.#packer.stacked([named("self_attn.o_proj.weight")]);
    const bias = this.#packer.bias(named("self_attn.o_proj.bias"), config.outputBias);
    const o = { kind: "product", matrix, x: "attention", out: "residual", options: { bias } } as const;
    const first = this.#added(o, afterAttention);
    if (config.experts?.layers[index]) return [...first, { kind: "experts", layer: index }];
    const { gateUp, gateUpBias, down, downBias, finish } = this.#packer.mlp(named("mlp"));
    const gate = { norm: beforeMlp, bias: gateUpBias, finish };
    const sum = { xStride: gatedWidth(this.#parts), bias: downBias };
    return [
      ...first,
      { kind: "product", matrix: gateUp, x: "residual", out: "gated", options: gate },
      ...this.#added({ kind: "product", matrix: down, x: "gated", out: "residual", options: sum }, afterMlp),
    ];
  }

  /** Adds what a product gives to the residual stream, through a norm where there is one. */
  #added(product: Operation & { readonly kind: "product" }, norm: Norm | undefined): DenseOperation[] {
    const { options, out } = product;
    const sum = { finish: "add", factor: this.#parts.config.residualMultiplier } as const;
    if (norm === undefined) return [{ ...product, options: { ...options, ...sum } }];
    const branch: BufferName = "branch";
    return [
      { ...product, out: branch },
      { kind: "norm", x: branch, out, offset: 0, options: { ...sum, norm } },
    ];
  }

  #head(): DenseOperation {
    const { logitsDivisor, logitCap } = this.#parts.config;
    const norm = this.#packer.norm("model.norm");
    const finish =
      logitCap === undefined
        ? ({ factor: 1 / logitsDivisor } as const)
        : ({ finish: "cap", factor: 1 / logitCap } as const);
    const matrix = this.#packer.head();
    return { kind: "product", matrix, x: "residual", out: "logits", options: { norm, ...finish } };
  }

  #norms(index: number): { readonly [place in keyof LayerNorms]: Norm | undefined } {
    return this.#packer.layerNorms(index);
  }
}

const isNative = (operation: DenseOperation): operation is Operation => operation.kind !== "experts";

function stageOf(operations: readonly DenseOperation[]): Stage {
  const matrices = operations.flatMap((each) => (each.kind === "product" ? [each.matrix.options] : []));
  return { operations, rowWork: matrices.reduce((sum, { outputs, inputs }) => sum + outputs * inputs, 0) };
}
