/**
 * Files that come in parts: parts lie in a folder of their own until the upload is completed, cancelled or has expired.
 * What the folder holds beyond the parts of pending uploads is taken away in the background.
 */
import type { FileRow } from "../../db/files.ts";
import { newId, parseId, type TenantId, type UploadPartId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import {
  countPendingUploads,
  endUpload,
  expireUploads,
  findPartByContent,
  findUpload,
  insertPartOnce,
  insertUpload,
  listAllParts,
  listEndedParts,
  listParts,
  nextUploadExpiry,
  type PartRefusal,
  removeParts,
  removeUploadsOfGoneTenants,
  type UploadPartRow,
  type UploadRow,
} from "../../db/uploads.ts";
import { ApiError } from "../errors.ts";
import type { Log } from "../log.ts";
import type { ContentStore } from "./content-store.ts";
import { checkFilename, type FileService, hashOf } from "./files.ts";
import { corpusLimits } from "./limits.ts";
import { BackgroundLoop } from "./loop.ts";

export interface UploadServiceDeps {
  readonly db: Db;
  readonly parts: ContentStore<"uploadPart">;
  readonly files: FileService;
  readonly nowMs: () => number;
  readonly log: Log;
  /** Nothing is left of the uploads of a tenant that is gone. */
  readonly onTenantSwept: () => void;
}

export type NewUploadRequest = Pick<UploadRow, "filename" | "purpose" | "mediaType" | "byteCount">;

export interface Completion {
  /** In the order of the file's bytes. */
  readonly partIds: readonly string[];
  /** Of the whole file, hex. */
  readonly md5: string | undefined;
}

const partsPerPiece = 100;
/** Longest that a timer takes. */
const maxTimerMs = 2 ** 31 - 1;
const minTimerMs = 50;

export class UploadService {
  readonly #deps: UploadServiceDeps;
  readonly #loop: BackgroundLoop;
  /** `seq` of those whose file is being made. */
  readonly #completing = new Set<number>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(deps: UploadServiceDeps) {
    this.#deps = deps;
    this.#loop = new BackgroundLoop("the sweep of uploads", deps.log, (signal) => this.#sweep(signal));
  }

  /** Collects what a stopped server left. An upload that lacks bytes, as after a restored backup, has expired. */
  async start(): Promise<void> {
    const { db, parts } = this.#deps;
    const known = listAllParts(db);
    for (const { id, uploadSeq } of known) if (!parts.has(id)) endUpload(db, uploadSeq, { status: "expired" });
    await parts.removeOrphans(new Set(known.map(({ id }) => id)));
    this.#loop.wake();
  }

  wake(): void {
    this.#loop.wake();
  }

  idle(): Promise<void> {
    return this.#loop.idle();
  }

  async stop(): Promise<void> {
    await this.#loop.stop();
    clearTimeout(this.#timer);
  }

  /** @throws ApiError invalid_value with param `filename`; quota_exceeded */
  create(tenantId: TenantId, request: NewUploadRequest): UploadRow {
    const { db, nowMs } = this.#deps;
    checkFilename(request.filename, "filename");
    const createdAt = nowMs();
    if (countPendingUploads(db, tenantId, createdAt) >= corpusLimits.maxOpenUploadsPerTenant) {
      throw new ApiError("quota_exceeded", { message: "Too many uploads of this tenant have not ended." });
    }
    const times = { createdAt, expiresAt: createdAt + corpusLimits.uploadMs };
    const row = { id: newId("upload"), tenantId, ...request, ...times };
    const inserted = insertUpload(db, row, corpusLimits.keptUploadsPerTenant);
    if (inserted === undefined) throw new ApiError("not_found");
    this.#loop.wake();
    return inserted;
  }

  /** @throws ApiError not_found, for another tenant's as for one that never was */
  get(tenantId: TenantId, rawId: string): UploadRow {
    const id = parseId("upload", rawId);
    const row = id === undefined ? undefined : findUpload(this.#deps.db, tenantId, id);
    if (row === undefined) throw new ApiError("not_found");
    const late = row.status === "pending" && row.expiresAt <= this.#deps.nowMs() && !this.#completing.has(row.seq);
    return late ? { ...row, status: "expired" } : row;
  }

  /** @throws ApiError not_found; conflict when it has ended, or is being completed */
  pending(tenantId: TenantId, rawId: string): UploadRow {
    const row = this.get(tenantId, rawId);
    if (this.#completing.has(row.seq)) throw new ApiError("conflict", { message: "The upload is being completed." });
    if (row.status !== "pending") throw new ApiError("conflict", { message: `The upload is ${row.status}.` });
    return row;
  }

  /** undefined: it has none, or its file was deleted. */
  fileOf({ tenantId, fileId }: UploadRow): FileRow | undefined {
    return fileId === null ? undefined : this.#deps.files.find(tenantId, fileId);
  }

  /**
   * Resolves once bytes and row are durable. The same bytes in the same upload are the same part.
   * @throws ApiError not_found, conflict, storage_full; invalid_value with param `data`
   */
  async addPart(tenantId: TenantId, rawId: string, bytes: Uint8Array): Promise<UploadPartRow> {
    const { db, parts, nowMs } = this.#deps;
    const { seq: uploadSeq } = this.pending(tenantId, rawId);
    const sha256 = await hashOf(bytes, "sha256");
    const present = findPartByContent(db, { uploadSeq, sha256 });
    if (present !== undefined) return present;
    const id = newId("uploadPart");
    await parts.write(id, bytes);
    let made: UploadPartRow | PartRefusal | undefined;
    try {
      const row = { id, uploadSeq, sha256, byteCount: bytes.byteLength, createdAt: nowMs() };
      made = insertPartOnce(db, row, corpusLimits.maxPartsPerUpload);
    } finally {
      if (typeof made !== "object" || made.id !== id) await parts.remove(id);
    }
    if (typeof made === "object") return made;
    throw refusal(made);
  }

  /**
   * One that is completed already answers as before, so that a client may repeat a call whose answer it lost.
   * @throws ApiError not_found, with param `part_ids[i]` for a part; conflict; invalid_value with param `part_ids` or
   *   `md5`; storage_full
   */
  async complete(tenantId: TenantId, rawId: string, completion: Completion): Promise<UploadRow> {
    const { db, files } = this.#deps;
    const earlier = this.get(tenantId, rawId);
    if (earlier.status === "completed") return earlier;
    const upload = this.pending(tenantId, rawId);
    this.#completing.add(upload.seq);
    try {
      const bytes = await this.#wholeOf(upload, completion.partIds);
      if (completion.md5 !== undefined && (await hashOf(bytes, "md5")) !== completion.md5.toLowerCase()) {
        throw new ApiError("invalid_value", { message: "The parts have another MD5 together.", param: "md5" });
      }
      const { filename, purpose, mediaType } = upload;
      const { id: fileId } = await files.upload(tenantId, { filename, purpose, mediaType, bytes });
      const row = endUpload(db, upload.seq, { status: "completed", fileId });
      if (row === undefined) throw new ApiError("not_found");
      return row;
    } finally {
      this.#completing.delete(upload.seq);
      this.#loop.wake();
    }
  }

  /** @throws ApiError not_found; conflict when it is completed or being so, or has expired */
  cancel(tenantId: TenantId, rawId: string): UploadRow {
    const earlier = this.get(tenantId, rawId);
    if (earlier.status === "cancelled") return earlier;
    const { seq } = this.pending(tenantId, rawId);
    const row = endUpload(this.#deps.db, seq, { status: "cancelled" });
    if (row === undefined) throw new ApiError("not_found");
    this.#loop.wake();
    return row;
  }

  /** The file's bytes. */
  async #wholeOf({ seq, byteCount }: UploadRow, partIds: readonly string[]): Promise<Uint8Array> {
    const { db, parts } = this.#deps;
    const byId = new Map(listParts(db, seq).map((part) => [part.id, part]));
    const chosen = partIds.map((rawId, index) => {
      const id = parseId("uploadPart", rawId);
      const part = id === undefined ? undefined : byId.get(id);
      if (part === undefined)
        throw new ApiError("not_found", { message: "No such part.", param: `part_ids[${index}]` });
      return part;
    });
    const total = chosen.reduce((sum, part) => sum + part.byteCount, 0);
    if (total !== byteCount) {
      const message = `The parts have ${total} bytes together; the upload was made for ${byteCount}.`;
      throw new ApiError("invalid_value", { message, param: "part_ids" });
    }
    const whole = new Uint8Array(byteCount);
    let at = 0;
    for (const part of chosen) {
      whole.set(await parts.read(part.id), at);
      at += part.byteCount;
    }
    return whole;
  }

  async #sweep(signal: AbortSignal): Promise<void> {
    const { db, parts, nowMs, onTenantSwept } = this.#deps;
    expireUploads(db, nowMs(), [...this.#completing]);
    while (!signal.aborted) {
      const ids: readonly UploadPartId[] = listEndedParts(db, partsPerPiece);
      if (ids.length === 0) break;
      for (const id of ids) await parts.remove(id);
      removeParts(db, ids);
    }
    if (removeUploadsOfGoneTenants(db)) onTenantSwept();
    clearTimeout(this.#timer);
    const next = nextUploadExpiry(db);
    if (next === undefined || signal.aborted) return;
    // At least a moment, as an upload that is being completed has a time that may be over.
    const waitMs = Math.min(maxTimerMs, Math.max(minTimerMs, next - nowMs()));
    this.#timer = setTimeout(() => this.#loop.wake(), waitMs);
    this.#timer.unref();
  }
}

function refusal(reason: PartRefusal | undefined): ApiError {
  if (reason !== "parts" && reason !== "bytes") return new ApiError("conflict", { message: "The upload has ended." });
  const message =
    reason === "parts"
      ? `An upload may have at most ${corpusLimits.maxPartsPerUpload} parts.`
      : "With this part the upload would have more bytes than it was made for.";
  return new ApiError("invalid_value", { message, param: "data" });
}
