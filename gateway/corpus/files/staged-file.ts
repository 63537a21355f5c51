/**
 * The bytes of a file while they arrive. They are written to a file of their own beside the stored ones, and no row
 * names it until it is kept.
 */
import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import type { Id, IdKind } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";

/** Bytes that are hashed and written in one slice, between which the event loop runs. */
const sliceBytes = 256 * 1024;

export class StagedFile<Kind extends IdKind = "file"> {
  readonly id: Id<Kind>;
  readonly #path: string;
  readonly #hasher = new Bun.CryptoHasher("sha256");
  #file: FileHandle | undefined;
  #byteLength = 0;
  #sha256: string | undefined;

  private constructor(id: Id<Kind>, path: string, file: FileHandle) {
    this.id = id;
    this.#path = path;
    this.#file = file;
  }

  /** @param path where the file will be when it is kept */
  static async open<Kind extends IdKind>(id: Id<Kind>, path: string): Promise<StagedFile<Kind>> {
    return new StagedFile(id, path, await open(asideOf(path), "wx", 0o600));
  }

  get byteLength(): number {
    return this.#byteLength;
  }

  /** The hex digest of all bytes. No bytes may be added after it was read. */
  get sha256(): string {
    this.#sha256 ??= this.#hasher.digest("hex");
    return this.#sha256;
  }

  /**
   * Adds bytes. Resolves when they are written, so that a caller who waits holds no further bytes in memory.
   * @throws ApiError storage_full
   */
  async add(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.byteLength; at += sliceBytes) {
      const slice = bytes.subarray(at, at + sliceBytes);
      this.#hasher.update(slice);
      this.#byteLength += slice.byteLength;
      await this.#write(slice);
    }
  }

  /** Keeps the file under its path. Resolves when its bytes and its name are on disk. @throws ApiError storage_full */
  async keep(): Promise<void> {
    const file = this.#openFile();
    try {
      await file.sync();
      await this.#close();
      await rename(asideOf(this.#path), this.#path);
      await syncFolder(dirname(this.#path));
    } catch (error) {
      throw storageError(error);
    }
  }

  /** Removes the file, kept or not; it may be called twice. */
  async drop(): Promise<void> {
    await this.#close();
    await rm(asideOf(this.#path), { force: true });
    await rm(this.#path, { force: true });
  }

  async #write(slice: Uint8Array): Promise<void> {
    const file = this.#openFile();
    try {
      for (let at = 0; at < slice.byteLength; ) at += (await file.write(slice, at, slice.byteLength - at)).bytesWritten;
    } catch (error) {
      throw storageError(error);
    }
  }

  #openFile(): FileHandle {
    if (this.#file === undefined) throw new Error("a staged file that has ended takes no bytes");
    return this.#file;
  }

  async #close(): Promise<void> {
    const file = this.#file;
    this.#file = undefined;
    await file?.close();
  }
}

const asideOf = (path: string): string => `${path}.tmp`;

async function syncFolder(path: string): Promise<void> {
  await using folder = await open(path, "r");
  await folder.sync();
}

function storageError(error: unknown): unknown {
  const code = (error as { code?: unknown }).code;
  return code === "ENOSPC" || code === "EDQUOT" ? new ApiError("storage_full", { cause: error }) : error;
}
