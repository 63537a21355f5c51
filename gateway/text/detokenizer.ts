/**
 * Token ids to text, one token at a time. A character of several bytes may be spread over tokens: bytes wait until
 * it is whole. Text that may begin a stop string waits too.
 */
import type { VocabularyBytes } from "../../worker/contract/grammar.ts";
import { byteLetters } from "./byte-pairs.ts";
import { type CallSign, signByte, signChar, withoutSigns } from "./call-syntax.ts";
import type { TokenizerJson } from "./model-text.ts";

/** Bytes of each token, made once for a model. */
export class TokenBytes {
  readonly #bytes: readonly (Uint8Array | undefined)[];
  readonly #specials: ReadonlyMap<number, string>;
  /** The decoder drops the space that the first word of a text carries. */
  readonly stripsLeadingSpace: boolean;
  /** Tokens that stand for more than text where tools are called, each with its sign's index. */
  readonly signs: ReadonlyMap<number, number>;

  constructor(tokenizer: TokenizerJson, signs: readonly CallSign[] = []) {
    const decoders = decoderTypes(tokenizer.decoder);
    const isByteLevel = decoders.includes("ByteLevel");
    const isSentencePiece = decoders.some((type) => type === "ByteFallback" || type === "Metaspace");
    if (!isByteLevel && !isSentencePiece) {
      throw new Error(`tokenizer.json: decoder ${decoders.join(", ") || "null"} is not supported`);
    }
    this.stripsLeadingSpace = !isByteLevel;
    const bytesOf = isByteLevel ? byteLevelBytes() : sentencePieceBytes;
    const table: (Uint8Array | undefined)[] = [];
    const { vocab } = tokenizer.model;
    const entries = Array.isArray(vocab)
      ? vocab.map(([token], id): [string, number] => [token, id])
      : Object.entries(vocab);
    for (const [token, id] of entries) table[id] = bytesOf(token);
    const encoder = new TextEncoder();
    for (const token of tokenizer.added_tokens) {
      table[token.id] = token.special ? undefined : encoder.encode(token.content);
    }
    this.#bytes = table;
    const specials = tokenizer.added_tokens.filter((token) => token.special);
    this.#specials = new Map(specials.map((token) => [token.id, token.content]));
    const indexOf = new Map(signs.map(({ content }, index) => [content, index]));
    this.signs = new Map(
      tokenizer.added_tokens.flatMap(({ id, content }) => {
        const index = indexOf.get(content);
        return index === undefined ? [] : [[id, index] as const];
      }),
    );
  }

  /** A token for a report of log-probabilities: special tokens by their name, broken characters as U+FFFD. */
  describe(tokenId: number): { readonly token: string; readonly bytes: readonly number[] } {
    const bytes = this.of(tokenId);
    return { token: this.#specials.get(tokenId) ?? new TextDecoder().decode(bytes), bytes: [...bytes] };
  }

  /**
   * Bytes of all tokens for who knows no text. Tokens that steer the model have none, whatever they look like, but those
   * that are signs have the sign's byte, which no other token has.
   */
  vocabulary(): VocabularyBytes {
    const spelled = Array.from(this.#bytes, (bytes = noBytes, id) => {
      const sign = this.signs.get(id);
      if (sign !== undefined) return Uint8Array.of(signByte(sign));
      return bytes.some((byte) => byte >= signByte(0)) ? noBytes : bytes;
    });
    const ends = new Int32Array(spelled.length);
    let end = 0;
    for (const [id, { length }] of spelled.entries()) {
      end += length;
      ends[id] = end;
    }
    return { bytes: Uint8Array.from(Buffer.concat(spelled)), ends };
  }

  /** Empty for special tokens and unknown ids: they have no text. */
  of(tokenId: number): Uint8Array {
    return this.#bytes[tokenId] ?? noBytes;
  }
}

const noBytes = new Uint8Array(0);

export interface DetokenizedText {
  /** Text that is certain now. */
  readonly text: string;
  /** The stop string that ended the text; what follows it is dropped, it too. */
  readonly stoppedBy: string | undefined;
}

/** State of one completion. */
export class Detokenizer {
  readonly #tokenBytes: TokenBytes;
  readonly #stops: readonly string[];
  readonly #showsSigns: boolean;
  // A byte order mark is a character like any other here.
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  /** Decoded text not given out yet, because a stop string may begin in it. */
  #held = "";
  #atStart: boolean;
  #stoppedBy: string | undefined;

