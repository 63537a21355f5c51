/**
 * Turns token ids into text, one token at a time. The bytes of a character may be spread over several tokens: they wait
 * until the character is whole. Text that may begin a stop string waits too.
 */
import type { VocabularyBytes } from "../../worker/contract/grammar.ts";
import { byteLetters } from "./byte-pairs.ts";
import { type CallSign, signByte, signChar, withoutSigns } from "./call-syntax.ts";
import type { TokenizerJson } from "./model-text.ts";

/** The bytes of each token, computed once for each model. */
export class TokenBytes {
  readonly #bytes: readonly (Uint8Array | undefined)[];
  readonly #specials: ReadonlyMap<number, string>;
  /** true: the decoder drops the space that stands before the first word of a text. */
  readonly stripsLeadingSpace: boolean;
  /** Tokens that write the structure of calls and of thinking, each with its sign's number (see call-syntax.ts). */
  readonly signs: ReadonlyMap<number, number>;
  /** The signs by their numbers. */
  readonly signTokens: readonly CallSign[];

  constructor(tokenizer: TokenizerJson, signs: readonly CallSign[] = []) {
    this.signTokens = signs;
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

  /** Describes a token in a report of log-probabilities: special tokens by name, broken characters as U+FFFD. */
  describe(tokenId: number): { readonly token: string; readonly bytes: readonly number[] } {
    const bytes = this.of(tokenId);
    return { token: this.#specials.get(tokenId) ?? new TextDecoder().decode(bytes), bytes: [...bytes] };
  }

  /**
   * The bytes of all tokens, from which the worker matches tokens to a grammar. A token that is a sign has the sign's
   * byte, which no other token has. Other special tokens have no bytes, whatever their names look like.
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

  /** Bytes of one token. Empty for special tokens and unknown ids, since they have no text. */
  of(tokenId: number): Uint8Array {
    return this.#bytes[tokenId] ?? noBytes;
  }
}

const noBytes = new Uint8Array(0);

export interface DetokenizedText {
  /** New text that later tokens cannot change. */
  readonly text: string;
  /** The stop string that ended the text. The stop string itself and everything behind it are dropped. */
  readonly stoppedBy: string | undefined;
}

/** Looks for stop strings in a text that comes in pieces. */
export class StopStrings {
  readonly #stops: readonly string[];
  /** Text that is held back, because a stop string may begin in it. */
  #held = "";
  #stoppedBy: string | undefined;

  constructor(stops: readonly string[]) {
    this.#stops = stops;
  }

  /** The stop string that ended the text. */
  get stoppedBy(): string | undefined {
    return this.#stoppedBy;
  }

  /** Reads the next text. What comes behind a stop string is ignored. */
  push(text: string): DetokenizedText {
    this.#hold(text);
    return this.#release(false);
  }

  /** The last text, and whatever was held back. */
  end(text = ""): DetokenizedText {
    this.#hold(text);
    return this.#release(true);
  }

  #hold(text: string): void {
    if (text === "" || this.#stoppedBy !== undefined) return;
    this.#held += text;
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

/** State of one completion. */
export class Detokenizer {
  readonly #tokenBytes: TokenBytes;
  readonly #stops: StopStrings;
  readonly #showsSigns: boolean;
  // A byte order mark is kept as a character like any other.
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #atStart: boolean;

  /**
   * @param showsSigns writes tokens that are signs as sign characters, for the readers of calls and of thinking
   * @param goesOn the tokens go on from a text, so a space before their first word is between two words
   */
  constructor(tokenBytes: TokenBytes, stops: readonly string[], { showsSigns = false, goesOn = false } = {}) {
    this.#tokenBytes = tokenBytes;
    this.#stops = new StopStrings(stops);
    this.#showsSigns = showsSigns;
    this.#atStart = tokenBytes.stripsLeadingSpace && !goesOn;
  }

  /** Reads the next tokens. Those behind a stop string are ignored. */
  push(tokenIds: readonly number[]): DetokenizedText {
    // One after the other, so that which stop string comes first does not depend on how many tokens come together.
    const read = tokenIds.map((tokenId) => this.#stops.push(this.#textOf(tokenId)));
    return { text: read.map(({ text }) => text).join(""), stoppedBy: this.#stops.stoppedBy };
  }

  /** The last text: whatever was held back, and U+FFFD for a character that never became whole. */
  end(): DetokenizedText {
    return this.#stops.end(this.#decode(noBytes, false));
  }

  #textOf(tokenId: number): string {
    const sign = this.#showsSigns ? this.#tokenBytes.signs.get(tokenId) : undefined;
    if (sign !== undefined) {
      this.#atStart = false;
      return this.#decode(noBytes, false) + signChar(sign);
    }
    const decoded = this.#decode(this.#tokenBytes.of(tokenId), true);
    const text = this.#atStart && decoded.startsWith(" ") ? decoded.slice(1) : decoded;
    if (decoded !== "") this.#atStart = false;
    return text;
  }

  /** @param stream true: a character may continue in the next bytes */
  #decode(bytes: Uint8Array, stream: boolean): string {
    const decoded = this.#decoder.decode(bytes, { stream });
    return this.#showsSigns ? withoutSigns(decoded) : decoded;
  }
}

/** The text of a whole completion. */
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

/** Length of the longest end of `text` that is the beginning of a stop string. */
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
