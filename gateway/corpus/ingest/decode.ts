/** Reads the text of a file's bytes, or tells the file's owner why that is not possible. */
import { isAscii, isUtf8 } from "node:buffer";
import type { CorpusFileErrorCode } from "../../../db/schema.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { corpusLimits } from "../base/limits.ts";
import type { LongText } from "./sentences.ts";

/** A fault of the file itself. Its message is for the file's owner. */
export class FileError extends Error {
  readonly code: CorpusFileErrorCode;

  constructor(code: CorpusFileErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}

/** The document needs more time or memory than it may have. */
export class OverBounds extends FileError {
  constructor(message: string) {
    super("invalid_file", message);
  }
}

/** Bytes that are decoded at once, and blocks that are looked through in one turn: a millisecond's work at the most. */
const usualBlockBytes = 64 * 1024;
const blocksPerTurn = 4;
/** Decoded blocks that are kept: a fragment is cut out some thousand tokens behind where its sentences were found. */
const keptBlocks = 4;

/** A file's bytes, in memory or on disk. */
export interface FileBytes {
  readonly byteLength: number;
  /** @returns bytes that are valid until the next call; fewer where the file ends */
  read(start: number, end: number): Uint8Array;
}

export const inMemory = (bytes: Uint8Array): FileBytes => ({
  byteLength: bytes.byteLength,
  read: (start, end) => bytes.subarray(start, end),
});

interface Block {
  /** Where its first character stands in the text, in bytes and in UTF-16 units. */
  readonly firstByte: number;
  readonly firstUnit: number;
  readonly endByte: number;
  readonly endUnit: number;
  readonly hasBreak: boolean;
}

interface DecodedBlock extends Block {
  readonly text: string;
}

/**
 * A file's text, of which nothing is held: what is asked for is read and decoded each time. As a string a text would take
 * two bytes for each character as soon as one of them is not of Latin-1, and as much again while it is put together.
 */
export class Utf8Text implements LongText {
  readonly byteLength: number;
  readonly length: number;
  readonly #file: FileBytes;
  readonly #blocks: readonly Block[];
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  /** The one that was asked for last comes first. */
  readonly #kept: DecodedBlock[] = [];

  private constructor(file: FileBytes, blocks: readonly Block[]) {
    this.#file = file;
    this.#blocks = blocks;
    this.byteLength = file.byteLength - (blocks[0]?.firstByte ?? 0);
    this.length = blocks.at(-1)?.endUnit ?? 0;
  }

