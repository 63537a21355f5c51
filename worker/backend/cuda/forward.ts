import type { ModelConfig } from "../../model/config.ts";
import { type AttentionOps, attentionLaunches } from "./attention.ts";
import type { DeviceBuffer, MatmulShape } from "./device/device.ts";
import { ExpertOps } from "./experts.ts";
import { activations, type ForwardParts, type Op } from "./forward-parts.ts";
import { ByteProducts, rowThreads } from "./products/byte-products.ts";
import { type RowInput, RowProducts, type RowTarget, takesRows } from "./products/row-products.ts";
import { sampleOps } from "./sample-ops.ts";
import { chooseOps, shadowRows } from "./sparse/sparse-ops.ts";
import type { StepLayout } from "./staging.ts";
import type { Matrix } from "./weights/matrix.ts";
import type { DenseMlp, LayerWeights } from "./weights/weights.ts";
import { rotationsOf } from "./workspace.ts";

const blockThreads = 256;

/** Launch options of the kernels of a step, which wait on the device for the kernel before them. */
const overlapsPrevious = true;

type OutputType = MatmulShape["outputType"];

const finished = (row: DeviceBuffer, width: number): RowInput => ({ row, width, squares: null, epsilon: 0 });

/** What is done to a sublayer's output before it is added to the residual stream. */
interface Delta {
  readonly bias: DeviceBuffer | null;
  readonly norm: DeviceBuffer | null;
  /** Set for what several experts give: their weights, and how many each row has. */
  readonly experts?: { readonly factors: DeviceBuffer; readonly count: number } | undefined;
}

/** Can the products of one row do the work between them (matvec.cu)? */
function fusesRow({ layerNorms, outputBias, normsAddOne, activation, ...config }: ModelConfig): boolean {
  const { headCount, headDim, hiddenSize, ffnSize } = config;
  const { beforeAttention, afterAttention, beforeMlp, afterMlp } = layerNorms;
  const areBefore = beforeAttention !== undefined && beforeMlp !== undefined;
  const areBehind = afterAttention !== undefined || afterMlp !== undefined;
  if (!areBefore || areBehind || outputBias || normsAddOne || activation !== "silu") return false;
  return takesRows(hiddenSize, ffnSize, headCount * headDim);
}

/** The launches of steps of up to `layout.capacity.rows` rows. */
export class Forward {
  readonly layout: StepLayout;
  /** Runs all layers and the last norm; leaves the result in `workspace.normed`. */
  readonly body: readonly Op[];
  /** Runs layer 0, computes layer 1's K and V, and leaves their differences in `workspace.deviations`. */
  readonly probe: readonly Op[];
  /** After the head: draws a token for each logit row into `workspace.answer`. */
  readonly sampling: readonly Op[];
  readonly #parts: ForwardParts;
  readonly #attention: AttentionOps;
  readonly #isFusedRow: boolean;
  readonly #bytes: ByteProducts;

