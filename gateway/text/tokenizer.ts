/**
 * Text to token ids. A prompt comes in pieces: the template's own text, whose control tokens (`<|im_end|>`) are
 * parsed, and content, whose are not: what a user writes stays text. Plain text of neighbouring pieces is encoded
 * as one string, so that the ids are those the model was trained on.
 */
import { Tokenizer } from "@huggingface/tokenizers";
import { LRUCache } from "lru-cache";
import { z } from "zod";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
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

/** Longest row of characters without a place to cut, where the tokenizer has such places. */
const maxUncutChars = 65_536;

/** Texts of templates whose parts are remembered, and how long each is at most. */
const maxTemplateTexts = 256;
const maxTemplateChars = 256;

export interface TextTokenizerOptions {
  /** Of encoded texts to remember, with their tokens. */
  readonly cacheBytes: number;
}

type Section = { readonly control: AddedToken } | { plain: string };

export class TextTokenizer {
  readonly #plain: Tokenizer;
  /** Encodes instead of `#plain` where it can. */
  readonly #byteLevel: ByteLevelEncoder | undefined;
  readonly #longWords: LongWords;
  /** Of texts that are encoded on their own. */
  readonly #unyielded = { chars: 0 };
  /** Stands in front of a plain text that does not open the prompt; no user can know it. */
  readonly #notFirst: string;
  readonly #controls: ReadonlyMap<string, AddedToken>;
  readonly #controlPattern: RegExp | undefined;
  readonly #encoded: LRUCache<string, Int32Array>;
  /** Of short texts of templates, by the text. */
  readonly #parts = new LRUCache<string, readonly string[]>({ max: maxTemplateTexts });
  /** Whether a text's slices, encoded one by one, are the text encoded. */
  readonly #slices: boolean;
  /** Longest token, in characters of text at most: a text of n characters has at least n / this tokens. */
  readonly maxTokenChars: number;
  /** What a text on its own begins with, where no template says it. */
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
    this.#longWords = new LongWords(this.#plain);
    this.#encoded = new LRUCache({
      maxSize: options.cacheBytes,
      sizeCalculation: (ids, key) => rememberedBytes(key, ids),
    });
    this.maxTokenChars = longestToken(tokenizer);
    this.openingTokenIds = openingTokenIds(text);
    this.#slices = this.#canSlice(tokenizer);
  }

  /**
   * Ids of the pieces one after the other. `opensPrompt`: the first piece stands at the very start of the prompt.
   * @param owner salt of the text: what was encoded for one owner is remembered for that owner alone, since anyone
   *   else could time it. Absent: nothing is remembered.
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
   * Encodes what `encode` of the same pieces will need, in slices between which other work runs.
   * @param owner as in `encode`
   * @param unyielded characters that were encoded since other work last had the event loop; shared by the parts of one prompt
   * @param bound counts the tokens
   * @throws ApiError invalid_value when a text has no place to cut for very long; what `bound` throws
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
          const ids = await this.#idsInSlices(slice, isFirst);
          this.#encoded.set(key, ids);
          bound?.add(ids.length);
          await yieldAfter(unyielded, slice.length);
        }
      }
      first = false;
    }
  }

  /**
   * As `encodeText`, in slices between which other work runs; the end of a text of more than `maxTokens` is not looked at.
   * @throws ApiError invalid_value as `warm` does
   */
  async encodeInSlices(text: string, maxTokens = Number.POSITIVE_INFINITY): Promise<Int32Array> {
    const slices = text === "" ? [] : this.#slicesOf(text, true);
    const encode = (slice: string, isFirst: boolean): Promise<Int32Array> => this.#idsInSlices(slice, isFirst);
    return await encodedInSlices(slices, encode, { unyielded: this.#unyielded, maxTokens });
  }

  /** Ids of a text on its own, not remembered; special tokens in it are text. */
  encodeText(text: string): Int32Array {
    return this.encode([{ kind: "content", text }], true);
  }

  /** As many as `encodeText` gives. Chunking asks for each of a document's sentences and lines. */
  countTokens(text: string): number {
    const isShort = text.length <= sliceChars;
    return (isShort ? this.#byteLevel?.encode(text) : undefined)?.length ?? this.encodeText(text).length;
  }

  /** Fewest tokens that a text of so many characters can have; costs nothing, so it comes before encoding. */
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

  /** A template's own text, cut around its control tokens; the same few stand in every prompt, thousands of times. */
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
    return slice.length > sliceChars ? await this.#longWords.inSlices(encode) : encode();
  }

  #libraryIdsOf(text: string, first: boolean): Int32Array {
    const { ids } = this.#plain.encode(first ? text : this.#notFirst + text, { add_special_tokens: false });
    return Int32Array.from(first ? ids : ids.slice(1));
  }

  /** Byte-level tokenizers that do nothing to a text as a whole, and that a probe bears out. */
  #canSlice(tokenizer: TokenizerJson): boolean {
    const { normalizer, decoder } = tokenizer as { normalizer?: { type?: unknown } | null } & TokenizerJson;
    const plainNormalizer = normalizer === null || normalizer === undefined || normalizer.type === "NFC";
    if (decoder?.type !== "ByteLevel" || !plainNormalizer) return false;
    const cuts = sliceText(sliceProbe, 1);
    const sliced = cuts.flatMap((slice, index) => [...this.#encodeSlice(slice, index === 0)]);
    return sliced.join() === this.#encodeSlice(sliceProbe, true).join();
  }
}

/** About what one remembered text takes: its key, its tokens, and the objects around them. */
export const rememberedBytes = (key: string, tokenIds: Int32Array): number => 300 + key.length + 4 * tokenIds.length;

/** Salts hold neither sign, so no two cases make the same string. */
const cacheKey = (text: string, first: boolean, owner: CacheSalt): string => `${owner}${first ? "^" : " "}${text}`;

/**
 * Added tokens that steer the model. Runs of white space are added tokens in some vocabularies; those are layout
 * and belong to plain text.
 */
function isControl(token: AddedToken): boolean {
  return token.special || token.content.trim() !== "";
}

export const controlsOf = (tokenizer: TokenizerJson): readonly AddedToken[] => tokenizer.added_tokens.filter(isControl);

/** Matches the longest control token; the group makes `split` keep it. */
export function patternOf(controls: readonly AddedToken[]): RegExp | undefined {
  if (controls.length === 0) return undefined;
  const contents = controls.map((token) => token.content).sort((a, b) => b.length - a.length);
  return new RegExp(`(${contents.map((content) => content.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&")).join("|")})`);
}

/** The tokenizer without any way to make a control token, and with one of our own in their place. */
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
 * The tokens that a tokenizer itself puts in front of a text: `<s>`, `<|begin_of_text|>`, or none. They are told by
 * the post-processor of tokenizer.json, unless `add_bos_token` of tokenizer_config.json says otherwise.
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
