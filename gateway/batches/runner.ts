/**
 * Runs batches, each from where its rows say it is: checks their files, runs their lines, puts the results into files.
 * Tenants take turns, a line each. What runs when the server stops leaves no trace and is run by the next one; a line's
 * result is kept once.
 */
import {
  type BatchRow,
  endBatch,
  listBatchTenants,
  listDoneLines,
  readBatch,
  recordResult,
  sweepResults,
  updateBatch,
} from "../../db/batches.ts";
import { newId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { BatchFault } from "../../db/schema.ts";
import { isPassing, reasonOf } from "../background/background-loop.ts";
import { TenantRounds } from "../background/tenant-rounds.ts";
import { ApiError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { Pace, yieldToOthers } from "../base/pace.ts";
import type { Principal } from "../base/principal.ts";
import type { StoragePort } from "../corpus/base/ports.ts";
import type { OpenFile } from "../corpus/files/content-store.ts";
import type { FileService } from "../corpus/files/files.ts";
import type { ApiKeys } from "../tenant/api-keys.ts";
import { inputGone, TenantChecks } from "./checking.ts";
import { batchLimits } from "./limits.ts";
import { messagesEndpoint, readLines } from "./lines.ts";
import type { OpenBatch, WaitingLine } from "./open-batch.ts";
import { type SendRequest, sendLine, unrunResult } from "./requests.ts";
import { writeResults } from "./result-files.ts";
import { TenantBatches } from "./tenant-batches.ts";

const sweptBytesAtOnce = 1024 * 1024;

export interface BatchRunnerDeps {
  readonly db: Db;
  readonly storage: StoragePort;
  readonly files: FileService;
  readonly apiKeys: Pick<ApiKeys, "principalOf">;
  readonly nowMs: () => number;
  readonly log: Log;
}

export class BatchRunner {
  readonly #deps: BatchRunnerDeps;
  readonly #send: SendRequest;
  readonly #checking: TenantRounds;
  readonly #lines: TenantRounds;
  /** Those whose batches run. */
  readonly #tenants = new Map<TenantId, TenantBatches>();
  #stopping = false;

  constructor(deps: BatchRunnerDeps, send: SendRequest) {
    const { log } = deps;
    this.#deps = deps;
    this.#send = send;
    this.#checking = new TenantRounds({
      ...{ name: "checking batches", log, lanes: 1, maxOpen: batchLimits.checkedTenants },
      open: (tenantId) => new TenantChecks(deps, tenantId, () => this.#goOn(tenantId)),
    });
    this.#lines = new TenantRounds({
      ...{ name: "running batches", log, lanes: batchLimits.linesAtOnce, spareLanes: batchLimits.spareLines },
      maxOpen: batchLimits.runningTenants,
      open: (tenantId) => this.#openTenant(tenantId),
    });
  }

  /** Takes up what a stopped server left. */
  start(): void {
    for (const tenantId of listBatchTenants(this.#deps.db)) this.wake(tenantId);
  }

  /** The tenant has a new batch. */
  wake(tenantId: TenantId): void {
    this.#checking.offer(tenantId);
    this.#goOn(tenantId);
  }

  /** The batch was cancelled: what runs of it ends now. */
  interrupt({ tenantId, seq }: Pick<BatchRow, "tenantId" | "seq">): void {
    for (const batch of this.#tenants.get(tenantId)?.batches ?? []) if (batch.row.seq === seq) batch.interrupt();
    this.#goOn(tenantId);
  }

  /** Call when the tenant, keys or files of its are gone: what runs of batches that need them ends now. */
  recheck(tenantId: TenantId): void {
    for (const batch of this.#tenants.get(tenantId)?.batches ?? []) {
      if (this.#callerOf(batch.row) === undefined) batch.interrupt();
    }
    this.#goOn(tenantId);
  }

  async idle(): Promise<void> {
    while (!this.#checking.isIdle || !this.#lines.isIdle)
      await Promise.all([this.#checking.idle(), this.#lines.idle()]);
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    for (const { batches } of this.#tenants.values()) for (const batch of batches) batch.interrupt();
    await Promise.all([this.#checking.stop(), this.#lines.stop()]);
  }

  #goOn(tenantId: TenantId): void {
    this.#tenants.get(tenantId)?.lookAgain();
    this.#lines.offer(tenantId);
  }

  #openTenant(tenantId: TenantId): TenantBatches {
    const work = new TenantBatches(tenantId, {
      ...this.#deps,
      run: (batch) => this.#runSlice(batch),
      woken: () => this.#lines.offer(tenantId),
      closed: () => this.#tenants.delete(tenantId),
    });
    this.#tenants.set(tenantId, work);
    return work;
  }

  /** A line, or the batch's end. @returns true: it has ended, or is left to the next start */
  async #runSlice(batch: OpenBatch): Promise<boolean> {
    const { row } = batch;
    const isLast = batch.isOver;
    try {
      if (isLast) {
        batch.beginEnd();
        if (!this.#stopping) await this.#finish(row);
        return true;
      }
      const isExpired = this.#deps.nowMs() >= row.expiresAt;
      const principal = isExpired ? undefined : this.#callerOf(row);
      if (principal === undefined) batch.interrupt();
      else await batch.withNext((line) => this.#runLine(batch, line, principal));
    } catch (error) {
      // Gone on with once the database and the disk take writes again.
      if (isPassing(error) || (error instanceof ApiError && error.code === "storage_full")) throw error;
      batch.interrupt();
      const isGone = error instanceof ApiError && error.code === "not_found";
      // Its file may have been deleted since: that is told where it is looked for.
      if (!isGone || this.#callerOf(row) !== undefined) this.#failWith(row, error);
    }
    return isLast;
  }

  #failWith({ id, seq }: BatchRow, error: unknown): void {
    const { db, log, nowMs } = this.#deps;
    const fault = { code: "server_error", message: "The server had an error.", line: null, param: null };
    // One that is gone went with its tenant.
    if (!endBatch(db, seq, { status: "failed", errors: [fault], failedAt: nowMs() })) return;
    log("error", "a batch failed", { batchId: id, reason: reasonOf(error) });
  }

  async #runLine(batch: OpenBatch, waiting: WaitingLine, principal: Principal): Promise<void> {
    const { db } = this.#deps;
    const { seq, endpoint } = batch.row;
    const { number } = waiting.place;
    const resultId = newId("batchRequest");
    const isFull = (more: number): boolean =>
      (readBatch(db, seq)?.outputBytes ?? 0) + more > batchLimits.maxOutputBytes ||
      !this.#mayStore(batch.row.tenantId, more);
    const line = await batch.read(waiting);
    const full = () =>
      unrunResult(
        { line, endpoint, resultId },
        "batch_output_limit",
        "The results of the batch, or all that the tenant stores, have as many bytes as they may.",
      );
    if (isFull(0)) {
      recordResult(db, seq, { line: number, ...full() });
      return;
    }
    const answered = await sendLine(this.#send, { line, endpoint, principal, resultId, signal: batch.signal });
    if (answered === undefined || batch.settle(waiting, answered)) return;
    const { result } = answered;
    const kept = isFull(Buffer.byteLength(result.body)) ? full() : result;
    recordResult(db, seq, { line: number, ...kept });
  }

  /** Results count as they are recorded, and no more when they are a file. @throws ApiError storage_full */
  #mayStore(tenantId: TenantId, bytes: number): boolean {
    try {
      this.#deps.storage.reserve(tenantId, bytes)();
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.code === "quota_exceeded") return false;
      throw error;
    }
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
  async #expire({ seq, endpoint, tenantId, inputFileId }: BatchRow): Promise<void> {
    const { db, files, nowMs } = this.#deps;
    const pace = new Pace();
    // What is left of messages is told when their file is written.
    const lines = endpoint === messagesEndpoint ? [] : linesOfFile(files, tenantId, inputFileId);
    for await (const line of lines) {
      await pace.breathe();
      if (listDoneLines(db, seq, line.number, line.number).length > 0) continue;
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

  /** What a stop leaves is the corpus' sweep's. */
  async #sweep(seq: number): Promise<void> {
    while (sweepResults(this.#deps.db, sweptBytesAtOnce, seq)) await yieldToOthers();
  }

  /** Results become files; only then does the batch end. Done again from its start where it was stopped. */
  async #finish({ seq, tenantId, expiresAt }: BatchRow): Promise<void> {
    const { db, files, nowMs } = this.#deps;
    const now = readBatch(db, seq);
    if (now?.status === "in_progress" && now.failedAt === null && nowMs() >= expiresAt) await this.#expire(now);
    const batch =
      updateBatch(db, seq, ["in_progress"], { status: "finalizing", finalizingAt: nowMs() }) ?? readBatch(db, seq);
    if (batch?.status !== "finalizing" && batch?.status !== "cancelling") return;
    const made = await writeResults(this.#deps, batch, () => linesOfFile(files, tenantId, batch.inputFileId));
    const ended =
      batch.status === "cancelling"
        ? endBatch(db, seq, { ...made, status: "cancelled", cancelledAt: nowMs() })
        : endBatch(db, seq, { ...made, ...endOf(batch, nowMs()) });
    if (ended) return await this.#sweep(seq);
    // Its tenant went meanwhile; the files went with it, or are the sweep's.
    for (const id of [made.outputFileId, made.errorFileId]) {
      if (id !== null && files.find(tenantId, id)) files.delete(tenantId, id);
    }
  }
}

/** None when the file is gone. */
async function* linesOfFile(files: FileService, tenantId: TenantId, id: BatchRow["inputFileId"]) {
  if (files.find(tenantId, id) === undefined) return;
  const file: OpenFile = await files.open(tenantId, id);
  try {
    yield* readLines(file);
  } finally {
    await file.close();
  }
}

function endOf({ failedAt, expiredAt }: BatchRow, nowMs: number) {
  if (failedAt !== null) return { status: "failed" as const };
  if (expiredAt !== null) return { status: "expired" as const };
  return { status: "completed" as const, completedAt: nowMs };
}
