/** Writes the results of a batch that ends to files of its tenant. Writing them again makes the same files, unless they end. */

import { type BatchResultRow, type BatchRow, walkResults } from "../../db/batches.ts";
import type { FileId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import { yieldToOthers } from "../base/pace.ts";
import type { StoragePort } from "../corpus/base/ports.ts";
import type { FileService } from "../corpus/files/files.ts";
import { type BatchLine, messagesEndpoint } from "./lines.ts";
import { restResult } from "./message-results.ts";

const [rowsAtOnce, pieceChars] = [8, 65_536];

export interface ResultFileDeps {
  readonly db: Db;
  readonly files: FileService;
  readonly storage: Pick<StoragePort, "checkDisk">;
}

export interface ResultFiles {
  readonly outputFileId: FileId | null;
  readonly errorFileId: FileId | null;
}

/** @param readInput reads the lines of the batch's input file; it yields none when the file was deleted */
export async function writeResults(
  deps: ResultFileDeps,
  batch: BatchRow,
  readInput: () => AsyncIterable<BatchLine>,
): Promise<ResultFiles> {
  deps.storage.checkDisk(batch.outputBytes);
  if (batch.endpoint === messagesEndpoint) {
    const lines = messageLines(deps.db, batch, readInput());
    return { outputFileId: await store(deps, batch, "results", lines), errorFileId: null };
  }
  const write = (isError: boolean): Promise<FileId | null> =>
    store(deps, batch, isError ? "error" : "output", bodiesOf(deps.db, batch.seq, isError));
  return { outputFileId: await write(false), errorFileId: await write(true) };
}

async function* bodiesOf(db: Db, seq: number, isError: boolean): AsyncGenerator<string> {
  for await (const { body } of resultsOf(db, seq, isError)) yield body;
}

/**
 * All lines of a batch, including those that were not run. The input's lines and the results are both ordered by line
 * number, so they are merged.
 */
async function* messageLines(db: Db, batch: BatchRow, input: AsyncIterable<BatchLine>): AsyncGenerator<string> {
  const results = resultsOf(db, batch.seq, undefined);
  let result = await results.next();
  let isThere = false;
  for await (const line of input) {
    isThere = true;
    while (result.done !== true && result.value.line < line.number) result = await results.next();
    const own = result.done !== true && result.value.line === line.number ? result.value.body : undefined;
    yield own ?? restResult(line, batch);
  }
  // The input file was deleted, so only the lines with results can be written.
  for (; !isThere && result.done !== true; result = await results.next()) yield result.value.body;
}

async function* resultsOf(db: Db, seq: number, isError: boolean | undefined): AsyncGenerator<BatchResultRow, void> {
  for (let afterLine = 0; ; ) {
    const rows = walkResults(db, seq, { isError, afterLine, limit: rowsAtOnce });
    const last = rows.at(-1);
    if (last === undefined) return;
    yield* rows;
    afterLine = last.line;
    await yieldToOthers();
  }
}

/** @returns null when there is nothing to write */
async function store(
  { files }: ResultFileDeps,
  { id, tenantId, outputLastsSeconds }: BatchRow,
  what: "output" | "error" | "results",
  lines: AsyncGenerator<string>,
): Promise<FileId | null> {
  const first = await lines.next();
  if (first.done === true) return null;
  const bytes = await files.stage();
  try {
    for await (const piece of piecesOf(first.value, lines)) await bytes.add(piece);
    const made = { filename: `${id}_${what}.jsonl`, purpose: "batch_output", mediaType: "application/jsonl", bytes };
    // Files that end are new ones each time: those that a stopped server wrote and no batch names end by themselves.
    const lastsSeconds = outputLastsSeconds ?? undefined;
    return (await files.store(tenantId, { ...made, lastsSeconds })).id;
  } catch (error) {
    await bytes.drop();
    throw error;
  }
}

/** Joins lines to pieces of bytes. */
async function* piecesOf(first: string, rest: AsyncGenerator<string>): AsyncGenerator<Uint8Array> {
  let piece = `${first}\n`;
  for await (const line of rest) {
    if (piece.length >= pieceChars) {
      yield Buffer.from(piece);
      piece = "";
    }
    piece += `${line}\n`;
  }
  yield Buffer.from(piece);
}
