/**
 * A sentence-embedding model small enough to be written by hand: last_hidden_state is a row of a table for each
 * token (one Gather), in a folder as sentence-transformers lays it out. ONNX files are protocol buffers.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

type Field = readonly [number: number, value: number | string | Uint8Array | readonly Field[]];

function varint(value: number): number[] {
  const bytes: number[] = [];
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return [...bytes, rest];
    bytes.push((rest % 128) + 128);
  }
}

function encode(fields: readonly Field[]): Uint8Array {
  const parts = fields.flatMap(([number, value]) => {
    if (typeof value === "number") return [Uint8Array.from([...varint(number * 8), ...varint(value)])];
    const bytes =
      typeof value === "string" ? new TextEncoder().encode(value) : value instanceof Uint8Array ? value : encode(value);
    return [Uint8Array.from([...varint(number * 8 + 2), ...varint(bytes.length)]), bytes];
  });
  return new Uint8Array(Buffer.concat(parts));
}

const float32 = 1;
const int64 = 7;

/** A ValueInfoProto: a name, an element type and named dimensions. */
function valueInfo(name: string, elementType: number, dimensions: readonly string[]): readonly Field[] {
  const shape: Field[] = dimensions.map((dimension) => [1, [[2, dimension]]]);
  const tensor: readonly Field[] = [
    [1, elementType],
    [2, shape],
  ];
  return [
    [1, name],
    [2, [[1, tensor]]],
  ];
}

/** @param table one row for each token id */
function tinyOnnx(table: readonly (readonly number[])[]): Uint8Array {
  const raw = new Uint8Array(Float32Array.from(table.flat()).buffer);
  const weights: readonly Field[] = [
    [1, table.length],
    [1, table[0]?.length ?? 0],
    [2, float32],
    [8, "table"],
    [9, raw],
  ];
  const gather: readonly Field[] = [
    [1, "table"],
    [1, "input_ids"],
    [2, "last_hidden_state"],
    [4, "Gather"],
  ];
  const graph: readonly Field[] = [
    [1, gather],
    [2, "tiny"],
    [5, weights],
    [11, valueInfo("input_ids", int64, ["batch", "sequence"])],
    [11, valueInfo("attention_mask", int64, ["batch", "sequence"])],
    [12, valueInfo("last_hidden_state", float32, ["batch", "sequence", "width"])],
  ];
  return encode([
    [1, 8],
    [7, graph],
    [8, [[2, 13]]],
  ]);
}

/** Ids: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, then the words. Special tokens' rows are zeros. */
export function writeTinyEmbeddingModel(folder: string, words: Readonly<Record<string, readonly number[]>>): void {
  const width = Object.values(words)[0]?.length ?? 0;
  const special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
  const tokens = [...special, ...Object.keys(words)];
  const zeros = Array.from({ length: width }, () => 0);
  const table = tokens.map((token) => words[token] ?? zeros);
  const idOf = (token: string) => tokens.indexOf(token);
  const added = special.map((content, id) => ({ id, content, special: true, lstrip: false, rstrip: false }));
  const template = [{ SpecialToken: { id: "[CLS]", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }];
  const single = [...template, { SpecialToken: { id: "[SEP]", type_id: 0 } }];
  const tokenizer = {
    version: "1.0",
    added_tokens: added,
    normalizer: { type: "Lowercase" },
    pre_tokenizer: { type: "BertPreTokenizer" },
    post_processor: {
      type: "TemplateProcessing",
      single,
      pair: single,
      special_tokens: {
        "[CLS]": { id: "[CLS]", ids: [idOf("[CLS]")], tokens: ["[CLS]"] },
        "[SEP]": { id: "[SEP]", ids: [idOf("[SEP]")], tokens: ["[SEP]"] },
      },
    },
    decoder: { type: "WordPiece", prefix: "##", cleanup: true },
    model: {
      type: "WordPiece",
      unk_token: "[UNK]",
      continuing_subword_prefix: "##",
      max_input_chars_per_word: 100,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
    },
  };
  mkdirSync(folder, { recursive: true });
  const write = (name: string, value: unknown) => writeFileSync(join(folder, name), JSON.stringify(value));
  writeFileSync(join(folder, "model.onnx"), tinyOnnx(table));
  write("tokenizer.json", tokenizer);
  write("tokenizer_config.json", {});
  write("config.json", { vocab_size: tokens.length, max_position_embeddings: 16 });
}
