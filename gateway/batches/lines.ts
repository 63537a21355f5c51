/** The lines of a batch's file: each is one request to the batch's endpoint. */
import type { OpenFile } from "../corpus/files/content-store.ts";

export const batchEndpoints = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"] as const;
/** The endpoint of batches that are made through Anthropic's API. */
export const messagesEndpoint = "/v1/messages";

/** Writes one request of a message batch as a line of the batch's input file. */
export const messageLine = (customId: string, params: object): string =>
  `${JSON.stringify({ custom_id: customId, method: "POST", url: messagesEndpoint, body: params })}\n`;

export interface BatchLine {
  /** The first line has the number 1. */
  readonly number: number;
  readonly customId: string;
  /** JSON. */
  readonly body: string;
}

/** Where a line stands in its file. */
export interface LinePlace {
  /** The first line has the number 1. */
  readonly number: number;
  readonly startByte: number;
  readonly byteCount: number;
}

/** The number of the next line and the byte at which it begins. */
export type LineCursor = Pick<LinePlace, "number" | "startByte">;

export const firstLine: LineCursor = { number: 1, startByte: 0 };

const pieceBytes = 64 * 1024;
const piecesAtOnce = 16;
const newline = 0x0a;

/**
 * Finds the next lines, up to a given number. Blank lines are skipped, and a call finds fewer lines where there is much
 * blank space.
 * @returns `next` is undefined when there are no more lines
 */
export async function findLines(
  file: Pick<OpenFile, "read">,
  { number, startByte }: LineCursor,
  most: number,
): Promise<{ readonly places: readonly LinePlace[]; readonly next: LineCursor | undefined }> {
  const places: LinePlace[] = [];
  const firstNumber = number;
  let isBlank = true;
  for (let at = startByte, pieces = 0; pieces < piecesAtOnce || number === firstNumber; pieces++) {
    const piece = await file.read(at, pieceBytes);
    if (piece.byteLength === 0) {
      if (!isBlank) places.push({ number, startByte, byteCount: at - startByte });
      return { places, next: undefined };
    }
    for (let from = 0; ; ) {
      const found = piece.indexOf(newline, from);
      isBlank &&= isBlankBetween(piece, from, found < 0 ? piece.byteLength : found);
      if (found < 0) break;
      if (!isBlank) places.push({ number, startByte, byteCount: at + found - startByte });
      number += 1;
      from = found + 1;
      startByte = at + from;
      isBlank = true;
      if (places.length >= most) return { places, next: { number, startByte } };
    }
    at += piece.byteLength;
  }
  return { places, next: { number, startByte } };
}

/** Whether the bytes between the two offsets are only tabs, line ends and spaces. */
function isBlankBetween(bytes: Uint8Array, from: number, end: number): boolean {
  for (let at = from; at < end; at++) {
    const byte = bytes[at] ?? 0;
    if (byte !== 0x20 && (byte < 0x09 || byte > 0x0d)) return false;
  }
  return true;
}

/** @throws TypeError when the bytes are not UTF-8 */
export async function textOf(
  file: Pick<OpenFile, "read">,
  { number, startByte, byteCount }: LinePlace,
): Promise<string> {
  // Only the first line may begin with a byte order mark.
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: number > 1 });
  return decoder.decode(await file.read(startByte, byteCount));
}

/** Reads one line of a file that has been checked. */
export async function readLine(file: Pick<OpenFile, "read">, place: LinePlace): Promise<BatchLine> {
  const text = await textOf(file, place);
  const { custom_id: customId, body } = JSON.parse(text) as { custom_id: string; body: object };
  return { number: place.number, customId, body: JSON.stringify(body) };
}

export const linesPerSlice = 64;

/** Reads all lines of a file that has been checked, one at a time. */
export async function* readLines(file: Pick<OpenFile, "read">): AsyncGenerator<BatchLine> {
  for (let cursor: LineCursor | undefined = firstLine; cursor !== undefined; ) {
    const found = await findLines(file, cursor, linesPerSlice);
    for (const place of found.places) yield await readLine(file, place);
    cursor = found.next;
  }
}
