/**
 * The logical tensors of a model, the same for every architecture, and where each is stored. Logical names are those
 * of an unfused Llama in the Hugging Face layout; a linear layer is [out, in], as torch stores it.
 *
 *   model.embed_tokens.weight [vocab, hidden]   model.norm.weight [hidden]   lm_head.weight [vocab, hidden], if untied
 *   model.layers.N.  input_layernorm.weight, post_attention_layernorm.weight: before attention, before the MLP   [hidden]
 *                    attention_output_norm.weight, mlp_output_norm.weight: over what either adds to the residual stream
 *                    self_attn.{q,k,v}_proj.weight [heads * headDim, hidden], .bias [heads * headDim] with qkvBias
 *                    self_attn.{q,k}_norm.weight [headDim], with qkNorm "head"; "projection": [heads * headDim]
 *                    self_attn.o_proj.weight [hidden, heads * headDim]
 *                    mlp.{gate,up}_proj.weight [ffn, hidden]   mlp.down_proj.weight [hidden, ffn]
 *                    or, in a layer with experts, mlp.router.weight [experts, hidden] and the same three of each expert E
 *                    as mlp.experts.E.…, with .bias [experts], [ffn], [ffn] and [hidden] where the family has them
 *                    self_attn.o_proj.bias [hidden] with outputBias   self_attn.sinks [heads] with sinks
 */
import type { ModelConfig } from "./config.ts";
import type { Experts } from "./experts.ts";
import type { LayerNorms, StackedExperts } from "./family.ts";
import { mxfp4BlockBytes, mxfp4Group } from "./quantization.ts";

export interface TensorPlace {
  readonly shape: readonly number[];
  /** Name in the files. The logical tensor is its rows from `firstRow` on. */
  readonly stored: string;
  readonly firstRow: number;
  /** Set where the rows of each head are stored in another order. */
  readonly pairedRows?: PairedRows;
  /** Set where the logical tensor is what is stored and 1 more. */
  readonly addsOne?: boolean;
  /** Set where it is stored together with those of other experts. */
  readonly stack?: Stack;
}

/**
 * A tensor of each expert, stored as one: [experts, rows, columns], or without columns for biases. The logical tensor is
 * some of the rows of its expert: from the place's `firstRow` on.
 */
export interface Stack {
  readonly expert: number;
  readonly experts: number;
  /** The rows and columns of one expert, as stored. */
  readonly rows: number;
  readonly columns: number | undefined;
  readonly firstRow: number;
  /** 2: every other row, as gates and ups alternate in gpt-oss. */
  readonly step: 1 | 2;
  /** Stored as [experts, columns, rows]. */
  readonly transposed: boolean;
  /** Stored as blocks of MXFP4, [experts, rows, columns / 32, 16] bytes, whose scales have this name. */
  readonly mxfp4Scales?: string;
}

/**
 * The rows are heads of `headDim`. Among the first `rotaryDim` rows of a head, the two that RoPE rotates together are
 * stored side by side, as (2i, 2i + 1); the logical tensor has them at (i, i + rotaryDim / 2). A score is a sum over
 * the head's dimensions, so q and k give the same score in any order that both share.
 */
export interface PairedRows {
  readonly headDim: number;
  readonly rotaryDim: number;
}

/** Where each tensor is stored, by logical name. */
export type TensorLayout = ReadonlyMap<string, TensorPlace>;

export function tensorLayout(config: ModelConfig): TensorLayout {
  const layout = plainLayout(config);
  if (!config.normsAddOne) return layout;
  const isNorm = (name: string) => /norm\.weight$/.test(name);
  return new Map([...layout].map(([name, place]) => [name, isNorm(name) ? { ...place, addsOne: true } : place]));
}

function plainLayout(config: ModelConfig): TensorLayout {
  const layout = new Map<string, TensorPlace>();
  const add = (name: string, ...shape: number[]) => layout.set(name, { shape, stored: name, firstRow: 0 });
  add("model.embed_tokens.weight", config.vocabSize, config.hiddenSize);
  add("model.norm.weight", config.hiddenSize);
  if (!config.tiedEmbeddings) add("lm_head.weight", config.vocabSize, config.hiddenSize);
  for (let layer = 0; layer < config.layerCount; layer++) {
    for (const [name, place] of layerLayout(config, layer)) {
      const prefix = `model.layers.${layer}.`;
      const { stack } = place;
      const scales = stack?.mxfp4Scales && { stack: { ...stack, mxfp4Scales: prefix + stack.mxfp4Scales } };
      layout.set(prefix + name, { ...place, stored: prefix + place.stored, ...scales });
    }
  }
  return layout;
}