  /** Looks through the bytes in slices, between which other work runs. @throws FileError invalid_file */
  static async open(file: FileBytes, blockBytes = usualBlockBytes): Promise<Utf8Text> {
    // A UTF-16 unit takes three bytes at most, so this is too much whatever it says.
    if (file.byteLength > corpusLimits.maxTextChars * 3) throw tooLong();
    const blocks: Block[] = [];
    const mark = file.read(0, 3);
    const hasMark = mark[0] === 0xef && mark[1] === 0xbb && mark[2] === 0xbf;
    for (let [firstByte, firstUnit] = [hasMark ? 3 : 0, 0]; firstByte < file.byteLength; ) {
      const bytes = wholeCharacters(file.read(firstByte, firstByte + blockBytes + 1), blockBytes);
      if (bytes.byteLength === 0) throw new FileError("server_error", "The file could not be read to its end.");
      if (!isUtf8(bytes)) throw new FileError("invalid_file", "The file is not valid UTF-8 text.");
      if (bytes.includes(0)) throw new FileError("invalid_file", "The file has NUL characters, so it is not text.");
      const [endByte, endUnit] = [firstByte + bytes.byteLength, firstUnit + unitsOf(bytes)];
      blocks.push({ firstByte, firstUnit, endByte, endUnit, hasBreak: bytes.includes(lineBreak) });
      [firstByte, firstUnit] = [endByte, endUnit];
      if (blocks.length % blocksPerTurn === 0) await yieldToOthers();
    }
    const text = new Utf8Text(file, blocks);
    if (text.length > corpusLimits.maxTextChars) throw tooLong();
    for (const block of blocks) {
      if (/\S/.test(text.#decode(block).text)) return text;
      await yieldToOthers();
    }
    throw noText();
  }

  slice(start: number, end: number): string {
    const last = Math.min(end, this.length);
    let slice = "";
    for (let at = start; at < last; ) {
      const { text, firstUnit, endUnit } = this.#decodedAt(at);
      slice += text.slice(at - firstUnit, last - firstUnit);
      at = endUnit;
    }
    return slice;
  }

  indexOf(char: "\n", from: number): number {
    if (from >= this.length) return -1;
    const { text, firstUnit, endUnit } = this.#decodedAt(from);
    const index = text.indexOf(char, from - firstUnit);
    if (index >= 0) return firstUnit + index;
    const next = this.#blocks.find((block) => block.hasBreak && block.firstUnit >= endUnit);
    return next === undefined ? -1 : next.firstUnit + this.#decodedAt(next.firstUnit).text.indexOf(char);
  }

  /** The block that has the unit; it comes first of those that are kept. */
  #decodedAt(unit: number): DecodedBlock {
    const last = this.#kept[0];
    if (last !== undefined && isIn(last, unit)) return last;
    const at = this.#kept.findIndex((block) => isIn(block, unit));
    const [kept] = at < 0 ? [] : this.#kept.splice(at, 1);
    const block = kept ?? this.#decode(this.#blocks.find((each) => isIn(each, unit)));
    this.#kept.unshift(block);
    this.#kept.length = Math.min(this.#kept.length, keptBlocks);
    return block;
  }

  #decode(block: Block | undefined): DecodedBlock {
    if (block === undefined) throw new RangeError("behind the text's end");
    return { ...block, text: this.#decoder.decode(this.#file.read(block.firstByte, block.endByte)) };
  }
}

const lineBreak = 0x0a;
const isIn = ({ firstUnit, endUnit }: Block, unit: number): boolean => firstUnit <= unit && unit < endUnit;

/** @param bytes one more than `most`, where the file goes on. @returns at most so many, without half a character */
function wholeCharacters(bytes: Uint8Array, most: number): Uint8Array {
  if (bytes.byteLength <= most) return bytes;
  let end = most;
  while (end > most - 3 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return bytes.subarray(0, end);
}

/** UTF-16 units of the bytes' text: two for a character of four bytes, one for any other. */
function unitsOf(bytes: Uint8Array): number {
  if (isAscii(bytes)) return bytes.byteLength;
  let units = 0;
  for (let at = 0; at < bytes.byteLength; at++) {
    const byte = bytes[at] ?? 0;
    if ((byte & 0xc0) !== 0x80) units += byte >= 0xf0 ? 2 : 1;
  }
  return units;
}

/** Characters that are decoded in one turn of the event loop. */
const charsPerPart = 128 * 1024;

/** Decodes a text in slices, between which other work runs. @throws FileError invalid_file */
export async function decodeText(file: FileBytes): Promise<string> {
  const text = await Utf8Text.open(file);
  const parts: string[] = [];
  for (let at = 0; at < text.length; at += charsPerPart) {
    if (at > 0) await yieldToOthers();
    parts.push(text.slice(at, at + charsPerPart));
  }
  return parts.join("");
}

/** @throws FileError invalid_file */
export function checkedText(text: string): string {
  if (!/\S/.test(text)) throw noText();
  if (text.length > corpusLimits.maxTextChars) throw tooLong();
  return text;
}

const noText = (): FileError => new FileError("invalid_file", "The file has no text.");
const tooLong = (): FileError =>
  new FileError("invalid_file", `The file has more than ${corpusLimits.maxTextChars} characters of text.`);
