/**
 * A batch that runs: it knows which line is next, and when that line may run. Only a few lines are in memory at a time,
 * by their places in the file. They include the lines that were refused and are to be tried again.
 */
import { type BatchRow, listDoneLines } from "../../db/batches.ts";
import type { Db } from "../../db/open.ts";
import type { FileService } from "../corpus/files/files.ts";
import { batchLimits } from "./limits.ts";
import { type BatchLine, findLines, firstLine, type LineCursor, type LinePlace, readLine } from "./lines.ts";
import type { Answered } from "./requests.ts";

export interface WaitingLine {
  readonly place: LinePlace;
  /** How often the server has failed this line. */
  readonly failures: number;
  /** The line is not tried again before this time, by performance.now(). */
  readonly notBeforeMs: number;
}

const placesAtOnce = 32;

export class OpenBatch {
  readonly row: BatchRow;
  readonly #db: Db;
  readonly #files: FileService;
  readonly #ending = new AbortController();
  readonly #expiry: ReturnType<typeof setTimeout>;
  #next: LineCursor | undefined = firstLine;
  #places: LinePlace[] = [];
  #finding: Promise<void> | undefined;
  /**
   * Lines that are to be tried again. These and the running lines together never exceed the lines that may run at once.
   */
  #again: WaitingLine[] = [];
  #running = 0;
  #isEnding = false;
  /** How many lines may run at once. A refused line lowers it, and each answered line raises it again by one. */
  #width: number = batchLimits.linesPerTenant;
  /** Refusals since the last line was answered, and the time before which the server asked not to be tried again. */
  #refusals = 0;
  #refusedUntilMs = 0;

  /** @param leftMs milliseconds until the batch expires and `onExpired` is called */
  constructor(
    row: BatchRow,
    deps: { readonly db: Db; readonly files: FileService },
    leftMs: number,
    onExpired: () => void,
  ) {
    this.row = row;
    this.#db = deps.db;
    this.#files = deps.files;
    this.#expiry = setTimeout(onExpired, Math.max(0, leftMs));
    this.#expiry.unref();
  }

  /** This signal aborts when no more lines are to run. */
  get signal(): AbortSignal {
    return this.#ending.signal;
  }

  /** Aborts the lines that run; they end without a result. */
  interrupt(): void {
    clearTimeout(this.#expiry);
    this.#ending.abort();
  }

  /** Call before the batch's results are written to files: from then on the batch is never ready for another slice. */
  beginEnd(): void {
    clearTimeout(this.#expiry);
    this.#isEnding = true;
  }

  /** Whether the batch has nothing left to do: no line runs, and none is left that may run. */
  get isOver(): boolean {
    if (this.#running > 0) return false;
    return this.signal.aborted || (this.#again.length === 0 && !this.#hasFresh);
  }

  get #hasFresh(): boolean {
    return this.#places.length > 0 || this.#next !== undefined;
  }

  /** When the batch can go on, by performance.now(). Infinite: only after a running line has ended. */
  readyAtMs(): number {
    if (this.#isEnding) return Number.POSITIVE_INFINITY;
    if (this.isOver) return 0;
    if (this.signal.aborted || this.#running >= this.#width) return Number.POSITIVE_INFINITY;
    const isRoom = this.#running + this.#again.length < batchLimits.linesPerTenant;
    const soonestMs = isRoom && this.#hasFresh ? 0 : Math.min(...this.#again.map(({ notBeforeMs }) => notBeforeMs));
    return Math.max(soonestMs, this.#refusedUntilMs);
  }

  /** Calls `run` with the next line, if there is one. */
  async withNext(run: (line: WaitingLine) => Promise<void>): Promise<void> {
    this.#running += 1;
    try {
      const line = await this.#take();
      if (line !== undefined && !this.signal.aborted) await run(line);
    } finally {
      this.#running -= 1;
    }
  }

  async read({ place }: WaitingLine): Promise<BatchLine> {
    const file = await this.#files.open(this.row.tenantId, this.row.inputFileId);
    try {
      return await readLine(file, place);
    } finally {
      await file.close();
    }
  }

  /** @returns whether the line is tried again later */
  settle({ place, failures }: WaitingLine, { kind, askedMs }: Pick<Answered, "kind" | "askedMs">): boolean {
    if (kind !== "refused") {
      this.#refusals = 0;
      this.#refusedUntilMs = 0;
      this.#width = Math.min(batchLimits.linesPerTenant, this.#width + 1);
    }
    if (kind === "answered" || (kind === "failed" && failures + 1 >= batchLimits.attempts)) return false;
    const nowMs = performance.now();
    // Lines that run side by side are refused for the same reason, so their refusals count as one.
    if (kind === "refused" && nowMs >= this.#refusedUntilMs) this.#refusals += 1;
    const earlier = kind === "refused" ? this.#refusals - 1 : failures;
    const waitMs = Math.min(batchLimits.retryMaxMs, Math.max(askedMs, batchLimits.retryMinMs * 2 ** earlier));
    const notBeforeMs = nowMs + waitMs;
    this.#again.push({ place, failures: failures + (kind === "failed" ? 1 : 0), notBeforeMs });
    if (kind === "refused") {
      // The reason that refused this line would refuse the next one too.
      this.#refusedUntilMs = Math.max(this.#refusedUntilMs, notBeforeMs);
      this.#width = Math.max(1, this.#running - 1);
    }
    return true;
  }

  async #take(): Promise<WaitingLine | undefined> {
    const nowMs = performance.now();
    const due = this.#again.findIndex(({ notBeforeMs }) => notBeforeMs <= nowMs);
    if (due >= 0) return this.#again.splice(due, 1)[0];
    while (this.#places.length === 0 && this.#next !== undefined && !this.signal.aborted) {
      this.#finding ??= this.#find(this.#next).finally(() => {
        this.#finding = undefined;
      });
      await this.#finding;
    }
    const place = this.#places.shift();
    return place && { place, failures: 0, notBeforeMs: 0 };
  }

  async #find(from: LineCursor): Promise<void> {
    const { tenantId, inputFileId, seq } = this.row;
    const file = await this.#files.open(tenantId, inputFileId);
    try {
      const { places, next } = await findLines(file, from, placesAtOnce);
      const last = places.at(-1)?.number ?? 0;
      const done = new Set(listDoneLines(this.#db, seq, from.number, last));
      this.#places = places.filter(({ number }) => !done.has(number));
      this.#next = next;
    } finally {
      await file.close();
    }
  }
}
