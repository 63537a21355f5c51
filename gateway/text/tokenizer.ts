/**
 * Text to token ids. A prompt comes in pieces: the template's own text, whose control tokens (`<|im_end|>`) are parsed,
 * and content, in which they are not parsed, so that whatever a user writes stays text. Plain text of neighbouring
 * pieces is encoded as one string, so that the ids are those the model was trained on.
 */
import { Tokenizer } from "@huggingface/tokenizers";
import { LRUCache } from "lru-cache";
import { z } from "zod";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import { streamSafe } from "../base/stream-safe.ts";
import { ByteLevelEncoder } from "./byte-level.ts";
import { LongWords } from "./long-words.ts";
import type { AddedToken, ModelText, TokenizerJson } from "./model-text.ts";
import {
  encodedInSlices,
  joined,
  sliceChars,
  sliceProbe,
  sliceText,
  type TokenBound,
  yieldAfter,
} from "./text-slices.ts";

export interface Piece {
  readonly kind: "template" | "content";
  readonly text: string;
}

/** Most characters without a place to cut in one text, where the tokenizer has such places. */
const maxUncutChars = 65_536;

/** A text of so many characters is encoded at once, even if it is one word. */
const shortChars = 512;

/** How many template texts are remembered in parts, and the length of each at most. */
const maxTemplateTexts = 256;
const maxTemplateChars = 256;

export interface TextTokenizerOptions {
  /** Memory for encoded texts, with their tokens. */
  readonly cacheBytes: number;
}

type Section = { readonly control: AddedToken } | { plain: string };

export class TextTokenizer {
  readonly #plain: Tokenizer;
  /** Encodes in place of `#plain` for tokenizers that it supports. */
  readonly #byteLevel: ByteLevelEncoder | undefined;
  /** Only where the library encodes: its tables of merges take as much memory as the encoder's. */
  readonly #longWords: LongWords | undefined;
  readonly #normalizes: boolean;
  /** Counts the characters of texts that are encoded outside prompts since other work last ran. */
  readonly #unyielded = { chars: 0 };
  /** A token put before each plain text that does not open the prompt. Its name is random, so no user can write it. */
  readonly #notFirst: string;
  readonly #controls: ReadonlyMap<string, AddedToken>;
  readonly #controlPattern: RegExp | undefined;
  readonly #encoded: LRUCache<string, Int32Array>;
  /** The parts of short template texts, by the text. */
  readonly #parts = new LRUCache<string, readonly string[]>({ max: maxTemplateTexts });
  /** Whether encoding a text in slices gives the same tokens as encoding it whole. */
  readonly #slices: boolean;
  /** Most characters of text in one token: a text of n characters has at least n / this tokens. */
  readonly maxTokenChars: number;
  /** Tokens that begin a text where no template is used. */
  readonly openingTokenIds: readonly number[];

