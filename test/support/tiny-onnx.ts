/**
 * Models small enough to be written by hand, in folders as sentence-transformers lays them out: one for embeddings, whose
 * last_hidden_state is a row of a table for each token, and a cross-encoder, whose logit is the product of the sums of
 * both texts' rows. ONNX files are protocol buffers.
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

/** A NodeProto. @param attribute name and value of its one attribute, a whole number */
function node(
  operation: string,
  inputs: readonly string[],
  output: string,
  attribute?: readonly [string, number],
): Field {
  const [name = "", value = 0] = attribute ?? [];
  const whole = 2;
  const fields: readonly Field[] = [
    [1, name],
    [3, value],
    [20, whole],
  ];
  return [
    1,
    [
      ...inputs.map((input): Field => [1, input]),
      [2, output],
      [4, operation],
      ...(attribute ? [[5, fields] as Field] : []),
    ],
  ];
}

/** A TensorProto: a constant of the graph. */
const constant = (name: string, elementType: number, dims: readonly number[], values: Uint8Array): Field => [
  5,
  [...dims.map((dim): Field => [1, dim]), [2, elementType], [8, name], [9, values]],
];

const tableOf = (table: readonly (readonly number[])[]): Field => {
  const values = new Uint8Array(Float32Array.from(table.flat()).buffer);
  return constant("table", float32, [table.length, table[0]?.length ?? 0], values);
};

const tokenInput = (name: string): Field => [11, valueInfo(name, int64, ["batch", "sequence"])];

const modelOf = (graph: readonly Field[]): Uint8Array =>
  encode([
    [1, 8],
    [7, [[2, "tiny"], ...graph]],
    [8, [[2, 13]]],
  ]);

/** @param table one row for each token id */
function tinyOnnx(table: readonly (readonly number[])[]): Uint8Array {
  return modelOf([
    node("Gather", ["table", "input_ids"], "last_hidden_state"),
    tableOf(table),
    tokenInput("input_ids"),
    tokenInput("attention_mask"),
    [12, valueInfo("last_hidden_state", float32, ["batch", "sequence", "width"])],
  ]);
}

/** @param columns 1: one logit for each pair; more: as many, as a classifier of several classes has */
function tinyCrossEncoder(table: readonly (readonly number[])[], bias: number, columns: number): Uint8Array {
  const axis = (at: number) => new Uint8Array(BigInt64Array.of(BigInt(at)).buffer);
  const sumOf = (part: string): readonly Field[] => [
    node("Unsqueeze", [part, "axis2"], `${part}Column`),
    node("Mul", ["rows", `${part}Column`], `${part}Rows`),
    node("ReduceSum", [`${part}Rows`, "axis1"], `${part}Sum`, ["keepdims", 0]),
  ];
  return modelOf([
    node("Gather", ["table", "input_ids"], "rows"),
    node("Cast", ["attention_mask"], "mask", ["to", float32]),
    node("Cast", ["token_type_ids"], "types", ["to", float32]),
    node("Mul", ["mask", "types"], "second"),
    node("Sub", ["mask", "second"], "first"),
    ...sumOf("first"),
    ...sumOf("second"),
    node("Mul", ["firstSum", "secondSum"], "products"),
    node("ReduceSum", ["products", "axis1"], "product", ["keepdims", 1]),
    node("Add", ["product", "bias"], "logits"),
    tableOf(table),
    constant("axis1", int64, [1], axis(1)),
    constant("axis2", int64, [1], axis(2)),
    constant("bias", float32, [columns], new Uint8Array(new Float32Array(columns).fill(bias).buffer)),
    ...["input_ids", "attention_mask", "token_type_ids"].map(tokenInput),
    [12, valueInfo("logits", float32, ["batch", "label"])],
  ]);
}

type Words = Readonly<Record<string, readonly number[]>>;

/** Special tokens' rows are zeros. */
export const writeTinyEmbeddingModel = (folder: string, words: Words): void => writeTinyModel(folder, words, tinyOnnx);

/** The logit of a pair is the product of its texts' sums, plus the bias. */
export const writeTinyCrossEncoder = (
  folder: string,
  words: Words,
  { bias = 0, columns = 1 }: { readonly bias?: number; readonly columns?: number } = {},
): void => writeTinyModel(folder, words, (table) => tinyCrossEncoder(table, bias, columns));

/** Ids: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, then the words. */
function writeTinyModel(
  folder: string,
  words: Words,
  onnxOf: (table: readonly (readonly number[])[]) => Uint8Array,
): void {
  const width = Object.values(words)[0]?.length ?? 0;
  const special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
  const tokens = [...special, ...Object.keys(words)];
  const zeros = Array.from({ length: width }, () => 0);
  const table = tokens.map((token) => words[token] ?? zeros);
  const idOf = (token: string) => tokens.indexOf(token);
  const added = special.map((content, id) => ({ id, content, special: true, lstrip: false, rstrip: false }));
  const template = [{ SpecialToken: { id: "[CLS]", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }];
  const single = [...template, { SpecialToken: { id: "[SEP]", type_id: 0 } }];
  const second = [{ Sequence: { id: "B", type_id: 1 } }, { SpecialToken: { id: "[SEP]", type_id: 1 } }];
  const tokenizer = {
    version: "1.0",
    added_tokens: added,
    normalizer: { type: "Lowercase" },
    pre_tokenizer: { type: "BertPreTokenizer" },
    post_processor: {
      type: "TemplateProcessing",
      single,
      pair: [...single, ...second],
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
  writeFileSync(join(folder, "model.onnx"), onnxOf(table));
  write("tokenizer.json", tokenizer);
  write("tokenizer_config.json", {});
  write("config.json", { vocab_size: tokens.length, max_position_embeddings: 16 });
}
