/** Batches as their tenant sees and changes them. The runner does their work. */
import {
  type BatchRow,
  countOpenBatches,
  findBatch,
  insertBatch,
  listBatches,
  removeBatch,
  updateBatch,
} from "../../db/batches.ts";
import { type FileId, newId, parseId, type TenantId } from "../../db/ids.ts";
import type { Page, PageRange } from "../../db/page.ts";
import { ApiError } from "../base/errors.ts";
import type { StagedFile } from "../corpus/files/staged-file.ts";
import type { Principal } from "../tenant/principal.ts";
import { batchLimits } from "./limits.ts";
import { batchEndpoints, messageLine, messagesEndpoint } from "./lines.ts";
import { endedAtOf } from "./message-results.ts";
import type { SendRequest } from "./requests.ts";
import { BatchRunner, type BatchRunnerDeps } from "./runner.ts";

export interface NewBatchRequest {
  readonly inputFileId: string;
  readonly endpoint: string;
  readonly metadata: Readonly<Record<string, string>> | null;
  /** How long the result files last; absent: they stay. */
  readonly outputLastsSeconds?: number | null;
}

type NewFields = Omit<Parameters<typeof insertBatch>[1], "keyId" | "createdAt" | "expiresAt"> &
  Pick<Principal, "keyId">;

/** The API that made a batch, OpenAI's or Anthropic's. Each of the two shows only its own batches. */
export type BatchKind = "batch" | "messageBatch";
const endpointsOf: Readonly<Record<BatchKind, readonly string[]>> = {
  batch: batchEndpoints,
  messageBatch: [messagesEndpoint],
};

export class BatchService {
  readonly #deps: BatchRunnerDeps;
  readonly #requestIds = new Set<string>();
  #runner: BatchRunner | undefined;

  constructor(deps: BatchRunnerDeps) {
    this.#deps = deps;
  }

