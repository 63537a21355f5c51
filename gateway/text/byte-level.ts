/**
 * Byte-level byte-pair encoding (that of GPT-2 and of most models since), with the same ids as the tokenizer library
 * gives. The library writes each word as a string of letters that stand for bytes, and merges strings: a megabyte of
 * text costs it a quarter of a second and leaves tens of megabytes of garbage. This encoder looks up a word that is a
 * token as it stands, and merges any other word in one array of integers.
 */
import type { Tokenizer } from "@huggingface/tokenizers";
import { yieldToOthers } from "../base/pace.ts";
import { streamSafe } from "../base/stream-safe.ts";
import { BytePairs, byteLetters } from "./byte-pairs.ts";
import type { ModelText } from "./model-text.ts";

/** Words of more characters are merged in steps, since the plain loop takes time by the square of a word's length. */
const shortChars = 48;
/** Most UTF-8 bytes that one UTF-16 code unit takes. */
const bytesPerChar = 3;

/** The object that the library makes from `pre_tokenizer`. The library's types declare few of these fields. */
interface PreTokenizer {
  readonly config?: { readonly type?: string; readonly behavior?: string; readonly invert?: boolean };
  readonly tokenizers?: readonly PreTokenizer[];
  readonly pattern?: RegExp | null;
  readonly add_prefix_space?: boolean;
  readonly use_regex?: boolean;
}

/** The object that the library makes from `model`. */
interface BytePairModel {
  readonly config: { readonly dropout?: number | null };
  readonly tokens_to_ids: ReadonlyMap<string, number>;
  readonly merges?: readonly (readonly [string, string])[];
  readonly ignore_merges?: boolean;
  readonly end_of_word_suffix?: string | null;
  readonly continuing_subword_suffix?: string | null;
}

/** Whether merging the bytes of a token gives that one token: not tried yet, yes, or no. */
const [notKnown, isWhole, isParted] = [0, 1, 2];

export class ByteLevelEncoder {
  readonly #isNfc: boolean;
  /** Each pattern cuts the pieces that the pattern before it has left. */
  readonly #patterns: readonly RegExp[];
  readonly #pairs: BytePairs;
  /** Token ids by the text that the token's bytes spell. */
  readonly #idOfText: ReadonlyMap<string, number>;
  /** For each token id: `notKnown`, `isWhole` or `isParted`. */
  readonly #wholes: Uint8Array;
  readonly #symbolOfByte: Int32Array;
  readonly #idOfSymbol: Int32Array;
  readonly #utf8 = new TextEncoder();
  /** UTF-8 bytes of the short word that is being merged. */
  readonly #bytes = new Uint8Array(shortChars * bytesPerChar);
  readonly #symbols = new Int32Array(shortChars * bytesPerChar);

  private constructor(model: BytePairModel, pairs: BytePairs, patterns: readonly RegExp[], isNfc: boolean) {
    this.#isNfc = isNfc;
    this.#patterns = patterns;
    this.#pairs = pairs;
    this.#symbolOfByte = Int32Array.from(byteLetters(), (letter) => pairs.symbolOf(letter));
    this.#idOfSymbol = Int32Array.from(pairs.symbolTexts(), (text) => model.tokens_to_ids.get(text) ?? -1);
    this.#idOfText = idsByText(model.tokens_to_ids);
    const largestId = this.#idOfText.values().reduce((a, b) => Math.max(a, b), 0);
    this.#wholes = new Uint8Array(largestId + 1).fill(model.ignore_merges === true ? isWhole : notKnown);
  }

  /**
   * @param tokenizer what the library has made from `text`; it must not recognize added tokens in a text
   * @returns undefined for a tokenizer with steps that this encoder does not know
   */
  static of(tokenizer: Tokenizer, text: Pick<ModelText, "tokenizer" | "config">): ByteLevelEncoder | undefined {
    const model = tokenizer.model as unknown as BytePairModel | null;
    const patterns = patternsOf(tokenizer.pre_tokenizer as unknown as PreTokenizer | null);
    const { type: normalizer } = (text.tokenizer as { normalizer?: { type?: string } | null }).normalizer ?? {};
    const isPlain = normalizer === undefined || normalizer === "NFC";
    const config = text.config as { remove_space?: unknown; do_lowercase_and_remove_accent?: unknown };
    const changesText = Boolean(config.remove_space) || Boolean(config.do_lowercase_and_remove_accent);
    if (model?.merges === undefined || patterns === undefined || !isPlain || changesText) return undefined;
    const hasMore = model.config.dropout || model.end_of_word_suffix || model.continuing_subword_suffix;
    if (hasMore) return undefined;
    const pairs = new BytePairs(model.merges, byteLetters());
    // The library leaves out a merge result that is no token, or makes it unknown. This encoder does neither.
    if (!pairs.symbolTexts().every((symbol) => model.tokens_to_ids.has(symbol))) return undefined;
    return new ByteLevelEncoder(model, pairs, patterns, normalizer === "NFC");
  }

