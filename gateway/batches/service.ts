/** Batches as their tenant sees them; what becomes of them is the runner's. */
import { type BatchRow, countOpenBatches, findBatch, insertBatch, listBatches, updateBatch } from "../../db/batches.ts";
import { newId, parseId, type TenantId } from "../../db/ids.ts";
import type { Page, PageRange } from "../../db/page.ts";
import { ApiError } from "../errors.ts";
import type { Principal } from "../principal.ts";
import { batchLimits } from "./limits.ts";
import type { SendRequest } from "./requests.ts";
import { BatchRunner, type BatchRunnerDeps } from "./runner.ts";

export interface NewBatchRequest {
  readonly inputFileId: string;
  readonly endpoint: string;
  readonly metadata: Readonly<Record<string, string>> | null;
}

export class BatchService {
  readonly #deps: BatchRunnerDeps;
  readonly #requestIds = new Set<string>();
  #runner: BatchRunner | undefined;

  constructor(deps: BatchRunnerDeps) {
    this.#deps = deps;
  }

  /** Goes on with what a stopped server left. */
  start(send: SendRequest): void {
    const known: SendRequest = async (request, caller) => {
      this.#requestIds.add(caller.requestId);
      try {
        return await send(request, caller);
      } finally {
        this.#requestIds.delete(caller.requestId);
      }
    };
    this.#runner = new BatchRunner(this.#deps, known);
    this.#runner.wake();
  }

  /** @param workId a request's id, or that and more behind a point */
  isLine(workId: string): boolean {
    return this.#requestIds.has(workId.split(".", 1)[0] ?? "");
  }

  /** Lines that run are left to the next start. */
  async stop(): Promise<void> {
    await this.#runner?.stop();
  }

  /** Resolves when nothing is left to do. */
  async idle(): Promise<void> {
    await this.#runner?.idle();
  }

  /** @throws ApiError not_found, invalid_value with param `input_file_id`; quota_exceeded */
  create({ keyId }: Pick<Principal, "keyId">, tenantId: TenantId, request: NewBatchRequest): BatchRow {
    const { db, files, nowMs } = this.#deps;
    const file = files.find(tenantId, request.inputFileId);
    if (file === undefined) throw new ApiError("not_found", { message: "No such file.", param: "input_file_id" });
    if (file.purpose !== "batch") {
      const message = "The file must have been uploaded with the purpose 'batch'.";
      throw new ApiError("invalid_value", { message, param: "input_file_id" });
    }
    if (countOpenBatches(db, tenantId) >= batchLimits.maxOpenPerTenant) {
      throw new ApiError("quota_exceeded", { message: "Too many batches of this tenant have not ended." });
    }
    const createdAt = nowMs();
    const id = newId("batch");
    const { endpoint, metadata } = request;
    const fields = { tenantId, keyId: keyId as BatchRow["keyId"], endpoint, metadata, inputFileId: file.id };
    const times = { createdAt, expiresAt: createdAt + batchLimits.windowMs };
    const row = insertBatch(db, { id, ...fields, ...times }, batchLimits.keptPerTenant);
    if (row === undefined) throw new ApiError("not_found");
    this.#runner?.wake();
    return row;
  }

  /** @throws ApiError not_found, for another tenant's as for one that never was */
  get(tenantId: TenantId, rawId: string): BatchRow {
    const id = parseId("batch", rawId);
    const row = id === undefined ? undefined : findBatch(this.#deps.db, tenantId, id);
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  list(tenantId: TenantId, range: PageRange): Page<BatchRow> {
    return listBatches(this.#deps.db, tenantId, range);
  }

  /** What has a result by now stays in the files. @throws ApiError not_found; conflict when it has ended */
  cancel(tenantId: TenantId, rawId: string): BatchRow {
    const { db, nowMs } = this.#deps;
    const { seq, status } = this.get(tenantId, rawId);
    const change = { status: "cancelling" as const, cancellingAt: nowMs() };
    const row = updateBatch(db, seq, ["validating", "in_progress"], change);
    if (row !== undefined) {
      this.#runner?.interrupt(seq);
      return row;
    }
    if (status === "cancelling" || status === "cancelled") return this.get(tenantId, rawId);
    throw new ApiError("conflict", { message: `A batch that is ${status} cannot be cancelled.` });
  }
}
