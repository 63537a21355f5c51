/** Uploaded files: bytes and their name. What becomes of them in a corpus is corpora.ts and ingest.ts. */
import {
  type FileRow,
  findFile,
  findFileByContent,
  insertFileOnce,
  listFiles,
  markFileDeleted,
} from "../../db/files.ts";
import { type FileId, newId, parseId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Page, PageRange } from "../../db/page.ts";
import { ApiError } from "../errors.ts";
import type { ContentStore } from "./content-store.ts";
import { corpusLimits } from "./limits.ts";
import { Pace } from "./pace.ts";

export interface Upload {
  readonly filename: string;
  readonly purpose: string;
  readonly mediaType: string;
  readonly bytes: Uint8Array;
}

export class FileService {
  readonly #db: Db;
  readonly #content: ContentStore;
  readonly #onDelete: () => void;

  /** @param onDelete called once a file has become invisible and its rows can be swept */
  constructor(db: Db, content: ContentStore, onDelete: () => void) {
    this.#db = db;
    this.#content = content;
    this.#onDelete = onDelete;
  }

  /**
   * Resolves once bytes and row are durable. The same content under the same name and purpose is the same
   * file, so that a client may repeat an upload whose answer it lost.
   * @throws ApiError body_too_large, invalid_value, storage_full
   */
  async upload(tenantId: TenantId, upload: Upload): Promise<FileRow> {
    if (upload.bytes.byteLength > corpusLimits.maxUploadBytes) {
      throw new ApiError("body_too_large", { param: "file", message: "A file must be at most 32 MiB." });
    }
    checkFilename(upload.filename, "file");
    return await this.store(tenantId, upload);
  }

  /** As `upload`, for files of the server's own making. @throws ApiError storage_full; not_found: the tenant is gone */
  async store(tenantId: TenantId, { filename, purpose, mediaType, bytes }: Upload): Promise<FileRow> {
    const sha256 = await hashOf(bytes, "sha256");
    const present = findFileByContent(this.#db, { tenantId, sha256, filename, purpose });
    if (present !== undefined) return present;
    const id = newId("file");
    await this.#content.write(id, bytes);
    const now = Date.now();
    const fields = { tenantId, filename, purpose, mediaType, sha256, byteCount: bytes.byteLength, createdAt: now };
    let row: FileRow | undefined;
    try {
      row = insertFileOnce(this.#db, { id, ...fields });
    } finally {
      if (row?.id !== id) await this.#content.remove(id);
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
    this.#onDelete();
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

/** Hex. In slices, because 32 MiB at once would hold the event loop. */
export async function hashOf(bytes: Uint8Array, algorithm: "sha256" | "md5"): Promise<string> {
  const sliceBytes = 1024 * 1024;
  const hasher = new Bun.CryptoHasher(algorithm);
  const pace = new Pace();
  for (let at = 0; at < bytes.byteLength; at += sliceBytes) {
    hasher.update(bytes.subarray(at, at + sliceBytes));
    await pace.breathe();
  }
  return hasher.digest("hex");
}
