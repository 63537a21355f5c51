/** A Qwen3 checkpoint of random weights in the Hugging Face layout: a shape to time, nothing that speaks. */
import { closeSync, openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

export interface RandomShape {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly ffn: number;
  readonly vocab: number;
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

/** Name -> shape of every tensor, in the order of the file. */
function tensorShapes({ layers, hidden, heads, kvHeads, headDim, ffn, vocab }: RandomShape): Map<string, number[]> {
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
    add("mlp.gate_proj", [ffn, hidden]);
    add("mlp.up_proj", [ffn, hidden]);
    add("mlp.down_proj", [hidden, ffn]);
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
  const config = {
    architectures: ["Qwen3ForCausalLM"],
    model_type: "qwen3",
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
