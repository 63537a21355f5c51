/**
 * Runs batches: checks their files, runs their lines and writes their results to files. What is done is read from the
 * database. Tenants run one line each in rounds. A line that runs when the server stops leaves no trace, and the next
 * start runs it again. A line's result is stored only once.
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
import { Pace, yieldToRequests } from "../base/pace.ts";
import type { StoragePort } from "../corpus/base/ports.ts";
import type { OpenFile } from "../corpus/files/content-store.ts";
import type { FileService } from "../corpus/files/files.ts";
import type { ApiKeys } from "../tenant/api-keys.ts";
import type { Principal } from "../tenant/principal.ts";
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
  /** The tenants whose batches run. */
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

  /** Takes up the batches that a stopped server left unfinished. */
  start(): void {
    for (const tenantId of listBatchTenants(this.#deps.db)) this.wake(tenantId);
  }

  /** Call when the tenant has a new batch. */
  wake(tenantId: TenantId): void {
    this.#checking.offer(tenantId);
    this.#goOn(tenantId);
  }

  /** Call when the batch was cancelled: its running lines are aborted at once. */
  interrupt({ tenantId, seq }: Pick<BatchRow, "tenantId" | "seq">): void {
    for (const batch of this.#tenants.get(tenantId)?.batches ?? []) if (batch.row.seq === seq) batch.interrupt();
    this.#goOn(tenantId);
  }

  /**
   * Call when the tenant, or one of its keys or files, is gone: running lines of batches that need it are aborted at
   * once.
   */
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

  /** Runs one line, or ends the batch. @returns true when the batch has ended or is left to the next start */
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
      // The batch goes on as soon as the database and the disk accept writes again.
      if (isPassing(error) || (error instanceof ApiError && error.code === "storage_full")) throw error;
      batch.interrupt();
      const isGone = error instanceof ApiError && error.code === "not_found";
      // If the key or the input file is gone, #callerOf records that as the batch's fault; anything else fails it here.
      if (!isGone || this.#callerOf(row) !== undefined) this.#failWith(row, error);
    }
    return isLast;
  }

  #failWith({ id, seq }: BatchRow, error: unknown): void {
    const { db, log, nowMs } = this.#deps;
    const fault = { code: "server_error", message: "The server had an error.", line: null, param: null };
    // This changes nothing if the batch was deleted with its tenant.
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
      db.unsynced(() => recordResult(db, seq, { line: number, ...full() }));
      return;
    }
    const answered = await sendLine(this.#send, { line, endpoint, principal, resultId, signal: batch.signal });
    if (answered === undefined || batch.settle(waiting, answered)) return;
    const { result } = answered;
    const kept = isFull(Buffer.byteLength(result.body)) ? full() : result;
    // If a power cut loses this row, the next start runs the line again: nobody was told of its result.
    db.unsynced(() => recordResult(db, seq, { line: number, ...kept }));
  }

  /**
   * Whether the tenant's storage quota has room for this many bytes. Results count while they are rows; once they are
   * in a file, only the file counts.
   * @throws ApiError storage_full
   */
  #mayStore(tenantId: TenantId, bytes: number): boolean {
    try {
      this.#deps.storage.reserve(tenantId, bytes)();
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.code === "quota_exceeded") return false;
      throw error;
    }
  }

  /** The caller for whom the batch's lines run. undefined: the batch does not run any more. */
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

  /** Gives every line without a result a result that says that the batch expired. */
  async #expire({ seq, endpoint, tenantId, inputFileId }: BatchRow): Promise<void> {
    const { db, files, nowMs } = this.#deps;
    const pace = new Pace(yieldToRequests);
    // Lines of message batches that were not run get their results when the result file is written.
    const lines = endpoint === messagesEndpoint ? [] : linesOfFile(files, tenantId, inputFileId);
    for await (const line of lines) {
      await pace.breathe();
      if (listDoneLines(db, seq, line.number, line.number).length > 0) continue;
      const message = "The line could not be run before the batch expired.";
      const result = unrunResult({ line, endpoint, resultId: newId("batchRequest") }, "batch_expired", message);
      // If a power cut loses this row, the next start writes it again.
      db.unsynced(() => recordResult(db, seq, { line: line.number, ...result }));
    }
    updateBatch(db, seq, ["in_progress"], { expiredAt: nowMs() });
  }

  #fail({ seq }: BatchRow, fault: BatchFault = inputGone): void {
    updateBatch(this.#deps.db, seq, ["in_progress"], { errors: [fault], failedAt: this.#deps.nowMs() });
  }

  /**
   * Removes the results of a batch that has ended. If the server stops before all are removed, the corpus sweep removes
   * the rest.
   */
  async #sweep(seq: number): Promise<void> {
    while (sweepResults(this.#deps.db, sweptBytesAtOnce, seq)) await yieldToRequests();
  }

  /**
   * Writes the results to files and then ends the batch. If the server stops meanwhile, the next start repeats all of
   * it.
   */
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
    // The batch was deleted with its tenant meanwhile. Files that the deletion has not marked yet are deleted here.
    for (const id of [made.outputFileId, made.errorFileId]) {
      if (id !== null && files.find(tenantId, id)) files.delete(tenantId, id);
    }
  }
}

/** Yields no lines when the file was deleted. */
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
