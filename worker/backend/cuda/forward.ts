import type { MatmulOperands } from "../../native/cuda/cublaslt.ts";
import { type AttentionOps, attentionLaunches } from "./attention.ts";
import type { ComputeDevice, DeviceBuffer, MatmulShape } from "./device/device.ts";
import type { ForwardParts, Op } from "./forward-parts.ts";
import { type RowInput, RowProducts, takesRows } from "./row-products.ts";
import { sampleOps } from "./sample-ops.ts";
import type { StepLayout } from "./staging.ts";
import type { LayerWeights } from "./weights/weights.ts";

const blockThreads = 256;
const warpThreads = 32;

/** Launch options of the kernels of a step, which wait on the device for the kernel before them. */
const overlapsPrevious = true;

/** A matrix product; one of a single row runs on our own kernel, which reads the weights as fast as memory allows. */
function productOp(device: ComputeDevice, shape: MatmulShape, operands: MatmulOperands): Op {
  const { rows, inWidth, outputType } = shape;
  const { input, weights, output } = operands;
  if (rows > 1 || !takesRows(inWidth)) return () => device.matmul(shape, operands);
  return new RowProducts(device).product(finished(input, inWidth), weights, output, outputType);
}

const finished = (row: DeviceBuffer, width: number): RowInput => ({ row, width, squares: null, epsilon: 0 });

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

  constructor(parts: ForwardParts, layout: StepLayout) {
    const { headCount, headDim, hiddenSize, ffnSize } = parts.config;
    this.#parts = parts;
    this.layout = layout;
    this.#attention = attentionLaunches(parts, layout);
    const fits = takesRows(hiddenSize, ffnSize, headCount * headDim);
    this.#isFusedRow = parts.fusesRows && layout.capacity.rows === 1 && fits;
    const { layers, finalNorm } = parts.weights;
    this.body = [
      this.#embed(),
      ...layers.flatMap((layer, index) =>
        this.#isFusedRow
          ? this.#fusedLayer(layer, index)
          : [...this.#projectQkv(layer, index), ...this.#restOfLayer(layer, index)],
      ),
      ...(this.#isFusedRow ? [] : [this.#norm(finalNorm, parts.workspace.delta)]),
    ];
    this.probe = this.#probeOps();
    this.sampling = sampleOps(parts, layout);
  }

  /** Computes logits of the first `rows` rows of `normed`, or of the step's logit rows where those are others. */
  head(rows: number, allRows: boolean): Op[] {
    const { device, config, weights, workspace, staging } = this.#parts;
    const { hiddenSize, vocabSize } = config;
    if (this.#isFusedRow) return [this.#rows.product(this.#openRow(), weights.head, workspace.logits, "float32")];
    const input = allRows ? workspace.normed : workspace.headInput;
    const shape = { rows, outWidth: vocabSize, inWidth: hiddenSize, outputType: "float32" } as const;
    const operands = { input, weights: weights.head, output: workspace.logits };
    const product = productOp(device, shape, operands);
    if (allRows) return [product];
    const rowList = staging.list(this.layout.logitRows);
    const gather = device.prepare(
      "gather_rows",
      workspace.normed,
      rowList,
      staging.count("logitRows"),
      hiddenSize * 2,
      workspace.headInput,
    );
    return [(counts) => gather({ grid: [counts.logitRows], blockThreads, overlapsPrevious }), product];
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

  /** Adds delta to the residual stream and makes the next sublayer's input. */
  #norm(weight: DeviceBuffer, delta: DeviceBuffer | null): Op {
    const { device, config, workspace, staging } = this.#parts;
    const { hiddenSize, residualMultiplier, rmsNormEps } = config;
    const launch = device.prepare(
      "add_rmsnorm",
      workspace.residual,
      delta,
      residualMultiplier,
      weight,
      rmsNormEps,
      staging.count("rows"),
      hiddenSize,
      workspace.normed,
    );
    const threads = Math.min(1024, Math.ceil(hiddenSize / 8 / warpThreads) * warpThreads);
    return (counts) => launch({ grid: [counts.rows], blockThreads: threads, overlapsPrevious });
  }

  #product(input: DeviceBuffer, weights: DeviceBuffer, output: DeviceBuffer, inWidth: number): Op {
    const { rows } = this.layout.capacity;
    const outWidth = weights.byteLength / 2 / inWidth;
    const shape = { rows, outWidth, inWidth, outputType: "bfloat16" } as const;
    return productOp(this.#parts.device, shape, { input, weights, output });
  }

  #projectQkv(layer: LayerWeights, index: number): Op[] {
    const { config, workspace } = this.#parts;
    return [
      this.#norm(layer.inputNorm, index === 0 ? null : workspace.delta),
      this.#product(workspace.normed, layer.qkv, workspace.qkv, config.hiddenSize),
    ];
  }

  #restOfLayer(layer: LayerWeights, index: number): Op[] {
    const { config, workspace, pool, rope } = this.#parts;
    const { headCount, headDim, hiddenSize, ffnSize } = config;
    const kv = pool.layer(index);
    const rotations = config.rope.layers[index] ? rope.origin : null;
    return [
      this.#finishQkv(layer, kv, rotations),
      ...this.#attention.ofLayer(kv, rotations),
      this.#product(workspace.attended, layer.output, workspace.delta, headCount * headDim),
      this.#norm(layer.postAttentionNorm, workspace.delta),
      this.#product(workspace.normed, layer.gateUp, workspace.gateUp, hiddenSize),
      this.#activate(),
      this.#product(workspace.activated, layer.down, workspace.delta, ffnSize),
    ];
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

  #fusedLayer(layer: LayerWeights, index: number): Op[] {
    const { config, workspace, weights, pool, rope } = this.#parts;
    const { headCount, headDim, ffnSize, residualMultiplier: scale } = config;
    const rows = this.#rows;
    const kv = pool.layer(index);
    const rotations = config.rope.layers[index] ? rope.origin : null;
    const { residual, normed, squares, attended, activated } = workspace;
    const next = weights.layers[index + 1]?.inputNorm ?? weights.finalNorm;
    const target = { residual, scale, row: normed, squares };
    return [
      ...(index === 0
        ? this.#projectQkv(layer, 0)
        : [rows.product(this.#openRow(), layer.qkv, workspace.qkv, "bfloat16")]),
      this.#finishQkv(layer, kv, rotations),
      ...this.#attention.ofLayer(kv, rotations),
      rows.add(attended, headCount * headDim, layer.output, { ...target, norm: layer.postAttentionNorm }),
      rows.gated(this.#openRow(), layer.gateUp, activated),
      rows.add(activated, ffnSize, layer.down, { ...target, norm: next }),
    ];
  }

  #finishQkv(layer: LayerWeights, kv: DeviceBuffer, rotations: DeviceBuffer | null): Op {
    const { device, config, workspace } = this.#parts;
    const { qkvBias, qNorm, kNorm } = layer;
    const launch = device.prepare("qkv_finish", workspace.qkv, qkvBias, qNorm, kNorm, ...this.#heads(kv, rotations));
    const heads = config.headCount + 2 * config.kvHeadCount;
    return (counts) => launch({ grid: [counts.rows, Math.ceil(heads / 8)], blockThreads, overlapsPrevious });
  }

  /** What kernels that go through the heads of qkv take: from epsilon to pool. */
  #heads(kv: DeviceBuffer, rotations: DeviceBuffer | null) {
    const { config, staging, blockTokens } = this.#parts;
    const { headCount, kvHeadCount, headDim, rmsNormEps, rope } = config;
    const rows = [staging.list(this.layout.positions), staging.list(this.layout.slots), staging.count("rows")] as const;
    const rotaryDim = rotations === null ? 0 : rope.rotaryDim;
    return [rmsNormEps, rotations, ...rows, headCount, kvHeadCount, headDim, rotaryDim, blockTokens, kv] as const;
  }

  #activate(): Op {
    const { device, config, workspace, staging } = this.#parts;
    const { ffnSize } = config;
    const { gateUp, activated } = workspace;
    const launch = device.prepare("silu_mul", gateUp, staging.count("rows"), ffnSize, activated);
    const gridX = Math.ceil(ffnSize / 8 / blockThreads);
    return (counts) => launch({ grid: [gridX, counts.rows], blockThreads, overlapsPrevious });
  }

  #probeOps(): Op[] {
    const { config, weights, workspace, pool, rope, device } = this.#parts;
    const [first, second] = weights.layers;
    if (second === undefined) return [];
    const rotations = config.rope.layers[1] ? rope.origin : null;
    const { qkv, deviations } = workspace;
    const heads = this.#heads(pool.layer(1), rotations);
    const compare = device.prepare("deviations", qkv, second.qkvBias, second.kNorm, ...heads, deviations);
    return [
      this.#embed(),
      ...this.#projectQkv(first, 0),
      ...this.#restOfLayer(first, 0),
      ...this.#projectQkv(second, 1),
      (counts) => compare({ grid: [counts.rows], blockThreads }),
    ];
  }
}
