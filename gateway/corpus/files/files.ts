/** Uploaded files: their bytes and names. corpus-files.ts and ingest.ts attach them to corpora and ingest them. */
import {
  type FileRow,
  findFile,
  findFileByContent,
  insertFileOnce,
  listDueFiles,
  listFiles,
  markFileDeleted,
} from "../../../db/files.ts";
import { type FileId, newId, parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { Page, PageRange } from "../../../db/page.ts";
import { ApiError } from "../../base/errors.ts";
import type { Hold } from "../../base/hold.ts";
import { corpusLimits } from "../base/limits.ts";
import type { StoragePort } from "../base/ports.ts";
import type { ContentStore, FilePieces, OpenFile } from "./content-store.ts";
import { StagedFile } from "./staged-file.ts";

export interface Upload {
  readonly filename: string;
  readonly purpose: string;
  readonly mediaType: string;
  /** How long the file lasts; undefined: it stays. */
  readonly lastsSeconds?: number | undefined;
  /** The bytes, either in memory or staged on the disk. */
  readonly bytes: Uint8Array | StagedFile;
}

export interface FileEvents {
  /** A file has become invisible, and its rows can be swept. */
  deleted(tenantId: TenantId, fileId: FileId): void;
  /** A file was stored that will end. */
  expirySet(): void;
}

export class FileService {
  readonly #db: Db;
  readonly #content: ContentStore;
  readonly #storage: StoragePort;
  readonly #events: FileEvents;

  constructor(db: Db, content: ContentStore, storage: StoragePort, events: FileEvents) {
    this.#db = db;
    this.#storage = storage;
    this.#content = content;
    this.#events = events;
  }

  /**
   * Reserves storage for a file before its bytes arrive. The hold has to end when the upload is done or has failed.
   * @param announcedBytes undefined: the size is not known
   * @throws ApiError quota_exceeded, storage_full
   */
  reserve(tenantId: TenantId, announcedBytes: number | undefined): Hold {
    const most = corpusLimits.maxUploadBytes + corpusLimits.maxUploadOverheadBytes;
    return this.#storage.reserve(tenantId, Math.min(announcedBytes ?? most, most));
  }

  /**
   * Stores a file; resolves once its bytes and its row are durable. Call `reserve` first. The same content under the
   * same name and purpose is the same file, so a client may repeat an upload whose answer it lost; files that end are
   * always new ones.
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

  /**
   * Begins a file whose bytes arrive piece by piece. `upload` keeps or drops it; a caller that does not get there drops
   * it itself.
   */
  stage(): Promise<StagedFile> {
    return this.#content.stage(newId("file"));
  }

  /**
   * As `upload`, for bytes that are counted already: uploads in parts, and results of batches. The disk was checked for
   * space before the bytes were staged.
   * @throws ApiError storage_full; not_found when the tenant is gone
   */
  async store(tenantId: TenantId, upload: Upload): Promise<FileRow> {
    if (upload.bytes instanceof Uint8Array) this.#storage.checkDisk(upload.bytes.byteLength);
    return await this.#write(tenantId, upload);
  }

  async #write(tenantId: TenantId, upload: Upload): Promise<FileRow> {
    const { filename, purpose, mediaType, lastsSeconds, bytes } = upload;
    const staged = bytes instanceof StagedFile ? bytes : await this.stage();
    let row: FileRow | undefined;
    try {
      if (bytes instanceof Uint8Array) await staged.add(bytes);
      const { id, sha256, byteLength: byteCount } = staged;
      const stays = lastsSeconds === undefined;
      row = stays ? findFileByContent(this.#db, { tenantId, sha256, filename, purpose }) : undefined;
      if (row !== undefined) return row;
      await staged.keep();
      const createdAt = Date.now();
      const times = { createdAt, expiresAt: stays ? null : createdAt + lastsSeconds * 1_000 };
      row = insertFileOnce(this.#db, { id, tenantId, filename, purpose, mediaType, sha256, byteCount, ...times });
      if (!stays) this.#events.expirySet();
    } finally {
      if (row?.id !== staged.id) await staged.drop();
    }
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  /** @returns undefined when the tenant has no such file */
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

  /** Opens a file; the caller closes it. @throws ApiError not_found */
  open(tenantId: TenantId, rawId: string): Promise<OpenFile> {
    return this.#content.open(this.get(tenantId, rawId).id);
  }

  /** Opens a file to be read in pieces, at once; the caller closes it. @throws ApiError not_found */
  async openPieces(tenantId: TenantId, rawId: string): Promise<FilePieces> {
    return await this.#content.openPieces(this.get(tenantId, rawId).id);
  }

  /**
   * As `content`, in pieces. A caller that does not read all of them calls `return` on the generator.
   * @param enter called when the file exists, before it is opened; the function that it returns is called after the
   *   file was closed
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

  /**
   * Deletes a file: it is gone from every corpus at once; the sweep removes its text, index, bytes and KV.
   * @throws ApiError not_found
   */
  delete(tenantId: TenantId, rawId: string): FileId {
    const { id } = this.get(tenantId, rawId);
    markFileDeleted(this.#db, tenantId, id, Date.now());
    this.#events.deleted(tenantId, id);
    return id;
  }

  /** Deletes some files whose time has come. @returns how many */
  expireDue(limit: number): number {
    const now = Date.now();
    const due = listDueFiles(this.#db, now, limit);
    for (const { id, tenantId } of due) {
      markFileDeleted(this.#db, tenantId, id, now);
      this.#events.deleted(tenantId, id);
    }
    return due.length;
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
