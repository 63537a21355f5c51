/** Results of a batch that ends as files of its tenant's: the same ones however often they are written. */
import { type BatchRow, walkResults } from "../../db/batches.ts";
import type { FileId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { FileService } from "../corpus/files.ts";
import { Pace } from "../corpus/pace.ts";
import { messagesEndpoint, readLines } from "./lines.ts";
import { restResult } from "./message-results.ts";

export interface ResultFileDeps {
  readonly db: Db;
  readonly files: FileService;
}

export interface ResultFiles {
  readonly outputFileId: FileId | null;
  readonly errorFileId: FileId | null;
}

/** @param readInput the batch's file; undefined when it is gone */
export async function writeResults(
  deps: ResultFileDeps,
  batch: BatchRow,
  readInput: () => Promise<string | undefined>,
): Promise<ResultFiles> {
  if (batch.endpoint === messagesEndpoint) {
    const lines = await messageLines(deps.db, batch, await readInput());
    return { outputFileId: await store(deps, batch, "results", lines), errorFileId: null };
  }
  const write = async (isError: boolean): Promise<FileId | null> => {
    const lines: string[] = [];
    for await (const { body } of resultsOf(deps.db, batch.seq, isError)) lines.push(body);
    return await store(deps, batch, isError ? "error" : "output", lines);
  };
  return { outputFileId: await write(false), errorFileId: await write(true) };
}

/** All of a batch's lines, those too that were not run. */
async function messageLines(db: Db, batch: BatchRow, input: string | undefined): Promise<string[]> {
  const bodies = new Map<number, string>();
  for await (const { line, body } of resultsOf(db, batch.seq, undefined)) bodies.set(line, body);
  if (input === undefined) return [...bodies.values()];
  const pace = new Pace();
  const lines: string[] = [];
  for (const line of readLines(input)) {
    await pace.breathe();
    lines.push(bodies.get(line.number) ?? restResult(line, batch));
  }
  return lines;
}

async function* resultsOf(db: Db, seq: number, isError: boolean | undefined) {
  for (let afterLine = 0; ; ) {
    const rows = walkResults(db, seq, { isError, afterLine, limit: 500 });
    const last = rows.at(-1);
    if (last === undefined) return;
    yield* rows;
    afterLine = last.line;
    await new Promise(setImmediate);
  }
}

/** @returns null when there is nothing to write */
async function store(
  { files }: ResultFileDeps,
  { id, tenantId }: BatchRow,
  what: "output" | "error" | "results",
  lines: readonly string[],
): Promise<FileId | null> {
  if (lines.length === 0) return null;
  const bytes = Buffer.concat(lines.map((line) => Buffer.from(`${line}\n`)));
  const made = { filename: `${id}_${what}.jsonl`, purpose: "batch_output", mediaType: "application/jsonl", bytes };
  return (await files.store(tenantId, made)).id;
}