/** Logical names of a layer's norms, by their places. */
const logicalNorms = {
  beforeAttention: "input_layernorm",
  afterAttention: "attention_output_norm",
  beforeMlp: "post_attention_layernorm",
  afterMlp: "mlp_output_norm",
} as const satisfies Record<keyof LayerNorms, string>;

/** The logical name of a layer's norm, without `.weight`. */
export const layerNorm = (layer: number, place: keyof LayerNorms): string =>
  `model.layers.${layer}.${logicalNorms[place]}`;

function layerLayout(config: ModelConfig, layer: number): TensorLayout {
  const { hiddenSize, ffnSize, headDim, fusedQkv, fusedGateUp } = config;
  const layout = new Map<string, TensorPlace>();
  const add = (name: string, ...shape: number[]) => layout.set(name, { shape, stored: name, firstRow: 0 });
  /** Linear layers with the same input; an architecture that fuses them stores them as one tensor, in this order. */
  const addGroup = (fused: string | undefined, members: readonly (readonly [name: string, rows: number])[]) => {
    let firstRow = 0;
    for (const [name, rows] of members) {
      const place = fused === undefined ? { stored: name, firstRow: 0 } : { stored: fused, firstRow };
      layout.set(name, { shape: [rows, hiddenSize], ...place });
      firstRow += rows;
    }
  };
  const qSize = config.headCount * headDim;
  const kvSize = config.kvHeadCount * headDim;
  for (const [place, logical] of Object.entries(logicalNorms)) {
    const stored = config.layerNorms[place as keyof LayerNorms];
    if (stored === undefined) continue;
    layout.set(`${logical}.weight`, { shape: [hiddenSize], stored: `${stored}.weight`, firstRow: 0 });
  }
  addGroup(fusedQkv ? "self_attn.qkv_proj.weight" : undefined, [
    ["self_attn.q_proj.weight", qSize],
    ["self_attn.k_proj.weight", kvSize],
    ["self_attn.v_proj.weight", kvSize],
  ]);
  if (config.qkvBias) {
    add("self_attn.q_proj.bias", qSize);
    add("self_attn.k_proj.bias", kvSize);
    add("self_attn.v_proj.bias", kvSize);
  }
  if (config.qkNorm !== undefined) {
    add("self_attn.q_norm.weight", config.qkNorm === "head" ? headDim : qSize);
    add("self_attn.k_norm.weight", config.qkNorm === "head" ? headDim : kvSize);
  }
  add("self_attn.o_proj.weight", hiddenSize, qSize);
  if (config.outputBias) add("self_attn.o_proj.bias", hiddenSize);
  if (config.sinks) add("self_attn.sinks", config.headCount);
  if (config.experts?.layers[layer]) {
    for (const [name, place] of expertLayout(config.experts, hiddenSize)) layout.set(name, place);
  } else {
    addGroup(fusedGateUp ? "mlp.gate_up_proj.weight" : undefined, [
      ["mlp.gate_proj.weight", ffnSize],
      ["mlp.up_proj.weight", ffnSize],
    ]);
    add("mlp.down_proj.weight", hiddenSize, ffnSize);
  }
  return config.interleavedRope ? withPairedRows(layout, { headDim, rotaryDim: config.rope.rotaryDim }) : layout;
}

/** The router and the experts of a layer. */
function expertLayout(experts: Experts, hiddenSize: number): TensorLayout {
  const { count, ffnSize, family } = experts;
  const { router, stored, biases } = family;
  const layout = new Map<string, TensorPlace>();
  const add = (name: string, storedName: string, ...shape: number[]) =>
    layout.set(name, { shape, stored: storedName, firstRow: 0 });
  add("mlp.router.weight", `${router}.weight`, count, hiddenSize);
  if (biases) add("mlp.router.bias", `${router}.bias`, count);
  for (let expert = 0; expert < count; expert++) {
    const prefix = `mlp.experts.${expert}.`;
    if ("alternating" in stored) {
      for (const [name, place] of stackedLayout(experts, stored, hiddenSize, expert)) layout.set(prefix + name, place);
      continue;
    }
    const named = (name: string) => `${name.replace("N", String(expert))}.weight`;
    add(`${prefix}gate_proj.weight`, named(stored.gate), ffnSize, hiddenSize);
    add(`${prefix}up_proj.weight`, named(stored.up), ffnSize, hiddenSize);
    add(`${prefix}down_proj.weight`, named(stored.down), hiddenSize, ffnSize);
  }
  return layout;
}

