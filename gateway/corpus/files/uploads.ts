/**
 * Files that arrive in parts. The parts lie in a folder of their own until their upload is completed, cancelled or
 * expired. Other contents of that folder are removed in the background.
 */
import type { FileRow } from "../../../db/files.ts";
import { newId, parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
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
  nextEndedPartsTenant,
  nextUploadExpiry,
  type PartRefusal,
  removeParts,
  removeUploadsOfGoneTenants,
  type UploadPartRow,
  type UploadRow,
} from "../../../db/uploads.ts";
import { DueLoop } from "../../background/due-loop.ts";
import { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { corpusLimits } from "../base/limits.ts";
import type { StoragePort } from "../base/ports.ts";
import type { ContentStore } from "./content-store.ts";
import { checkFilename, type FileService } from "./files.ts";
import type { StagedFile } from "./staged-file.ts";

export interface UploadServiceDeps {
  readonly db: Db;
  readonly parts: ContentStore<"uploadPart">;
  readonly files: FileService;
  readonly storage: StoragePort;
  readonly nowMs: () => number;
  readonly log: Log;
  /** Called when nothing is left of the uploads of deleted tenants. */
  readonly onTenantSwept: () => void;
}

export type NewUploadRequest = Pick<UploadRow, "filename" | "purpose" | "mediaType" | "byteCount"> &
  Partial<Pick<UploadRow, "fileSeconds">>;

export interface Completion {
  /** The ids of the parts, in the order of the file's bytes. */
  readonly partIds: readonly string[];
  /** The MD5 of the whole file, in hex. */
  readonly md5: string | undefined;
}

const partsPerPiece = 100;

export class UploadService {
  readonly #deps: UploadServiceDeps;
  readonly #loop: DueLoop;
  /** The `seq` of each upload whose file is being made. */
  readonly #completing = new Set<number>();

  constructor(deps: UploadServiceDeps) {
    this.#deps = deps;
    const { db, log, nowMs } = deps;
    this.#loop = new DueLoop({ name: "the sweep of uploads", log, db, nowMs, work: (signal) => this.#sweep(signal) });
  }

  /**
   * Cleans up after a stopped server. An upload whose bytes are missing, for instance after a restored backup, expires.
   */
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

  stop(): Promise<void> {
    return this.#loop.stop();
  }

  /** @throws ApiError invalid_value with param `filename`; quota_exceeded */
  create(tenantId: TenantId, request: NewUploadRequest): UploadRow {
    const { db, storage, nowMs } = this.#deps;
    checkFilename(request.filename, "filename");
    const createdAt = nowMs();
    if (countPendingUploads(db, tenantId, createdAt) >= corpusLimits.maxOpenUploadsPerTenant) {
      throw new ApiError("quota_exceeded", { message: "Too many uploads of this tenant have not ended." });
    }
    const times = { createdAt, expiresAt: createdAt + corpusLimits.uploadMs };
    const row = { id: newId("upload"), tenantId, ...request, ...times };
    // From its insertion on the upload's row counts the space for all its parts.
    using _room = storage.reserve(tenantId, request.byteCount);
    const inserted = insertUpload(db, row, corpusLimits.keptUploadsPerTenant);
    if (inserted === undefined) throw new ApiError("not_found");
    this.#loop.wake();
    return inserted;
  }

  /** @throws ApiError not_found, also for another tenant's upload */
  get(tenantId: TenantId, rawId: string): UploadRow {
    const id = parseId("upload", rawId);
    const row = id === undefined ? undefined : findUpload(this.#deps.db, tenantId, id);
    if (row === undefined) throw new ApiError("not_found");
    const late = row.status === "pending" && row.expiresAt <= this.#deps.nowMs() && !this.#completing.has(row.seq);
    return late ? { ...row, status: "expired" } : row;
  }

  /** Finds an upload that takes parts. @throws ApiError not_found; conflict when it has ended or is being completed */
  pending(tenantId: TenantId, rawId: string): UploadRow {
    const row = this.get(tenantId, rawId);
    if (this.#completing.has(row.seq)) throw new ApiError("conflict", { message: "The upload is being completed." });
    if (row.status !== "pending") throw new ApiError("conflict", { message: `The upload is ${row.status}.` });
    return row;
  }

  /** The upload's file; undefined: it has none, or its file was deleted. */
  fileOf({ tenantId, fileId }: UploadRow): FileRow | undefined {
    return fileId === null ? undefined : this.#deps.files.find(tenantId, fileId);
  }

  /**
   * Begins a part whose bytes arrive piece by piece. `addPart` keeps or drops it.
   * @param maxBytes the most bytes that the part may have
   * @throws ApiError storage_full
   */
  async stagePart(maxBytes: number): Promise<StagedFile<"uploadPart">> {
    this.#deps.storage.checkDisk(maxBytes);
    return await this.#deps.parts.stage(newId("uploadPart"));
  }

  /**
   * Adds a part; resolves once its bytes and its row are durable. The same bytes in the same upload are the same part.
   * @throws ApiError not_found, conflict, storage_full; invalid_value with param `data`
   */
  async addPart(tenantId: TenantId, rawId: string, staged: StagedFile<"uploadPart">): Promise<UploadPartRow> {
    const { db, nowMs } = this.#deps;
    let made: UploadPartRow | PartRefusal | undefined;
    try {
      const { seq: uploadSeq } = this.pending(tenantId, rawId);
      const { id, sha256, byteLength: byteCount } = staged;
      made = findPartByContent(db, { uploadSeq, sha256 });
      if (made !== undefined) return made;
      await staged.keep();
      made = insertPartOnce(
        db,
        { id, uploadSeq, sha256, byteCount, createdAt: nowMs() },
        corpusLimits.maxPartsPerUpload,
      );
    } finally {
      if (typeof made !== "object" || made.id !== staged.id) await staged.drop();
    }
    if (typeof made === "object") return made;
    throw refusal(made);
  }

  /**
   * Completes an upload. For an upload that is completed already the answer is the same again, so a client may repeat a
   * call whose answer it lost.
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
      const bytes = await this.#wholeOf(upload, completion);
      const { filename, purpose, mediaType, fileSeconds } = upload;
      const lasting = fileSeconds === null ? {} : { lastsSeconds: fileSeconds };
      const { id: fileId } = await files.store(tenantId, { filename, purpose, mediaType, bytes, ...lasting });
      const row = endUpload(db, upload.seq, { status: "completed", fileId });
      if (row === undefined) throw new ApiError("not_found");
      return row;
    } finally {
      this.#completing.delete(upload.seq);
      this.#loop.wake();
    }
  }

  /** @throws ApiError not_found; conflict when it is completed, being completed, or has expired */
  cancel(tenantId: TenantId, rawId: string): UploadRow {
    const earlier = this.get(tenantId, rawId);
    if (earlier.status === "cancelled") return earlier;
    const { seq } = this.pending(tenantId, rawId);
    const { db } = this.#deps;
    const row = db.removing(() => endUpload(db, seq, { status: "cancelled" }));
    if (row === undefined) throw new ApiError("not_found");
    this.#loop.wake();
    return row;
  }

  /** Joins the parts to the file's bytes, on the disk. */
  async #wholeOf({ seq, byteCount }: UploadRow, { partIds, md5 }: Completion): Promise<StagedFile> {
    const { db, parts, files, storage } = this.#deps;
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
    storage.checkDisk(byteCount);
    const whole = await files.stage();
    const hasher = new Bun.CryptoHasher("md5");
    try {
      for (const { id } of chosen) {
        for await (const piece of await parts.pieces(id, () => undefined)) {
          hasher.update(piece);
          await whole.add(piece);
        }
      }
      if (md5 === undefined || hasher.digest("hex") === md5.toLowerCase()) return whole;
      throw new ApiError("invalid_value", { message: "The parts have another MD5 together.", param: "md5" });
    } catch (error) {
      await whole.drop();
      throw error;
    }
  }

  /** @returns when the next upload ends. One that is being completed may be past its end. */
  async #sweep(signal: AbortSignal): Promise<number | undefined> {
    const { db, parts, nowMs, onTenantSwept } = this.#deps;
    expireUploads(db, nowMs(), [...this.#completing]);
    // Each round removes a number of parts for each tenant.
    for (let lastTenantId = ""; !signal.aborted; ) {
      const tenantId = nextEndedPartsTenant(db, lastTenantId) ?? nextEndedPartsTenant(db, "");
      if (tenantId === undefined) break;
      lastTenantId = tenantId;
      const ids = listEndedParts(db, tenantId, partsPerPiece);
      for (const id of ids) await parts.remove(id);
      removeParts(db, ids);
    }
    if (removeUploadsOfGoneTenants(db)) onTenantSwept();
    return nextUploadExpiry(db);
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