  constructor(parts: ForwardParts, layout: StepLayout) {
    this.#parts = parts;
    this.layout = layout;
    this.#attention = attentionLaunches(parts, layout);
    this.#bytes = new ByteProducts({ ...parts, rowCount: parts.staging.count("rows") }, layout.capacity.rows);
    this.#isFusedRow = parts.fusesRows && layout.capacity.rows === 1 && fusesRow(parts.config);
    const { layers, finalNorm } = parts.weights;
    this.body = [
      this.#embed(),
      ...layers.flatMap((layer, index) =>
        this.#isFusedRow
          ? this.#fusedLayer(layer, index)
          : [...this.#projectQkv(layer, index), ...this.#restOfLayer(layer, index)],
      ),
      ...this.#shadows(),
      ...(this.#isOpenRow(layers.length) ? [] : [this.#norm(finalNorm, this.#mlpDelta(layers.length - 1))]),
    ];
    this.probe = this.#probeOps();
    this.sampling = sampleOps(parts, layout);
  }

  /** Computes logits of the first `rows` rows of `normed`, or of the step's logit rows where those are others. */
  head(rows: number, allRows: boolean): Op[] {
    const { device, config, workspace, staging } = this.#parts;
    const { hiddenSize } = config;
    const cap = this.#capLogits(rows);
    if (this.#isFusedRow)
      return [
        this.#rows.product(this.#rowBehind(config.layerCount), this.#headMatrix, workspace.logits, "float32"),
        ...cap,
      ];
    const input = allRows ? workspace.normed : workspace.headInput;
    const products = this.#products(rows, this.#headMatrix, input, workspace.logits, "float32");
    if (allRows) return [...products, ...cap];
    const rowList = staging.list(this.layout.logitRows);
    const gather = device.prepare(
      "gather_rows",
      workspace.normed,
      rowList,
      staging.count("logitRows"),
      hiddenSize * 2,
      workspace.headInput,
    );
    return [(counts) => gather({ grid: [counts.logitRows], blockThreads, overlapsPrevious }), ...products, ...cap];
  }

  #capLogits(rows: number): Op[] {
    const { device, config, workspace } = this.#parts;
    const { logitCap, vocabSize } = config;
    if (logitCap === undefined) return [];
    const launch = device.prepare("cap_logits", workspace.logits, rows * vocabSize, logitCap);
    const grid = [Math.min(8 * device.multiprocessorCount, Math.ceil((rows * vocabSize) / blockThreads))] as const;
    return [() => launch({ grid, blockThreads, overlapsPrevious })];
  }

  #embed(): Op {
    const { device, config, weights, workspace, staging } = this.#parts;
    const launch = device.prepare(
      "embed_rows",
      weights.embedding,
      staging.list(this.layout.tokenIds),
      workspace.answer,
      staging.count("rows"),
      config.hiddenSize,
      config.embeddingMultiplier,
      workspace.residual,
    );
    return (counts) => launch({ grid: [counts.rows], blockThreads });
  }

  /**
   * Adds a sublayer's output to the residual stream and makes the next sublayer's input.
   * @param matrix by which the input is multiplied first
   */
  #norm(weight: DeviceBuffer | null, delta: Delta | undefined, matrix?: Matrix): Op {
    const { device, config, workspace, staging } = this.#parts;
    const { hiddenSize, residualMultiplier, rmsNormEps } = config;
    const launch = device.prepare(
      "add_rmsnorm",
      workspace.residual,
      delta === undefined ? null : workspace.delta,
      delta?.experts?.factors ?? null,
      delta?.experts?.count ?? 1,
      delta?.bias ?? null,
      delta?.norm ?? null,
      residualMultiplier,
      weight,
      this.#normOffset,
      rmsNormEps,
      staging.count("rows"),
      hiddenSize,
      ...this.#bytes.leftOf(workspace.normed, matrix),
    );
    return (counts) => launch({ grid: [counts.rows], blockThreads: rowThreads(hiddenSize), overlapsPrevious });
  }

