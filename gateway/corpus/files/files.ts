/** Uploaded files: bytes and their name. What becomes of them in a corpus is corpora.ts and ingest.ts. */
import {
  type FileRow,
  findFile,
  findFileByContent,
  insertFileOnce,
  listFiles,
  markFileDeleted,
} from "../../../db/files.ts";
import { type FileId, newId, parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { Page, PageRange } from "../../../db/page.ts";
import { ApiError } from "../../base/errors.ts";
import { corpusLimits } from "../base/limits.ts";
import type { StoragePort } from "../base/ports.ts";
import type { ContentStore, OpenFile } from "./content-store.ts";
import { StagedFile } from "./staged-file.ts";

export interface Upload {
  readonly filename: string;
  readonly purpose: string;
  readonly mediaType: string;
  /** In memory, or on the disk already. */
  readonly bytes: Uint8Array | StagedFile;
}

export class FileService {
  readonly #db: Db;
  readonly #content: ContentStore;
  readonly #storage: StoragePort;
  readonly #onDelete: (tenantId: TenantId) => void;

  /** @param onDelete called once a file has become invisible and its rows can be swept */
  constructor(db: Db, content: ContentStore, storage: StoragePort, onDelete: (tenantId: TenantId) => void) {
    this.#db = db;
    this.#storage = storage;
    this.#content = content;
    this.#onDelete = onDelete;
  }

  /**
   * Room for a file, to be kept before its bytes come. Call what it gives when it is uploaded or has failed.
   * @param announcedBytes undefined: not known
   * @throws ApiError quota_exceeded, storage_full
   */
  reserve(tenantId: TenantId, announcedBytes: number | undefined): () => void {
    const most = corpusLimits.maxUploadBytes + corpusLimits.maxUploadOverheadBytes;
    return this.#storage.reserve(tenantId, Math.min(announcedBytes ?? most, most));
  }

  /**
   * Resolves once bytes and row are durable; see `reserve`. The same content under the same name and purpose is the
   * same file, so that a client may repeat an upload whose answer it lost.
   * @throws ApiError body_too_large, invalid_value, storage_full
   */
  async upload(tenantId: TenantId, upload: Upload): Promise<FileRow> {
    try {
      if (upload.bytes.byteLength > corpusLimits.maxUploadBytes) {
        throw new ApiError("body_too_large", { param: "file", message: "A file must be at most 32 MiB." });
      }
      checkFilename(upload.filename, "file");
      return await this.#write(tenantId, upload);
    } catch (error) {
      if (upload.bytes instanceof StagedFile) await upload.bytes.drop();
      throw error;
    }
  }

  /** For bytes that come piece by piece: `upload` keeps or drops it, whoever does not get there drops it. */
  stage(): Promise<StagedFile> {
    return this.#content.stage(newId("file"));
  }

  /**
   * As `upload`, for bytes that are counted already: of uploads in parts, of results. The disk was asked for room before
   * they were staged.
   * @throws ApiError storage_full; not_found: the tenant is gone
   */
  async store(tenantId: TenantId, upload: Upload): Promise<FileRow> {
    if (upload.bytes instanceof Uint8Array) this.#storage.checkDisk(upload.bytes.byteLength);
    return await this.#write(tenantId, upload);
  }

  async #write(tenantId: TenantId, { filename, purpose, mediaType, bytes }: Upload): Promise<FileRow> {
    const staged = bytes instanceof StagedFile ? bytes : await this.stage();
    let row: FileRow | undefined;
    try {
      if (bytes instanceof Uint8Array) await staged.add(bytes);
      const { id, sha256, byteLength: byteCount } = staged;
      row = findFileByContent(this.#db, { tenantId, sha256, filename, purpose });
      if (row !== undefined) return row;
      await staged.keep();
      const fields = { tenantId, filename, purpose, mediaType, sha256, byteCount, createdAt: Date.now() };
      row = insertFileOnce(this.#db, { id, ...fields });
    } finally {
      if (row?.id !== staged.id) await staged.drop();
    }
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  /** undefined: the tenant has no such file. */
  find(tenantId: TenantId, rawId: string): FileRow | undefined {
    const id = parseId("file", rawId);
    return id === undefined ? undefined : findFile(this.#db, tenantId, id);
  }

  /** @throws ApiError not_found */
  get(tenantId: TenantId, rawId: string): FileRow {
    const row = this.find(tenantId, rawId);
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  list(tenantId: TenantId, range: PageRange & { readonly purpose?: string | undefined }): Page<FileRow> {
    return listFiles(this.#db, tenantId, range);
  }

  /** @throws ApiError not_found */
  async content(tenantId: TenantId, rawId: string): Promise<{ row: FileRow; bytes: Uint8Array }> {
    const row = this.get(tenantId, rawId);
    return { row, bytes: await this.#content.read(row.id) };
  }

  /** Close it. @throws ApiError not_found */
  open(tenantId: TenantId, rawId: string): Promise<OpenFile> {
    return this.#content.open(this.get(tenantId, rawId).id);
  }

  /**
   * As `content`, some bytes at a time. `return` it when not all are read.
   * @param enter called when the file is there, before it is opened; what it gives, when it has been closed
   * @throws ApiError not_found, and what `enter` throws
   */
  async pieces(
    tenantId: TenantId,
    rawId: string,
    enter: () => () => void,
  ): Promise<{ row: FileRow; pieces: AsyncGenerator<Uint8Array> }> {
    const row = this.get(tenantId, rawId);
    const leave = enter();
    try {
      return { row, pieces: await this.#content.pieces(row.id, leave) };
    } catch (error) {
      leave();
      throw error;
    }
  }

  /** Gone from every corpus at once; text, index, bytes and KV follow with the sweep. @throws ApiError not_found */
  delete(tenantId: TenantId, rawId: string): FileId {
    const { id } = this.get(tenantId, rawId);
    markFileDeleted(this.#db, tenantId, id, Date.now());
    this.#onDelete(tenantId);
    return id;
  }
}

/** @throws ApiError invalid_value with `param` */
export function checkFilename(filename: string, param: string): void {
  const tooLong = filename.length > corpusLimits.maxFilenameChars;
  if (filename !== "" && !tooLong && !/\p{Cc}/u.test(filename) && filename.isWellFormed()) return;
  throw new ApiError("invalid_value", {
    param,
    message: "The file needs a name of 1 to 255 characters without control characters.",
  });
}
