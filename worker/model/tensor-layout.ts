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
 *                    as mlp.experts.E.…
 */
import type { ModelConfig } from "./config.ts";
import type { Experts } from "./experts.ts";
import type { LayerNorms } from "./family.ts";

export interface TensorPlace {
  readonly shape: readonly number[];
  /** Name in the files. The logical tensor is its rows from `firstRow` on. */
  readonly stored: string;
  readonly firstRow: number;
  /** Set where the rows of each head are stored in another order. */
  readonly pairedRows?: PairedRows;
  /** Set where the logical tensor is what is stored and 1 more. */
  readonly addsOne?: boolean;
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
      layout.set(prefix + name, { ...place, stored: prefix + place.stored });
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
function expertLayout({ count, ffnSize, names }: Experts, hiddenSize: number): TensorLayout {
  const layout = new Map<string, TensorPlace>();
  const add = (name: string, stored: string, ...shape: number[]) =>
    layout.set(`${name}.weight`, { shape, stored: `${stored}.weight`, firstRow: 0 });
  add("mlp.router", names.router, count, hiddenSize);
  for (let expert = 0; expert < count; expert++) {
    const stored = (name: string) => name.replace("N", String(expert));
    add(`mlp.experts.${expert}.gate_proj`, stored(names.gate), ffnSize, hiddenSize);
    add(`mlp.experts.${expert}.up_proj`, stored(names.up), ffnSize, hiddenSize);
    add(`mlp.experts.${expert}.down_proj`, stored(names.down), hiddenSize, ffnSize);
  }
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

/** Names and shapes of the tensors in the files. */
export function storedShapes(layout: TensorLayout): Map<string, readonly number[]> {
  const shapes = new Map<string, readonly number[]>();
  for (const { stored, firstRow, shape } of layout.values()) {
    const [rows, ...rest] = shape;
    shapes.set(stored, [Math.max(firstRow + rows, shapes.get(stored)?.[0] ?? 0), ...rest]);
  }
  return shapes;
}
