/** Texts as the embedding model reads them. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import type { TextTokenizer } from "./tokenizer.ts";

/** "query": what is looked for; "document": what is found. Some models are trained with a prompt for each. */
export type EmbeddingRole = "query" | "document" | "plain";

export interface EmbeddingText {
  /** Tokens with the model's special ones; a text that is longer loses its end when `maxTokens` is given. */
  encode(text: string, role: EmbeddingRole, maxTokens?: number): Int32Array;
}

/** Of the loaded model: plain tokens. Text opens with a space, so that its first word is the word it is elsewhere. */
export function plainEmbeddingText(tokenizer: TextTokenizer): EmbeddingText {
  return {
    encode: (text, _role, maxTokens) => tokenizer.encodeText(` ${text}`).slice(0, maxTokens),
  };
}

/**
 * Of a sentence-embedding model's folder: tokenizer.json, and the prompts of config_sentence_transformers.json.
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
  return {
    encode(text, role, maxTokens) {
      const ids = tokenizer.encode(byRole[role] + text, { add_special_tokens: true }).ids;
      if (maxTokens === undefined || ids.length <= maxTokens) return Int32Array.from(ids);
      // The last token closes the sequence.
      return Int32Array.from([...ids.slice(0, maxTokens - 1), ids.at(-1) ?? 0]);
    },
  };
}

function readJson(file: string): object | undefined {
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
    // Told below.
  }
  throw new Error(`${file}: not a JSON object`);
}