  constructor(text: ModelText, options: TextTokenizerOptions) {
    const { tokenizer, config } = text;
    const controls = controlsOf(tokenizer);
    this.#controls = new Map(controls.map((token) => [token.content, token]));
    this.#controlPattern = patternOf(controls);
    this.#notFirst = `\uE000${crypto.randomUUID()}\uE001`;
    this.#plain = new Tokenizer(withoutControls(tokenizer, controls, this.#notFirst), config);
    const hasLayout = controls.length < tokenizer.added_tokens.length;
    this.#byteLevel = hasLayout ? undefined : ByteLevelEncoder.of(this.#plain, text);
    this.#longWords = this.#byteLevel === undefined ? new LongWords(this.#plain) : undefined;
    this.#normalizes = (tokenizer as { normalizer?: unknown }).normalizer != null;
    this.#encoded = new LRUCache({
      maxSize: options.cacheBytes,
      sizeCalculation: (ids, key) => rememberedBytes(key, ids),
    });
    this.maxTokenChars = longestToken(tokenizer);
    this.openingTokenIds = openingTokenIds(text);
    this.#slices = this.#canSlice(tokenizer);
  }

  /**
   * Token ids of the pieces in order. `opensPrompt`: the first piece stands at the very start of the prompt.
   * @param owner salt of the text. What was encoded for one owner is remembered for that owner alone, since anyone else
   *   could measure from the time whether a text is known. Absent: nothing is remembered.
   * @throws ApiError invalid_value as `warm` does
   */
  encode(pieces: readonly Piece[], opensPrompt: boolean, owner?: CacheSalt): Int32Array {
    const parts: Int32Array[] = [];
    let first = opensPrompt;
    for (const section of this.#sections(pieces)) {
      if ("control" in section) parts.push(Int32Array.of(section.control.id));
      else if (section.plain !== "") parts.push(this.#encodePlain(section.plain, first, owner));
      first = false;
    }
    return joined(parts);
  }

  /**
   * Encodes ahead what `encode` will need for the same pieces, in slices between which other work runs.
   * @param owner as in `encode`
   * @param unyielded characters that were encoded since other work last ran; shared by the parts of one prompt
   * @param bound counts the tokens and refuses too many
   * @throws ApiError invalid_value when a text has no place to cut for `maxUncutChars`; the error that `bound` throws
   */
  async warm(
    pieces: readonly Piece[],
    opensPrompt: boolean,
    owner: CacheSalt,
    unyielded: { chars: number },
    bound?: TokenBound,
  ): Promise<void> {
    let first = opensPrompt;
    for (const section of this.#sections(pieces)) {
      if ("plain" in section) {
        for (const [slice, isFirst] of this.#slicesOf(section.plain, first)) {
          const key = cacheKey(slice, isFirst, owner);
          const known = this.#encoded.peek(key);
          bound?.add(known?.length ?? 0);
          if (known !== undefined) continue;
          // A short text is no work to be sliced, and most questions are one.
          const ids =
            slice.length <= shortChars ? this.#idsOf(slice, isFirst) : await this.#idsInSlices(slice, isFirst);
          this.#encoded.set(key, ids);
          bound?.add(ids.length);
          if (unyielded.chars + slice.length >= sliceChars) await yieldAfter(unyielded, slice.length);
          else unyielded.chars += slice.length;
        }
      }
      first = false;
    }
  }

  /**
   * Does what `encodeText` does, in slices between which other work runs. It stops after about `maxTokens` tokens.
   * @throws ApiError invalid_value as `warm` does
   */
  async encodeInSlices(text: string, maxTokens = Number.POSITIVE_INFINITY): Promise<Int32Array> {
    const slices = text === "" ? [] : this.#slicesOf(text, true);
    const encode = (slice: string, isFirst: boolean): Promise<Int32Array> => this.#idsInSlices(slice, isFirst);
    return await encodedInSlices(slices, encode, { unyielded: this.#unyielded, maxTokens });
  }

  /** Token ids of a text on its own, which are not remembered. Special tokens in the text stay text. */
  encodeText(text: string): Int32Array {
    return this.encode([{ kind: "content", text }], true);
  }

  /** Number of tokens that `encodeText` gives. Chunking asks for it for each sentence and line of a document. */
  countTokens(text: string): number {
    const isShort = text.length <= sliceChars;
    return (isShort ? this.#byteLevel?.count(text) : undefined) ?? this.encodeText(text).length;
  }

  /** Fewest tokens that a text of this many characters can have. Nothing is encoded for it, so it is asked first. */
  leastTokens(charCount: number): number {
    return Math.ceil(charCount / this.maxTokenChars);
  }

  #sections(pieces: readonly Piece[]): readonly Section[] {
    const sections: Section[] = [];
    const addPlain = (text: string): void => {
      const last = sections.at(-1);
      if (last !== undefined && "plain" in last) last.plain += text;
      else sections.push({ plain: text });
    };
    for (const piece of pieces) {
      if (piece.kind === "content" || this.#controlPattern === undefined) {
        addPlain(piece.text);
        continue;
      }
      for (const part of this.#templateParts(piece.text, this.#controlPattern)) {
        const control = this.#controls.get(part);
        if (control !== undefined) sections.push({ control });
        else if (part !== "") addPlain(part);
      }
    }
    stripAroundControls(sections);
    return sections;
  }

  /** Cuts a template's text around its control tokens, and remembers it: every prompt has the same few texts. */
  #templateParts(text: string, pattern: RegExp): readonly string[] {
    const known = this.#parts.get(text);
    if (known !== undefined) return known;
    const parts = text.split(pattern);
    if (text.length <= maxTemplateChars) this.#parts.set(text, parts);
    return parts;
  }

  #encodePlain(text: string, first: boolean, owner: CacheSalt | undefined): Int32Array {
    const slices = [...this.#slicesOf(text, first)];
    return joined(slices.map(([slice, isFirst]) => this.#encodeSlice(slice, isFirst, owner)));
  }

  *#slicesOf(text: string, first: boolean): Generator<readonly [slice: string, isFirst: boolean]> {
    if (!this.#slices || text.length <= sliceChars) return yield [text, first];
    let isFirst = first;
    for (const slice of sliceText(text, sliceChars)) {
      if (slice.length > maxUncutChars) {
        throw new ApiError("invalid_value", {
          message: `A text has ${slice.length} characters in a row without a space or mark between words.`,
        });
      }
      yield [slice, isFirst];
      isFirst = false;
    }
  }

  #encodeSlice(text: string, first: boolean, owner?: CacheSalt): Int32Array {
    const key = owner === undefined ? undefined : cacheKey(text, first, owner);
    const cached = key === undefined ? undefined : this.#encoded.get(key);
    if (cached !== undefined) return cached;
    const tokenIds = this.#idsOf(text, first);
    if (key !== undefined) this.#encoded.set(key, tokenIds);
    return tokenIds;
  }

  #idsOf(text: string, first: boolean): Int32Array {
    return this.#byteLevel?.encode(text) ?? this.#libraryIdsOf(text, first);
  }

  async #idsInSlices(slice: string, first: boolean): Promise<Int32Array> {
    if (this.#byteLevel !== undefined) return await this.#byteLevel.encodeInSlices(slice);
    const encode = (): Int32Array => this.#libraryIdsOf(slice, first);
    const isLong = slice.length > sliceChars;
    return (isLong ? await this.#longWords?.inSlices(encode) : undefined) ?? encode();
  }

  #libraryIdsOf(text: string, first: boolean): Int32Array {
    const safe = this.#normalizes ? streamSafe(text) : text;
    const { ids } = this.#plain.encode(first ? safe : this.#notFirst + safe, { add_special_tokens: false });
    return Int32Array.from(first ? ids : ids.slice(1));
  }

  /** Whether the tokenizer is byte-level, does nothing to a text as a whole, and encodes a probe right in slices. */
  #canSlice(tokenizer: TokenizerJson): boolean {
    const { normalizer, decoder } = tokenizer as { normalizer?: { type?: unknown } | null } & TokenizerJson;
    const plainNormalizer = normalizer === null || normalizer === undefined || normalizer.type === "NFC";
    if (decoder?.type !== "ByteLevel" || !plainNormalizer) return false;
    const cuts = sliceText(sliceProbe, 1);
    const sliced = cuts.flatMap((slice, index) => [...this.#encodeSlice(slice, index === 0)]);
    return sliced.join() === this.#encodeSlice(sliceProbe, true).join();
  }
}

/** Approximate memory of one remembered text in bytes: its key, its tokens, and the objects around them. */
export const rememberedBytes = (key: string, tokenIds: Int32Array): number => 300 + key.length + 4 * tokenIds.length;

/** Salts hold neither `^` nor a space, so two different cases never make the same key. */
const cacheKey = (text: string, first: boolean, owner: CacheSalt): string => `${owner}${first ? "^" : " "}${text}`;

/**
 * Whether an added token steers the model. In some vocabularies, runs of white space are added tokens; those are layout
 * and belong to plain text.
 */
const isControl = (token: AddedToken): boolean => token.special || token.content.trim() !== "";

export const controlsOf = (tokenizer: TokenizerJson): readonly AddedToken[] => tokenizer.added_tokens.filter(isControl);

/** A pattern for the longest control token at a place. Its group makes `split` keep the tokens. */
export function patternOf(controls: readonly AddedToken[]): RegExp | undefined {
  if (controls.length === 0) return undefined;
  const contents = controls.map((token) => token.content).sort((a, b) => b.length - a.length);
  return new RegExp(`(${contents.map((content) => content.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&")).join("|")})`);
}

/** The tokenizer without its control tokens, so that it cannot make any, and with our own token in their place. */
function withoutControls(tokenizer: TokenizerJson, controls: readonly AddedToken[], notFirst: string): TokenizerJson {
  const removed = new Set(controls.map((token) => token.content));
  const layout = tokenizer.added_tokens.filter((token) => !removed.has(token.content));
  const vocab = tokenizer.model.vocab;
  // A Unigram vocabulary is a list whose indexes are the ids: a removed token becomes a string that no text has.
  const plainVocab = Array.isArray(vocab)
    ? vocab.map((entry): [string, number] => (removed.has(entry[0]) ? [notFirst + entry[0], -1e9] : entry))
    : Object.fromEntries(Object.entries(vocab).filter(([token]) => !removed.has(token)));
  const ids = Array.isArray(vocab) ? vocab.map((_, index) => index) : Object.values(vocab);
  const freeId = 1 + ids.concat(tokenizer.added_tokens.map((token) => token.id)).reduce((a, b) => Math.max(a, b), 0);
  const standIn: AddedToken = { id: freeId, content: notFirst, special: true, lstrip: false, rstrip: false };
  const added = [...layout, standIn];
  return { ...tokenizer, added_tokens: added, model: { ...tokenizer.model, vocab: plainVocab } };
}

function stripAroundControls(sections: readonly Section[]): void {
  sections.forEach((section, index) => {
    if (!("control" in section)) return;
    const before = sections[index - 1];
    const after = sections[index + 1];
    if (section.control.lstrip && before !== undefined && "plain" in before) before.plain = before.plain.trimEnd();
    if (section.control.rstrip && after !== undefined && "plain" in after) after.plain = after.plain.trimStart();
  });
}

function longestToken(tokenizer: TokenizerJson): number {
  const { vocab } = tokenizer.model;
  const added = tokenizer.added_tokens.map((token) => token.content);
  const tokens = added.concat(Array.isArray(vocab) ? vocab.map(([token]) => token) : Object.keys(vocab));
  return tokens.reduce((longest, token) => Math.max(longest, token.length), 1);
}

const templateSchema = z.looseObject({
  type: z.literal("TemplateProcessing"),
  single: z.array(z.looseObject({ SpecialToken: z.looseObject({ id: z.string() }).optional() })),
  special_tokens: z.record(z.string(), z.looseObject({ ids: z.array(z.int().nonnegative()) })),
});
const sequenceSchema = z.looseObject({ type: z.literal("Sequence"), processors: z.array(z.unknown()) });

/**
 * The tokens that a tokenizer itself puts before a text: `<s>`, `<|begin_of_text|>`, or none. The post-processor of
 * tokenizer.json says which, unless `add_bos_token` of tokenizer_config.json says otherwise.
 */
export function openingTokenIds({ tokenizer, config }: Pick<ModelText, "tokenizer" | "config">): readonly number[] {
  if (config.add_bos_token === false) return [];
  const byTemplate = templateIds(tokenizer.post_processor);
  if (byTemplate.length > 0 || config.add_bos_token !== true) return byTemplate;
  const bos = tokenizer.added_tokens.find(({ content }) => content === config.bos_token);
  return bos === undefined ? [] : [bos.id];
}

function templateIds(processor: unknown): readonly number[] {
  const sequence = sequenceSchema.safeParse(processor);
  if (sequence.success) {
    return sequence.data.processors.map(templateIds).find((ids) => ids.length > 0) ?? [];
  }
  const template = templateSchema.safeParse(processor);
  if (!template.success) return [];
  const { single, special_tokens: specials } = template.data;
  const end = single.findIndex(({ SpecialToken: token }) => token === undefined);
  const opening = end < 0 ? [] : single.slice(0, end);
  return opening.flatMap(({ SpecialToken: token }) => specials[token?.id ?? ""]?.ids ?? []);
}