/** One expert of those that are stored as one tensor. */
function stackedLayout(
  { count, ffnSize, family, mxfp4 }: Experts,
  { gateUp, down, alternating }: StackedExperts,
  hiddenSize: number,
  expert: number,
): TensorLayout {
  const layout = new Map<string, TensorPlace>();
  const add = (
    name: string,
    stored: string,
    rows: number,
    columns: number,
    of: Pick<Stack, "rows" | "firstRow" | "step">,
  ) => {
    const all = { expert, experts: count, ...of };
    const whole = mxfp4 ? { mxfp4Scales: `${stored}_scales`, transposed: false } : { transposed: alternating };
    const place = { stored: mxfp4 ? `${stored}_blocks` : stored, firstRow: 0 };
    layout.set(`${name}.weight`, { shape: [rows, columns], ...place, stack: { ...all, columns, ...whole } });
    if (!family.biases) return;
    const bias = { ...all, columns: undefined, transposed: false };
    layout.set(`${name}.bias`, { shape: [rows], stored: `${stored}_bias`, firstRow: 0, stack: bias });
  };
  const half = { rows: 2 * ffnSize, step: alternating ? 2 : 1 } as const;
  add("gate_proj", gateUp, ffnSize, hiddenSize, { ...half, firstRow: 0 });
  add("up_proj", gateUp, ffnSize, hiddenSize, { ...half, firstRow: alternating ? 1 : ffnSize });
  add("down_proj", down, hiddenSize, ffnSize, { rows: hiddenSize, firstRow: 0, step: 1 });
  return layout;
}

/** The tensors that produce q and k: their projections, biases and norms. */
const queryOrKey = /^self_attn\.[qk]_(proj|norm)\./;

function withPairedRows(layout: TensorLayout, pairedRows: PairedRows): TensorLayout {
  return new Map([...layout].map(([name, place]) => [name, queryOrKey.test(name) ? { ...place, pairedRows } : place]));
}

/** The row of the stored tensor that holds row `row` of the logical tensor. */
function storedRow(row: number, { headDim, rotaryDim }: PairedRows): number {
  const half = rotaryDim / 2;
  const dimension = row % headDim;
  if (dimension >= rotaryDim) return row;
  return row - dimension + (dimension < half ? 2 * dimension : 2 * (dimension - half) + 1);
}

/**
 * Copies whole heads from the stored to the logical order. @param out of the same length, in other memory
 */
export function unpairRows<T extends Float32Array | Uint16Array>(
  stored: T,
  width: number,
  rows: PairedRows,
  out: T,
): T {
  for (let row = 0; row * width < stored.length; row++) {
    const from = storedRow(row, rows) * width;
    out.set(stored.subarray(from, from + width), row * width);
  }
  return out;
}

/** A tensor's rows, in float32, of those of its expert. */
export function rowsOfStack(values: Float32Array, shape: readonly number[], stack: Stack): Float32Array {
  const { rows, columns = 1, firstRow, step, transposed } = stack;
  if (firstRow === 0 && shape[0] === rows && !transposed) return values;
  if (step === 1 && !transposed) return values.subarray(firstRow * columns, (firstRow + shape[0]) * columns);
  const [rowStride, columnStride] = transposed ? [1, rows] : [columns, 1];
  const out = new Float32Array(shape[0] * columns);
  for (let row = 0; row < shape[0]; row++) {
    const from = (firstRow + row * step) * rowStride;
    for (let column = 0; column < columns; column++) out[row * columns + column] = values[from + column * columnStride];
  }
  return out;
}

/** Of a tensor of all experts, and of its scales. */
function stackShapes(stored: string, stack: Stack): [string, readonly number[]][] {
  const { experts, rows, columns, transposed, mxfp4Scales } = stack;
  if (columns === undefined) return [[stored, [experts, rows]]];
  if (mxfp4Scales === undefined) return [[stored, transposed ? [experts, columns, rows] : [experts, rows, columns]]];
  const scales = [experts, rows, columns / mxfp4Group];
  return [
    [stored, [...scales, mxfp4BlockBytes]],
    [mxfp4Scales, scales],
  ];
}

/** Names and shapes of the tensors in the files. */
export function storedShapes(layout: TensorLayout): Map<string, readonly number[]> {
  const shapes = new Map<string, readonly number[]>();
  for (const { stored, firstRow, shape, stack } of layout.values()) {
    if (stack) {
      for (const [name, whole] of stackShapes(stored, stack)) shapes.set(name, whole);
      continue;
    }
    const [rows, ...rest] = shape;
    shapes.set(stored, [Math.max(firstRow + rows, shapes.get(stored)?.[0] ?? 0), ...rest]);
  }
  return shapes;
}
