/** Encodes texts as the embedding model expects them. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { streamSafe } from "../base/stream-safe.ts";
import { LongWords } from "../text/long-words.ts";
import { encodedInSlices, joined, sliceChars, sliceProbe, sliceText, yieldAfter } from "../text/text-slices.ts";
import type { TextTokenizer } from "../text/tokenizer.ts";

/**
 * "query": a text that searches; "document": a text that is found. Some models are trained with a different prompt for
 * each.
 */
export type EmbeddingRole = "query" | "document" | "plain";

export interface EmbeddingText {
  /**
   * The tokens of a text with the model's special tokens. Long texts are encoded in slices, between which other work
   * runs. When `maxTokens` is given, the end of a longer text is left out, and most of that end is not even read.
   */
  encode(text: string, role: EmbeddingRole, maxTokens?: number): Promise<Int32Array>;
}

/**
 * Encodes for the loaded language model, as plain tokens. A space is put before the text, so that its first word has
 * the same tokens as in the middle of a text.
 */
export function plainEmbeddingText(tokenizer: TextTokenizer): EmbeddingText {
  return {
    encode: (text, _role, maxTokens) => tokenizer.encodeInSlices(` ${text}`, maxTokens),
  };
}

/**
 * Encodes for the sentence-embedding model of a folder, with its tokenizer.json and the prompts of
 * config_sentence_transformers.json.
 * @throws Error naming the file
 */
export function readEmbeddingText(folder: string): EmbeddingText {
  const json = readJson(join(folder, "tokenizer.json"));
  if (json === undefined) throw new Error(`${join(folder, "tokenizer.json")}: no such file`);
  const tokenizer = new Tokenizer(json, readJson(join(folder, "tokenizer_config.json")) ?? {});
  const own = (readJson(join(folder, "config_sentence_transformers.json")) as { prompts?: unknown } | undefined)
    ?.prompts;
  const prompts = new Map(Object.entries(typeof own === "object" && own !== null ? own : {}));
  const promptOf = (...names: string[]): string => {
    const prompt = names.map((name) => prompts.get(name)).find((found) => typeof found === "string");
    return typeof prompt === "string" ? prompt : "";
  };
  const byRole = { query: promptOf("query"), document: promptOf("document", "passage"), plain: "" };
  const encoder = new SpecialTokenEncoder(tokenizer);
  return { encode: (text, role, maxTokens) => encoder.encode(byRole[role] + text, maxTokens) };
}

/**
 * Encodes texts with the special tokens that a model puts around every text. Long texts are encoded in slices if that
 * gives the same tokens.
 */
class SpecialTokenEncoder {
  readonly #tokenizer: Tokenizer;
  readonly #longWords: LongWords;
  readonly #unyielded = { chars: 0 };
  /** The special tokens before and after a text; undefined: texts cannot be encoded in slices with the same result. */
  readonly #around: { readonly before: Int32Array; readonly after: Int32Array } | undefined;

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer;
    this.#longWords = new LongWords(tokenizer);
    this.#around = this.#findAround();
  }

  async encode(text: string, maxTokens = Number.POSITIVE_INFINITY): Promise<Int32Array> {
    const around = this.#around;
    if (around === undefined || text.length <= sliceChars) {
      const ids = await this.#longWords.inSlices(() => this.#idsOf(text, true));
      await yieldAfter(this.#unyielded, text.length);
      return withoutEnd(ids, maxTokens);
    }
    const slices = sliceText(text, sliceChars).map((slice) => [slice, false] as const);
    const encode = async (slice: string): Promise<Int32Array> => {
      const run = (): Int32Array => this.#idsOf(slice, false);
      return slice.length > sliceChars ? await this.#longWords.inSlices(run) : run();
    };
    const own = await encodedInSlices(slices, encode, { unyielded: this.#unyielded, maxTokens });
    return withoutEnd(joined([around.before, own, around.after]), maxTokens);
  }

  #idsOf(text: string, withSpecial: boolean): Int32Array {
    return Int32Array.from(this.#tokenizer.encode(streamSafe(text), { add_special_tokens: withSpecial }).ids);
  }

  /**
   * Finds the special tokens by encoding a probe text. If the model adds no token at the end, it uses the last token of
   * each text, so no text is sliced.
   */
  #findAround() {
    const cuts = sliceText(sliceProbe, 1);
    const own = this.#idsOf(sliceProbe, false);
    const whole = this.#idsOf(sliceProbe, true);
    if (own.length === 0 || joined(cuts.map((cut) => this.#idsOf(cut, false))).join() !== own.join()) return undefined;
    const start = Array.from(whole.keys()).find((at) => whole.subarray(at, at + own.length).join() === own.join());
    if (start === undefined || start + own.length === whole.length) return undefined;
    return { before: whole.slice(0, start), after: whole.slice(start + own.length) };
  }
}

/** Cuts a sequence to `maxTokens`. Its last token closes the sequence, so that token stays. */
function withoutEnd(ids: Int32Array, maxTokens: number): Int32Array {
  if (ids.length <= maxTokens) return ids;
  return joined([ids.subarray(0, maxTokens - 1), ids.subarray(-1)]);
}

/** @returns undefined when there is no such file. @throws Error naming the file */
export function readJson(file: string): object | undefined {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return undefined;
    throw error;
  }
  try {
    const parsed: unknown = JSON.parse(text);
    if (typeof parsed === "object" && parsed !== null) return parsed;
  } catch {
    // The error is thrown below.
  }
  throw new Error(`${file}: not a JSON object`);
}
