/**
 * A step as launches: what each layer puts into the stream, in order. Everything is prepared once for a number of rows
 * (a "bucket"): launches read how much of it a step uses from the device, so the same ones serve every step of the
 * bucket, one by one or recorded as a graph.
 *
 *   residual = embedding
 *   each layer   normed = norm(residual += delta);  qkv = normed Wqkv;  k, v to the pool;  attended = attention
 *                delta = attended Wo;  normed = norm(residual += delta);  delta = silu(gate) * up Wdown
 *   head         normed = norm(residual += delta);  logits = normed[logitRows] Whead
 */
import type { ModelConfig } from "../../model/config.ts";
import type { MatmulOperands } from "../../native/cuda/cublaslt.ts";
import { type AttentionOps, attentionLaunches } from "./attention.ts";
import type { ComputeDevice, DeviceBuffer, MatmulShape } from "./device.ts";
import type { DevicePool } from "./pool.ts";
import { type SampleAnswer, topStride } from "./sampling.ts";
import type { StepCounts, StepLayout, StepStaging } from "./staging.ts";
import type { DeviceWeights, LayerWeights } from "./weights.ts";
import type { WorkShape } from "./work-items.ts";
import type { RopeTable, Workspace } from "./workspace.ts";

/** Puts one launch or product into the stream, sized for a step's counts. */
export type Op = (counts: StepCounts) => void;

export interface ForwardParts {
  readonly device: ComputeDevice;
  readonly config: ModelConfig;
  readonly weights: DeviceWeights;
  readonly workspace: Workspace;
  readonly pool: DevicePool;
  readonly rope: RopeTable;
  readonly staging: StepStaging;
  readonly answer: SampleAnswer;
  readonly workShape: WorkShape;
  readonly blockTokens: number;
}

const blockThreads = 256;
const warpThreads = 32;

/** Of matvec.cu: a warp computes so many outputs, a block has so many threads. */
const matvec = { warpOutputs: 2, blockThreads: 128 } as const;

/** A product; of one row by our own kernel, which reads the weights at the rate of memory. */
function productOp(device: ComputeDevice, shape: MatmulShape, operands: MatmulOperands): Op {
  const { rows, inWidth, outWidth, outputType } = shape;
  if (rows > 1 || inWidth % 8 !== 0) return () => device.matmul(shape, operands);
  const name = outputType === "float32" ? "matvec_float" : "matvec";
  const launch = device.prepare(name, operands.input, operands.weights, inWidth, outWidth, operands.output);
  const blockOutputs = (matvec.blockThreads / warpThreads) * matvec.warpOutputs;
  const size = { grid: [Math.ceil(outWidth / blockOutputs)], blockThreads: matvec.blockThreads } as const;
  return () => launch(size);
}

/** The launches of steps of up to `layout.capacity.rows` rows. */
export class Forward {
  readonly layout: StepLayout;
  /** Through all layers, with the last norm: leaves `workspace.normed`. */
  readonly body: readonly Op[];
  /** Layer 0 and what layer 1 computes of K and V: leaves `workspace.deviations`. */
  readonly probe: readonly Op[];
  /** After the head: a token for each logit row, in `workspace.answer`. */
  readonly sampling: readonly Op[];
  private readonly parts: ForwardParts;
  private readonly attention: AttentionOps;

  constructor(parts: ForwardParts, layout: StepLayout) {
    this.parts = parts;
    this.layout = layout;
    this.attention = attentionLaunches(parts, layout);
    const { layers, finalNorm } = parts.weights;
    this.body = [
      this.embed(),
      ...layers.flatMap((layer, index) => [...this.projectQkv(layer, index), ...this.restOfLayer(layer, index)]),
      this.norm(finalNorm, parts.workspace.delta),
    ];
    this.probe = this.probeOps();
    this.sampling = this.sampleOps();
  }

  /** Logits of the first `rows` rows of `normed`, or of the step's logit rows where those are others. */
  head(rows: number, allRows: boolean): Op[] {
    const { device, config, weights, workspace, staging } = this.parts;
    const { hiddenSize, vocabSize } = config;
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
    return [(counts) => gather({ grid: [counts.logitRows], blockThreads }), product];
  }

  private sampleOps(): Op[] {
    const { device, config, workspace, staging, answer } = this.parts;
    const { logits, savedLogits } = workspace;
    const { vocabSize } = config;
    const rows = staging.list(this.layout.samples);
    const count = staging.count("logitRows");
    const list = (firstWord: number) => workspace.answer.slice(firstWord * 4);
    const ids = list(answer.ids);
    const draw = device.prepare("sample_rows", logits, vocabSize, rows, staging.list(0), savedLogits, count, ids);
    const report = device.prepare(
      "logprobs",
      logits,
      vocabSize,
      rows,
      ids,
      count,
      topStride,
      list(answer.chosen),
      list(answer.topIds),
      list(answer.topLogprobs),
    );
    return [draw, report].map(
      (launch) =>
        ({ logitRows }) =>
          launch({ grid: [logitRows], blockThreads: 1024 }),
    );
  }