  /** Goes on with the batches that a stopped server left unfinished. */
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
    this.#runner.start();
  }

  /** Whether this work is a line of a batch. @param workId a request's id, alone or followed by a point and more */
  isLine(workId: string): boolean {
    return this.#requestIds.has(workId.split(".", 1)[0] ?? "");
  }

  /** Stops running lines; the next start runs them again. */
  async stop(): Promise<void> {
    await this.#runner?.stop();
  }

  /** Resolves when no batch has work left. */
  async idle(): Promise<void> {
    await this.#runner?.idle();
  }

  /** @throws ApiError not_found, invalid_value with param `input_file_id`; quota_exceeded */
  create({ keyId }: Pick<Principal, "keyId">, tenantId: TenantId, request: NewBatchRequest): BatchRow {
    const { files, nowMs } = this.#deps;
    const file = files.find(tenantId, request.inputFileId);
    if (file === undefined) throw new ApiError("not_found", { message: "No such file.", param: "input_file_id" });
    if (file.purpose !== "batch") {
      const message = "The file must have been uploaded with the purpose 'batch'.";
      throw new ApiError("invalid_value", { message, param: "input_file_id" });
    }
    const { inputFileId: _, ...asked } = request;
    return this.#insert({ id: newId("batch"), tenantId, keyId, inputFileId: file.id, ...asked }, nowMs());
  }

  /**
   * Makes a batch of messages. Its requests are written to a file of the tenant as they arrive.
   * @param bodyBytes at most this many bytes of the request's body become lines
   * @param fill checks the requests, adds them to the file as lines (`messageLine`), and returns how many there are
   * @throws ApiError quota_exceeded, storage_full, and what `fill` throws
   */
  async createMessages(
    { keyId }: Pick<Principal, "keyId">,
    tenantId: TenantId,
    bodyBytes: number,
    fill: (file: Pick<StagedFile, "add">) => Promise<number>,
  ): Promise<BatchRow> {
    this.#checkOpen(tenantId);
    const id = newId("messageBatch");
    const release = this.#deps.storage.reserve(tenantId, bodyBytes + batchLimits.maxLines * messageLine("", {}).length);
    try {
      const { inputFileId, total } = await this.#storeRequests(tenantId, `${id}_requests.jsonl`, fill);
      const createdAt = this.#deps.nowMs();
      const checked = { status: "in_progress", total, inProgressAt: createdAt } as const;
      const fields = { id, tenantId, keyId, endpoint: messagesEndpoint, metadata: null, inputFileId };
      try {
        return this.#insert({ ...fields, ...checked }, createdAt);
      } catch (error) {
        this.#deleteFile(tenantId, inputFileId);
        throw error;
      }
    } finally {
      release();
    }
  }

  async #storeRequests(tenantId: TenantId, filename: string, fill: (file: StagedFile) => Promise<number>) {
    const { files } = this.#deps;
    const bytes = await files.stage();
    try {
      const total = await fill(bytes);
      const upload = { filename, purpose: "batch", mediaType: "application/jsonl", bytes };
      return { total, inputFileId: (await files.store(tenantId, upload)).id };
    } catch (error) {
      await bytes.drop();
      throw error;
    }
  }

  #insert(fields: NewFields, createdAt: number): BatchRow {
    const { tenantId, keyId } = fields;
    this.#checkOpen(tenantId);
    const times = { createdAt, expiresAt: createdAt + batchLimits.windowMs };
    const fresh = { ...fields, keyId: keyId as BatchRow["keyId"], ...times };
    const row = insertBatch(this.#deps.db, fresh, batchLimits.keptPerTenant);
    if (row === undefined) throw new ApiError("not_found");
    this.#runner?.wake(tenantId);
    return row;
  }

  #checkOpen(tenantId: TenantId): void {
    if (countOpenBatches(this.#deps.db, tenantId) < batchLimits.maxOpenPerTenant) return;
    throw new ApiError("quota_exceeded", { message: "Too many batches of this tenant have not ended." });
  }

  #deleteFile(tenantId: TenantId, id: FileId): void {
    const { files } = this.#deps;
    if (files.find(tenantId, id) !== undefined) files.delete(tenantId, id);
  }

  /** @throws ApiError not_found, also for another tenant's batch */
  get(tenantId: TenantId, rawId: string, kind: BatchKind = "batch"): BatchRow {
    const id = parseId(kind, rawId);
    const row = id === undefined ? undefined : findBatch(this.#deps.db, tenantId, id);
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  list(tenantId: TenantId, range: PageRange, kind: BatchKind = "batch"): Page<BatchRow> {
    return listBatches(this.#deps.db, tenantId, { ...range, endpoints: endpointsOf[kind] });
  }

  /**
   * Lines that have a result by now keep it in the result files.
   * @throws ApiError not_found; conflict when it has ended
   */
  cancel(tenantId: TenantId, rawId: string, kind: BatchKind = "batch"): BatchRow {
    const { db, nowMs } = this.#deps;
    const { seq, status } = this.get(tenantId, rawId, kind);
    const change = { status: "cancelling" as const, cancellingAt: nowMs() };
    const row = updateBatch(db, seq, ["validating", "in_progress"], change);
    if (row !== undefined) {
      this.#runner?.interrupt(row);
      return row;
    }
    if (status === "cancelling" || status === "cancelled") return this.get(tenantId, rawId, kind);
    throw new ApiError("conflict", { message: `A batch that is ${status} cannot be cancelled.` });
  }

  /** Call when the tenant, or one of its keys or files, is gone: running lines that need it are aborted at once. */
  recheck(tenantId: TenantId): void {
    this.#runner?.recheck(tenantId);
  }

  /** Deletes the batch, its requests and its results. @throws ApiError not_found; conflict when it has not ended */
  deleteMessages(tenantId: TenantId, rawId: string): BatchRow["id"] {
    const { id, seq, inputFileId, outputFileId } = this.get(tenantId, rawId, "messageBatch");
    if (!removeBatch(this.#deps.db, seq)) {
      throw new ApiError("conflict", { message: "A batch that has not ended cannot be deleted: cancel it first." });
    }
    for (const fileId of [inputFileId, outputFileId]) if (fileId !== null) this.#deleteFile(tenantId, fileId);
    return id;
  }

  /**
   * The bytes of the result file; see FileService.pieces.
   * @throws ApiError not_found; conflict when it has not ended
   */
  async messageResults(
    tenantId: TenantId,
    rawId: string,
    enter: () => () => void,
  ): Promise<AsyncGenerator<Uint8Array>> {
    const batch = this.get(tenantId, rawId, "messageBatch");
    if (endedAtOf(batch) === null) throw new ApiError("conflict", { message: "The batch has not ended." });
    return (await this.#deps.files.pieces(tenantId, batch.outputFileId ?? "", enter)).pieces;
  }
}
