/**
 * A Qwen3 checkpoint of random weights in the Hugging Face layout, dense or with experts: a shape to time, nothing that
 * speaks.
 */
import { closeSync, openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

export interface RandomShape {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Of an MLP, or of an expert. */
  readonly ffn: number;
  readonly vocab: number;
  /** Layers have so many experts, of which a row takes some. */
  readonly experts?: { readonly count: number; readonly perToken: number };
}

/** About the shape of Qwen3-0.6B, with a smaller vocabulary. */
export const qwen3Shape: RandomShape = {
  layers: 28,
  hidden: 1_024,
  heads: 16,
  kvHeads: 8,
  headDim: 128,
  ffn: 3_072,
  vocab: 32_000,
};

/** Qwen3-30B-A3B made small: 1.5 billion weights, of which a token reads 0.3. */
export const expertShape: RandomShape = {
  layers: 20,
  hidden: 1_024,
  heads: 16,
  kvHeads: 8,
  headDim: 64,
  ffn: 512,
  vocab: 32_000,
  experts: { count: 46, perToken: 6 },
};

/** Name -> shape of every tensor, in the order of the file. */
function tensorShapes(shape: RandomShape): Map<string, number[]> {
  const { layers, hidden, heads, kvHeads, headDim, ffn, vocab, experts } = shape;
  const shapes = new Map<string, number[]>([["model.embed_tokens.weight", [vocab, hidden]]]);
  for (let layer = 0; layer < layers; layer++) {
    const prefix = `model.layers.${layer}.`;
    const add = (name: string, shape: number[]) => shapes.set(`${prefix}${name}.weight`, shape);
    add("input_layernorm", [hidden]);
    add("self_attn.q_proj", [heads * headDim, hidden]);
    add("self_attn.k_proj", [kvHeads * headDim, hidden]);
    add("self_attn.v_proj", [kvHeads * headDim, hidden]);
    add("self_attn.o_proj", [hidden, heads * headDim]);
    add("self_attn.q_norm", [headDim]);
    add("self_attn.k_norm", [headDim]);
    add("post_attention_layernorm", [hidden]);
    if (experts !== undefined) add("mlp.gate", [experts.count, hidden]);
    const mlps = experts === undefined ? ["mlp"] : Array.from({ length: experts.count }, (_, i) => `mlp.experts.${i}`);
    for (const mlp of mlps) {
      add(`${mlp}.gate_proj`, [ffn, hidden]);
      add(`${mlp}.up_proj`, [ffn, hidden]);
      add(`${mlp}.down_proj`, [hidden, ffn]);
    }
  }
  return shapes.set("model.norm.weight", [hidden]);
}

/** bfloat16 bits of 65,536 normal deviates of standard deviation 0.02 (Box and Muller), from a fixed seed. */
function normalTable(): Uint16Array {
  const table = new Float32Array(65_536);
  let state = 12_345;
  const uniform = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state + 1) / 2 ** 32;
  };
  for (let i = 0; i < table.length; i++) {
    table[i] = 0.02 * Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  }
  return new Uint16Array(table.buffer).filter((_, index) => index % 2 === 1);
}

/** Writes config.json, tokenizer.json and model.safetensors (bfloat16) into an existing folder. */
export function writeRandomModel(folder: string, shape: RandomShape): void {
  const { experts } = shape;
  const config = {
    architectures: [experts === undefined ? "Qwen3ForCausalLM" : "Qwen3MoeForCausalLM"],
    model_type: experts === undefined ? "qwen3" : "qwen3_moe",
    ...(experts && {
      num_experts: experts.count,
      num_experts_per_tok: experts.perToken,
      moe_intermediate_size: shape.ffn,
      norm_topk_prob: true,
    }),
    num_hidden_layers: shape.layers,
    hidden_size: shape.hidden,
    num_attention_heads: shape.heads,
    num_key_value_heads: shape.kvHeads,
    head_dim: shape.headDim,
    intermediate_size: shape.ffn,
    vocab_size: shape.vocab,
    max_position_embeddings: 40_960,
    rms_norm_eps: 1e-6,
    rope_theta: 1e6,
    tie_word_embeddings: true,
    hidden_act: "silu",
    torch_dtype: "bfloat16",
    eos_token_id: 1,
  };
  const vocab = Object.fromEntries(Array.from({ length: shape.vocab }, (_, id) => [`<t${id}>`, id]));
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify({ model: { type: "BPE", vocab, merges: [] } }));
  writeTensors(join(folder, "model.safetensors"), tensorShapes(shape));
}

function writeTensors(path: string, shapes: ReadonlyMap<string, readonly number[]>): void {
  const header: Record<string, object> = {};
  let offset = 0;
  for (const [name, shape] of shapes) {
    const bytes = 2 * shape.reduce((product, size) => product * size, 1);
    header[name] = { dtype: "BF16", shape, data_offsets: [offset, offset + bytes] };
    offset += bytes;
  }
  const text = JSON.stringify(header);
  const headerBytes = Buffer.from(text + " ".repeat((8 - (text.length % 8)) % 8));
  const lengthBytes = Buffer.alloc(8);
  lengthBytes.writeBigUInt64LE(BigInt(headerBytes.length));
  const file = openSync(path, "w");
  try {
    writeSync(file, lengthBytes);
    writeSync(file, headerBytes);
    const normals = normalTable();
    let state = 1;
    for (const [name, shape] of shapes) {
      const values = new Uint16Array(shape.reduce((product, size) => product * size, 1));
      if (name.includes("norm")) values.fill(0x3f80);
      else {
        for (let i = 0; i < values.length; i++) {
          state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
          values[i] = normals[state >>> 16] ?? 0;
        }
      }
      writeSync(file, values);
    }
  } finally {
    closeSync(file);
  }
}