  /** @param showsSigns tokens that are signs come as these, for who reads calls */
  constructor(tokenBytes: TokenBytes, stops: readonly string[], showsSigns = false) {
    this.#tokenBytes = tokenBytes;
    this.#stops = stops;
    this.#showsSigns = showsSigns;
    this.#atStart = tokenBytes.stripsLeadingSpace;
  }

  /** The next tokens; those behind a stop string are passed over. */
  push(tokenIds: readonly number[]): DetokenizedText {
    for (const tokenId of tokenIds) {
      if (this.#stoppedBy !== undefined) break;
      const sign = this.#showsSigns ? this.#tokenBytes.signs.get(tokenId) : undefined;
      if (sign !== undefined) {
        this.#hold(this.#decode(noBytes, false) + signChar(sign));
        continue;
      }
      this.#hold(this.#decode(this.#tokenBytes.of(tokenId), true));
    }
    return this.#release(false);
  }

  /** The last text: what was held, and U+FFFD for a character that never became whole. */
  end(): DetokenizedText {
    if (this.#stoppedBy === undefined) this.#hold(this.#decode(noBytes, false));
    return this.#release(true);
  }

  /** @param stream a character may go on in the next bytes */
  #decode(bytes: Uint8Array, stream: boolean): string {
    const decoded = this.#decoder.decode(bytes, { stream });
    return this.#showsSigns ? withoutSigns(decoded) : decoded;
  }

  #hold(decoded: string): void {
    if (decoded === "") return;
    this.#held += this.#atStart && decoded.startsWith(" ") ? decoded.slice(1) : decoded;
    this.#atStart = false;
    const hit = firstStop(this.#held, this.#stops);
    if (hit === undefined) return;
    this.#held = this.#held.slice(0, hit.index);
    this.#stoppedBy = hit.stop;
  }

  #release(all: boolean): DetokenizedText {
    const keep = all || this.#stoppedBy !== undefined ? 0 : partialStopChars(this.#held, this.#stops);
    const text = this.#held.slice(0, this.#held.length - keep);
    this.#held = this.#held.slice(this.#held.length - keep);
    return { text, stoppedBy: this.#stoppedBy };
  }
}

/** Text of a whole completion. */
export function textOfTokens(tokenBytes: TokenBytes, tokenIds: Iterable<number>): string {
  const detokenizer = new Detokenizer(tokenBytes, []);
  return detokenizer.push([...tokenIds]).text + detokenizer.end().text;
}

function firstStop(text: string, stops: readonly string[]): { index: number; stop: string } | undefined {
  let first: { index: number; stop: string } | undefined;
  for (const stop of stops) {
    const index = text.indexOf(stop);
    if (index >= 0 && (first === undefined || index < first.index)) first = { index, stop };
  }
  return first;
}

/** Length of the longest end of `text` that begins a stop string. */
function partialStopChars(text: string, stops: readonly string[]): number {
  let longest = 0;
  for (const stop of stops) {
    for (let chars = Math.min(stop.length - 1, text.length); chars > longest; chars--) {
      if (text.endsWith(stop.slice(0, chars))) longest = chars;
    }
  }
  return longest;
}

function decoderTypes(decoder: unknown): readonly string[] {
  if (typeof decoder !== "object" || decoder === null) return [];
  const { type, decoders } = decoder as { type?: unknown; decoders?: unknown };
  if (type === "Sequence" && Array.isArray(decoders)) return decoders.flatMap(decoderTypes);
  return typeof type === "string" ? [type] : [];
}

function byteLevelBytes(): (token: string) => Uint8Array {
  const byteOf = new Map(byteLetters().map((letter, byte) => [letter, byte]));
  const encoder = new TextEncoder();
  return (token) => {
    const bytes = Array.from(token, (char) => byteOf.get(char));
    return bytes.every((byte) => byte !== undefined) ? Uint8Array.from(bytes) : encoder.encode(token);
  };
}

function sentencePieceBytes(token: string): Uint8Array {
  const byte = /^<0x([0-9A-F]{2})>$/.exec(token)?.[1];
  return byte === undefined
    ? new TextEncoder().encode(token.replaceAll("\u2581", " "))
    : Uint8Array.of(Number.parseInt(byte, 16));
}
