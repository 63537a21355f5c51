/**
 * Runs batches, each from where its rows say it is: checks their files, runs their lines, puts the results into files.
 * What runs when the server stops leaves no trace and is run by the next one; a line's result is kept once.
 */
import {
  type BatchRow,
  endBatch,
  listDoneLines,
  nextBatch,
  readBatch,
  recordResult,
  updateBatch,
} from "../../db/batches.ts";
import { newId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { BatchFault } from "../../db/schema.ts";
import type { FileService } from "../corpus/files.ts";
import { BackgroundLoop, isPassing, reasonOf } from "../corpus/loop.ts";
import { Pace } from "../corpus/pace.ts";
import { ApiError } from "../errors.ts";
import type { Log } from "../log.ts";
import type { Principal } from "../principal.ts";
import type { ApiKeys } from "../tenant/api-keys.ts";
import { batchLimits } from "./limits.ts";
import { type BatchLine, checkLines, messagesEndpoint, readLines } from "./lines.ts";
import { runLine, type SendRequest, unrunResult } from "./requests.ts";
import { writeResults } from "./result-files.ts";

export interface BatchRunnerDeps {
  readonly db: Db;
  readonly files: FileService;
  readonly apiKeys: Pick<ApiKeys, "principalOf">;
  readonly nowMs: () => number;
  readonly log: Log;
}

export class BatchRunner {
  readonly #deps: BatchRunnerDeps;
  readonly #send: SendRequest;
  readonly #checking: BackgroundLoop;
  readonly #lanes: readonly BackgroundLoop[];
  readonly #running = new Map<number, { readonly tenantId: TenantId; readonly cancel: AbortController }>();
  #stopping = false;

  constructor(deps: BatchRunnerDeps, send: SendRequest) {
    this.#deps = deps;
    this.#send = send;
    this.#checking = new BackgroundLoop("checking batches", deps.log, (signal) => this.#checkAll(signal));
    const lane = () => new BackgroundLoop("running batches", deps.log, (signal) => this.#runAll(signal));
    this.#lanes = Array.from({ length: batchLimits.runningBatches }, lane);
  }

  wake(): void {
    this.#checking.wake();
    for (const lane of this.#lanes) lane.wake();
  }

  /** For a batch that was cancelled, or whose tenant is gone: what runs of it ends now. */
  interrupt(seq: number): void {
    this.#running.get(seq)?.cancel.abort();
    this.wake();
  }

  async idle(): Promise<void> {
    await this.#checking.idle();
    await Promise.all(this.#lanes.map((lane) => lane.idle()));
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    for (const { cancel } of this.#running.values()) cancel.abort();
    await Promise.all([this.#checking.stop(), ...this.#lanes.map((lane) => lane.stop())]);
  }

  async #checkAll(signal: AbortSignal): Promise<void> {
    const { db, nowMs } = this.#deps;
    for (let batch = nextBatch(db, ["validating"]); batch !== undefined; batch = nextBatch(db, ["validating"])) {
      if (signal.aborted) return;
      const text = await this.#inputOf(batch);
      const { faults, total } = typeof text === "string" ? await checkLines(text, batch.endpoint) : text;
      const change =
        faults.length > 0
          ? { status: "failed" as const, errors: faults, failedAt: nowMs() }
          : { status: "in_progress" as const, total, inProgressAt: nowMs() };
      updateBatch(db, batch.seq, ["validating"], change);
      for (const lane of this.#lanes) lane.wake();
    }
  }

  async #runAll(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const busy = [...this.#running.values()].map(({ tenantId }) => tenantId);
      const batch = nextBatch(this.#deps.db, ["in_progress", "finalizing", "cancelling"], busy);
      if (batch === undefined) return;
      const cancel = new AbortController();
      this.#running.set(batch.seq, { tenantId: batch.tenantId, cancel });
      try {
        if (batch.status === "in_progress") await this.#runLines(batch, cancel.signal);
        if (!this.#stopping) await this.#finish(batch.seq);
      } catch (error) {
        // Gone on with once the database and the disk take writes again.
        if (isPassing(error) || (error instanceof ApiError && error.code === "storage_full")) throw error;
        const fault = { code: "server_error", message: "The server had an error.", line: null, param: null };
        const change = { status: "failed" as const, errors: [fault], failedAt: this.#deps.nowMs() };
        // One that is gone went with its tenant.
        if (!endBatch(this.#deps.db, batch.seq, change)) continue;
        this.#deps.log("error", "a batch failed", { batchId: batch.id, reason: reasonOf(error) });
      } finally {
        this.#running.delete(batch.seq);
      }
    }
  }

  /** Until every line has a result, or the batch has ended another way. */
  async #runLines(batch: BatchRow, cancelled: AbortSignal): Promise<void> {
    const { db, nowMs } = this.#deps;
    const text = await this.#inputOf(batch);
    if (typeof text !== "string") return this.#fail(batch, text.faults[0]);
    const done = new Set(listDoneLines(db, batch.seq));
    const lines = readLines(text);
    const leftMs = batch.expiresAt - nowMs();
    if (leftMs <= 0) return await this.#expire(batch, text);
    const expired = AbortSignal.timeout(leftMs);
    const failed = new AbortController();
    const signal = AbortSignal.any([cancelled, expired, failed.signal]);
    const runNext = async (): Promise<void> => {
      // Several take from one row of lines, so none may close it as a loop over it would.
      for (let next = lines.next(); next.done !== true; next = lines.next()) {
        const line = next.value;
        if (done.has(line.number)) continue;
        const principal = this.#callerOf(batch);
        if (signal.aborted || principal === undefined) return;
        await this.#runOne(batch, line, principal, signal);
      }
    };
    const running = Array.from({ length: batchLimits.linesAtOnce }, () =>
      runNext().catch((error: unknown) => failed.abort(error)),
    );
    await Promise.all(running);
    // Nothing of it runs any more, so it may be gone on with.
    if (failed.signal.aborted) throw failed.signal.reason;
    if (expired.aborted && !cancelled.aborted) await this.#expire(batch, text);
  }

  async #runOne(batch: BatchRow, line: BatchLine, principal: Principal, signal: AbortSignal): Promise<void> {
    const { db } = this.#deps;
    const { endpoint } = batch;
    const resultId = newId("batchRequest");
    const isFull = (more: number): boolean =>
      (readBatch(db, batch.seq)?.outputBytes ?? 0) + more > batchLimits.maxOutputBytes;
    const full = () =>
      unrunResult(
        { line, endpoint, resultId },
        "batch_output_limit",
        "The results of the batch have as many bytes as they may.",
      );
    if (isFull(0)) {
      await new Promise(setImmediate);
      recordResult(db, batch.seq, { line: line.number, ...full() });
      return;
    }
    const result = await runLine(this.#send, { line, endpoint, principal, resultId, signal });
    if (result === undefined) return;
    const kept = isFull(Buffer.byteLength(result.body)) ? full() : result;
    recordResult(db, batch.seq, { line: line.number, ...kept });
  }

  /** undefined: the batch does not run any more. */
  #callerOf(batch: BatchRow): Principal | undefined {
    const { db, files, apiKeys } = this.#deps;
    if (readBatch(db, batch.seq)?.status !== "in_progress") return undefined;
    const principal = apiKeys.principalOf(batch.keyId);
    if (principal?.tenantId !== batch.tenantId) {
      const message = "The API key that made the batch is not valid any more.";
      this.#fail(batch, { code: "invalid_api_key", message, line: null, param: null });
      return undefined;
    }
    if (files.find(batch.tenantId, batch.inputFileId) === undefined) {
      this.#fail(batch, inputGone);
      return undefined;
    }
    return { ...principal, scopes: new Set(["inference"]) };
  }

  /** Lines without a result get one that says so. */
  async #expire(batch: BatchRow, text: string): Promise<void> {
    const { db, nowMs } = this.#deps;
    const { seq, endpoint } = batch;
    const done = new Set(listDoneLines(db, seq));
    const pace = new Pace();
    // What is left of messages is told when their file is written.
    for (const line of endpoint === messagesEndpoint ? [] : readLines(text)) {
      await pace.breathe();
      if (done.has(line.number)) continue;
      const message = "The line could not be run before the batch expired.";
      const result = unrunResult({ line, endpoint, resultId: newId("batchRequest") }, "batch_expired", message);
      // Told anew by the next start if this one is lost.
      db.unsynced(() => recordResult(db, seq, { line: line.number, ...result }));
    }
    updateBatch(db, seq, ["in_progress"], { expiredAt: nowMs() });
  }

  #fail({ seq }: BatchRow, fault: BatchFault = inputGone): void {
    updateBatch(this.#deps.db, seq, ["in_progress"], { errors: [fault], failedAt: this.#deps.nowMs() });
  }

  /** Results become files; only then does the batch end. Done again from its start where it was stopped. */
  async #finish(seq: number): Promise<void> {
    const { db, nowMs } = this.#deps;
    const batch =
      updateBatch(db, seq, ["in_progress"], { status: "finalizing", finalizingAt: nowMs() }) ?? readBatch(db, seq);
    if (batch === undefined) return;
    const files = await writeResults(this.#deps, batch, async () => {
      const text = await this.#inputOf(batch);
      return typeof text === "string" ? text : undefined;
    });
    const ended =
      batch.status === "cancelling"
        ? endBatch(db, seq, { ...files, status: "cancelled", cancelledAt: nowMs() })
        : endBatch(db, seq, { ...files, ...endOf(batch, nowMs()) });
    if (ended) return;
    // Its tenant went meanwhile; the files went with it, or are the sweep's.
    for (const id of [files.outputFileId, files.errorFileId]) {
      if (id !== null && this.#deps.files.find(batch.tenantId, id)) this.#deps.files.delete(batch.tenantId, id);
    }
  }

  async #inputOf({ tenantId, inputFileId }: BatchRow): Promise<string | { faults: readonly BatchFault[]; total: 0 }> {
    try {
      const { bytes } = await this.#deps.files.content(tenantId, inputFileId);
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch (error) {
      const fault = { code: "invalid_file", message: "The file is not UTF-8.", line: null, param: "input_file_id" };
      if (error instanceof TypeError) return { faults: [fault], total: 0 };
      if (error instanceof ApiError && error.code === "not_found") return { faults: [inputGone], total: 0 };
      throw error;
    }
  }
}

const inputGone: BatchFault = {
  code: "input_file_deleted",
  message: "The batch's file was deleted.",
  line: null,
  param: "input_file_id",
};

function endOf({ failedAt, expiredAt }: BatchRow, nowMs: number) {
  if (failedAt !== null) return { status: "failed" as const };
  if (expiredAt !== null) return { status: "expired" as const };
  return { status: "completed" as const, completedAt: nowMs };
}