  /** What attention left in `workspace.delta`; what the MLP of a layer did. */
  #attentionDelta(layer: LayerWeights): Delta {
    return { bias: layer.outputBias, norm: layer.norms.afterAttention };
  }
  #mlpDelta(index: number): Delta {
    const { weights, config, workspace } = this.#parts;
    const { mlp, norms } = weights.layers[index];
    const factors = "router" in mlp ? workspace.experts?.factors : undefined;
    const experts = factors && { factors, count: config.experts?.perToken ?? 1 };
    return { bias: null, norm: norms.afterMlp, experts };
  }

  get #normOffset(): number {
    return this.#parts.config.normsAddOne ? 1 : 0;
  }

  get #headMatrix(): Matrix {
    const { config, weights } = this.#parts;
    return { values: weights.head, outWidth: config.vocabSize, inWidth: config.hiddenSize };
  }

  #product(input: DeviceBuffer, matrix: Matrix, output: DeviceBuffer): Op[] {
    return this.#products(this.layout.capacity.rows, matrix, input, output, "bfloat16");
  }

  /** A matrix product; one of a single row runs on our own kernels, which read weights as fast as memory allows. */
  #products(rows: number, matrix: Matrix, input: DeviceBuffer, output: DeviceBuffer, type: OutputType): Op[] {
    const { device } = this.#parts;
    const { values: weights, outWidth, inWidth } = matrix;
    if (rows === 1 && takesRows(inWidth)) return [this.#rows.product(finished(input, inWidth), matrix, output, type)];
    if (matrix.scales) return [this.#bytes.round(matrix, input), this.#bytes.product(matrix, output)];
    const shape = { rows, outWidth, inWidth, outputType: type } as const;
    return [() => device.matmul(shape, { input, weights, output })];
  }

  /** A product of what a kernel before has left: in 8 bits already, where it does that. */
  #productOfLeft(input: DeviceBuffer, matrix: Matrix, output: DeviceBuffer): Op[] {
    return this.#bytes.leaves(matrix) ? [this.#bytes.product(matrix, output)] : this.#product(input, matrix, output);
  }

  #projectQkv(layer: LayerWeights, index: number): Op[] {
    const { workspace } = this.#parts;
    return [
      this.#norm(layer.norms.beforeAttention, index === 0 ? undefined : this.#mlpDelta(index - 1), layer.qkv),
      ...this.#productOfLeft(workspace.normed, layer.qkv, workspace.qkv),
    ];
  }

  #restOfLayer(layer: LayerWeights, index: number): Op[] {
    const { workspace } = this.#parts;
    return [
      ...this.#attend(layer, index),
      ...this.#product(workspace.attended, layer.output, workspace.delta),
      this.#norm(
        layer.norms.beforeMlp,
        this.#attentionDelta(layer),
        "router" in layer.mlp ? undefined : layer.mlp.gateUp,
      ),
      ...this.#mlp(layer),
    ];
  }

  #mlp({ mlp }: LayerWeights): Op[] {
    const { config, workspace } = this.#parts;
    const { normed, gateUp, activated, delta } = workspace;
    if ("router" in mlp) return this.#expertOps.ops(mlp, finished(normed, config.hiddenSize));
    return [
      ...this.#productOfLeft(normed, mlp.gateUp, gateUp),
      this.#activate(mlp.down),
      ...this.#productOfLeft(activated, mlp.down, delta),
    ];
  }

  get #expertOps(): ExpertOps {
    return new ExpertOps(this.#parts, this.layout, (...product) => this.#products(...product));
  }

  /** From the projections to q, k and v to what attention gives. */
  #attend(layer: LayerWeights, index: number): Op[] {
    const { config, pool, rope, sparse, staging } = this.#parts;
    const kv = pool.layer(index);
    const rotations = rotationsOf(rope, config, index);
    const slides = config.window?.layers[index] ?? false;
    return [
      ...this.#normProjections(layer),
      this.#finishQkv(layer, kv, rotations),
      ...(sparse ? chooseOps(sparse, staging, { layer: index, kv, rotations }) : []),
      ...this.#attention.ofLayer(kv, rotations, slides, layer.sinks),
    ];
  }

  /** Shadows of the K that the step's rows have written. */
  #shadows(): Op[] {
    const { sparse, staging } = this.#parts;
    return sparse ? [shadowRows(sparse, staging.list(this.layout.slots), staging.count("rows"))] : [];
  }

  get #rows(): RowProducts {
    return new RowProducts(this.#parts.device);
  }

  /** The row as the product before left it: without its RMSNorm factor. */
  #openRow(): RowInput {
    const { config, workspace } = this.#parts;
    const { hiddenSize: width, rmsNormEps: epsilon } = config;
    return { row: workspace.normed, width, squares: workspace.squares, epsilon };
  }

  /** Has the layer before left its row open? What experts give is added where the row is finished. */
  #isOpenRow(index: number): boolean {
    const before = this.#parts.weights.layers[index - 1];
    return this.#isFusedRow && before !== undefined && !("router" in before.mlp);
  }

  #rowBehind(index: number): RowInput {
    const { config, workspace } = this.#parts;
    return this.#isOpenRow(index) ? this.#openRow() : finished(workspace.normed, config.hiddenSize);
  }

  #fusedLayer(layer: LayerWeights, index: number): Op[] {
    const { config, workspace } = this.#parts;
    const { residualMultiplier: scale } = config;
    const { residual, normed, squares, attended } = workspace;
    const norm = layer.norms.beforeMlp;
    if (norm === null) throw new Error("a row without a norm before its MLP is not fused");
    const target = { residual, scale, row: normed, squares };
    return [
      ...(this.#isOpenRow(index)
        ? [this.#rows.product(this.#openRow(), layer.qkv, workspace.qkv, "bfloat16")]
        : this.#projectQkv(layer, index)),
      ...this.#attend(layer, index),
      this.#rows.add(attended, layer.output, { ...target, norm }),
      ...("router" in layer.mlp
        ? this.#expertOps.ops(layer.mlp, this.#openRow())
        : this.#fusedMlp(layer.mlp, index, target)),
    ];
  }

  #fusedMlp({ gateUp, down }: DenseMlp, index: number, target: Omit<RowTarget, "norm">): Op[] {
    const { weights, workspace } = this.#parts;
    const { activated } = workspace;
    const norm = weights.layers[index + 1]?.norms.beforeAttention ?? weights.finalNorm;
    return [this.#rows.gated(this.#openRow(), gateUp, activated), this.#rows.add(activated, down, { ...target, norm })];
  }

  /** Norms over all heads of q and of k, where the model has those. */
  #normProjections({ qNorm, kNorm }: LayerWeights): Op[] {
    const { device, config, workspace, staging } = this.#parts;
    const { qkNorm, headCount, kvHeadCount, headDim, rmsNormEps } = config;
    if (qkNorm !== "projection") return [];
    const [q, k] = [headCount * headDim, kvHeadCount * headDim];
    const values = [workspace.qkv, qNorm, kNorm, rmsNormEps, staging.count("rows"), q, k, q + 2 * k] as const;
    const launch = device.prepare("norm_projections", ...values);
    return [(counts) => launch({ grid: [counts.rows, 2], blockThreads, overlapsPrevious })];
  }

  /** Norms over each head, which the kernels that go through heads apply themselves. */
  #headNorms({ qNorm, kNorm }: LayerWeights): { readonly q: DeviceBuffer | null; readonly k: DeviceBuffer | null } {
    return this.#parts.config.qkNorm === "head" ? { q: qNorm, k: kNorm } : { q: null, k: null };
  }

  #finishQkv(layer: LayerWeights, kv: DeviceBuffer, rotations: DeviceBuffer | null): Op {
    const { device, config, workspace } = this.#parts;
    const { q, k } = this.#headNorms(layer);
    const launch = device.prepare("qkv_finish", workspace.qkv, layer.qkvBias, q, k, ...this.#heads(kv, rotations));
    const heads = config.headCount + 2 * config.kvHeadCount;
    return (counts) => launch({ grid: [counts.rows, Math.ceil(heads / 8)], blockThreads, overlapsPrevious });
  }

  /** What kernels that go through the heads of qkv take: from normOffset to pool. */
  #heads(kv: DeviceBuffer, rotations: DeviceBuffer | null) {
    const { config, staging, blockTokens } = this.#parts;
    const { headCount, kvHeadCount, headDim, rmsNormEps, rope } = config;
    const rows = [staging.list(this.layout.positions), staging.list(this.layout.slots), staging.count("rows")] as const;
    const rotaryDim = rotations === null ? 0 : rope.rotaryDim;
    const shape = [headCount, kvHeadCount, headDim, rotaryDim, blockTokens] as const;
    return [this.#normOffset, rmsNormEps, rotations, ...rows, ...shape, kv] as const;
  }

  /** @param down the matrix by which what it gives is multiplied */
  #activate(down: Matrix): Op {
    const { device, config, workspace, staging } = this.#parts;
    const { ffnSize, activation } = config;
    const { gateUp, activated } = workspace;
    const given = [gateUp, staging.count("rows"), ffnSize, activations[activation]] as const;
    const [out, scales, rowStride] = this.#bytes.leftOf(activated, down);
    if (scales !== null && rowStride === 0) {
      const launch = device.prepare("activate_rows", ...given, out, scales);
      return (counts) => launch({ grid: [counts.rows], blockThreads: rowThreads(ffnSize), overlapsPrevious });
    }
    const launch = device.prepare("activate", ...given, out, scales, rowStride);
    const gridX = Math.ceil(ffnSize / 8 / blockThreads);
    return (counts) => launch({ grid: [gridX, counts.rows], blockThreads, overlapsPrevious });
  }

  #probeOps(): Op[] {
    const { config, weights, workspace, pool, rope, device } = this.#parts;
    const [first, second] = weights.layers;
    if (second === undefined) return [];
    const { qkv, deviations } = workspace;
    const heads = this.#heads(pool.layer(1), rotationsOf(rope, config, 1));
    const { k } = this.#headNorms(second);
    const compare = device.prepare("deviations", qkv, second.qkvBias, k, ...heads, deviations);
    return [
      this.#embed(),
      ...this.#projectQkv(first, 0),
      ...this.#restOfLayer(first, 0),
      ...this.#shadows(),
      ...this.#projectQkv(second, 1),
      ...this.#normProjections(second),
      (counts) => compare({ grid: [counts.rows], blockThreads }),
    ];
  }
}