  encode(text: string): Int32Array {
    return new Int32Array(this.#idsOf(text));
  }

  /** Number of ids that `encode` gives. */
  count(text: string): number {
    return this.#idsOf(text).length;
  }

  /** Does what `encode` does, and yields to other work within words of any length. */
  async encodeInSlices(text: string): Promise<Int32Array> {
    const ids: number[] = [];
    for (const word of this.#wordsOf(text)) {
      if (this.#append(word, ids)) continue;
      const steps = this.#mergeLong(word, ids);
      while (steps.next().done !== true) await yieldToOthers();
    }
    return new Int32Array(ids);
  }

  #idsOf(text: string): number[] {
    const ids: number[] = [];
    for (const word of this.#wordsOf(text)) {
      if (this.#append(word, ids)) continue;
      const steps = this.#mergeLong(word, ids);
      while (steps.next().done !== true);
    }
    return ids;
  }

  #wordsOf(text: string): readonly string[] {
    const words: string[] = [];
    addWords(this.#isNfc ? streamSafe(text).normalize("NFC") : text, this.#patterns, 0, words);
    return words;
  }

  /** @returns false for a long word, of which no ids are appended */
  #append(word: string, ids: number[]): boolean {
    const id = this.#idOfText.get(word);
    const isToken = id !== undefined && this.#isWhole(id, word);
    if (isToken) ids.push(id);
    else if (word.length <= shortChars) this.#mergeShort(word, ids);
    return isToken || word.length <= shortChars;
  }

  #isWhole(id: number, word: string): boolean {
    if (this.#wholes[id] === notKnown && word.length <= shortChars) {
      const ids: number[] = [];
      this.#mergeShort(word, ids);
      this.#wholes[id] = ids.length === 1 ? isWhole : isParted;
    }
    return this.#wholes[id] === isWhole;
  }

  #mergeShort(word: string, ids: number[]): void {
    const { written: byteCount } = this.#utf8.encodeInto(word, this.#bytes);
    for (let at = 0; at < byteCount; at++) this.#symbols[at] = this.#symbolOfByte[this.#bytes[at] ?? 0] ?? -1;
    const count = this.#pairs.mergeShort(this.#symbols, byteCount);
    for (let at = 0; at < count; at++) ids.push(this.#idOfSymbol[this.#symbols[at] ?? 0] ?? -1);
  }

  /** Merges a long word; yields after each step. */
  *#mergeLong(word: string, ids: number[]): Generator<void, void> {
    const symbols = Int32Array.from(this.#utf8.encode(word), (byte) => this.#symbolOfByte[byte] ?? -1);
    const next = yield* this.#pairs.merge(symbols);
    for (let at = 0; at < symbols.length; at = next[at] ?? symbols.length) {
      ids.push(this.#idOfSymbol[symbols[at] ?? 0] ?? -1);
    }
  }
}

/**
 * Cuts a text into a pattern's matches and the pieces between them, and each of these by the patterns that follow. A list
 * of its own for each would be a kilobyte of garbage a word.
 */
function addWords(text: string, patterns: readonly RegExp[], index: number, words: string[]): void {
  const sticky = patterns[index];
  if (sticky === undefined) {
    words.push(text);
    return;
  }
  let wordStart = 0;
  for (let at = 0; at < text.length; ) {
    sticky.lastIndex = at;
    if (!sticky.test(text) || sticky.lastIndex === at) {
      at += (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
      continue;
    }
    const end = sticky.lastIndex;
    if (wordStart < at) addWords(text.slice(wordStart, at), patterns, index + 1, words);
    addWords(text.slice(at, end), patterns, index + 1, words);
    at = end;
    wordStart = end;
  }
  if (wordStart < text.length) addWords(text.slice(wordStart), patterns, index + 1, words);
}

/** The patterns of a pre-tokenizer that ends in the byte-level step. undefined: it has other kinds of steps. */
function patternsOf(preTokenizer: PreTokenizer | null): readonly RegExp[] | undefined {
  const parts = preTokenizer?.tokenizers ?? (preTokenizer === null ? [] : [preTokenizer]);
  const bytes = parts.at(-1);
  if (bytes?.config?.type !== "ByteLevel" || bytes.add_prefix_space === true) return undefined;
  const cutting = bytes.use_regex === true ? parts : parts.slice(0, -1);
  const patterns = cutting.map((part) => (cutsOnly(part) ? part.pattern : undefined));
  const sticky = patterns.flatMap((pattern) => (pattern ? [new RegExp(pattern, pattern.flags.replace("g", "y"))] : []));
  return sticky.length === cutting.length ? sticky : undefined;
}

/** Whether this step only cuts: each match of its pattern is a word, and so is each piece between two matches. */
function cutsOnly({ config }: PreTokenizer): boolean {
  if (config?.type === "Split") return config.invert === false && config.behavior === "Isolated";
  return config?.type === "Digits" || config?.type === "ByteLevel";
}

function idsByText(tokens: ReadonlyMap<string, number>): ReadonlyMap<string, number> {
  const byteOf = new Map(byteLetters().map((letter, byte) => [letter, byte]));
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const byText = new Map<string, number>();
  for (const [token, id] of tokens) {
    const bytes = Array.from(token, (letter) => byteOf.get(letter) ?? -1);
    if (bytes.includes(-1)) continue;
    try {
      byText.set(decoder.decode(Uint8Array.from(bytes)), id);
    } catch {
      // The bytes are a part of a character, so no word has them.
    }
  }
  return byText;
}