  private embed(): Op {
    const { device, config, weights, workspace, staging } = this.parts;
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

  /** residual += delta, and the next sublayer's input of it. */
  private norm(weight: DeviceBuffer, delta: DeviceBuffer | null): Op {
    const { device, config, workspace, staging } = this.parts;
    const { hiddenSize, residualMultiplier, rmsNormEps } = config;
    const launch = device.prepare(
      "add_rmsnorm",
      workspace.residual,
      delta,
      null,
      residualMultiplier,
      weight,
      rmsNormEps,
      staging.count("rows"),
      hiddenSize,
      workspace.normed,
    );
    const threads = Math.min(1024, Math.ceil(hiddenSize / 8 / warpThreads) * warpThreads);
    return (counts) => launch({ grid: [counts.rows], blockThreads: threads });
  }

  private product(input: DeviceBuffer, weights: DeviceBuffer, output: DeviceBuffer, inWidth: number): Op {
    const { rows } = this.layout.capacity;
    const outWidth = weights.byteLength / 2 / inWidth;
    const shape = { rows, outWidth, inWidth, outputType: "bfloat16" } as const;
    return productOp(this.parts.device, shape, { input, weights, output });
  }

  private projectQkv(layer: LayerWeights, index: number): Op[] {
    const { config, workspace } = this.parts;
    return [
      this.norm(layer.inputNorm, index === 0 ? null : workspace.delta),
      this.product(workspace.normed, layer.qkv, workspace.qkv, config.hiddenSize),
    ];
  }

  private restOfLayer(layer: LayerWeights, index: number): Op[] {
    const { config, workspace, pool, rope } = this.parts;
    const { headCount, headDim, hiddenSize, ffnSize } = config;
    const kv = pool.layer(index);
    const turns = config.rope.layers[index] ? rope.origin : null;
    return [
      this.finishQkv(layer, kv, turns),
      ...this.attention.ofLayer(kv, turns),
      this.product(workspace.attended, layer.output, workspace.delta, headCount * headDim),
      this.norm(layer.postAttentionNorm, workspace.delta),
      this.product(workspace.normed, layer.gateUp, workspace.gateUp, hiddenSize),
      this.activate(),
      this.product(workspace.activated, layer.down, workspace.delta, ffnSize),
    ];
  }

  private finishQkv(layer: LayerWeights, kv: DeviceBuffer, turns: DeviceBuffer | null): Op {
    const { device, config, workspace, staging, blockTokens } = this.parts;
    const { headCount, kvHeadCount, headDim, rmsNormEps } = config;
    const launch = device.prepare(
      "qkv_finish",
      workspace.qkv,
      layer.qkvBias,
      layer.qNorm,
      layer.kNorm,
      rmsNormEps,
      turns,
      staging.list(this.layout.positions),
      staging.list(this.layout.slots),
      staging.count("rows"),
      headCount,
      kvHeadCount,
      headDim,
      turns === null ? 0 : config.rope.rotaryDim,
      blockTokens,
      kv,
    );
    const heads = headCount + 2 * kvHeadCount;
    return (counts) => launch({ grid: [counts.rows, Math.ceil(heads / 8)], blockThreads });
  }

  private activate(): Op {
    const { device, config, workspace, staging } = this.parts;
    const { ffnSize } = config;
    const { gateUp, activated } = workspace;
    const launch = device.prepare("silu_mul", gateUp, staging.count("rows"), ffnSize, activated);
    return (counts) => launch({ grid: [Math.ceil(ffnSize / 8 / blockThreads), counts.rows], blockThreads });
  }

  private probeOps(): Op[] {
    const { config, weights, workspace, pool, rope, device, staging, blockTokens } = this.parts;
    const [first, second] = weights.layers;
    if (second === undefined) return [];
    const turns = config.rope.layers[1] ? rope.origin : null;
    const compare = device.prepare(
      "deviations",
      workspace.qkv,
      second.qkvBias,
      second.kNorm,
      config.rmsNormEps,
      turns,
      staging.list(this.layout.positions),
      staging.list(this.layout.slots),
      staging.count("rows"),
      config.headCount,
      config.kvHeadCount,
      config.headDim,
      turns === null ? 0 : config.rope.rotaryDim,
      blockTokens,
      pool.layer(1),
      workspace.deviations,
    );
    return [
      this.embed(),
      ...this.projectQkv(first, 0),
      ...this.restOfLayer(first, 0),
      ...this.projectQkv(second, 1),
      (counts) => compare({ grid: [counts.rows], blockThreads }),
    ];
  }
}
