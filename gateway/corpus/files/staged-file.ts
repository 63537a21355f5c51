/** A file's bytes while they come: in a file of their own beside the others, which no row names until it is kept. */
import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import type { Id, IdKind } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";

/** Bytes that are hashed and written between two turns of the event loop. */
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

  /** @param path where it will be when it is kept */
  static async open<Kind extends IdKind>(id: Id<Kind>, path: string): Promise<StagedFile<Kind>> {
    return new StagedFile(id, path, await open(asideOf(path), "wx", 0o600));
  }

  get byteLength(): number {
    return this.#byteLength;
  }

  /** Hex, of all its bytes: nothing is added after it was asked for. */
  get sha256(): string {
    this.#sha256 ??= this.#hasher.digest("hex");
    return this.#sha256;
  }

  /** Resolves when the bytes are taken, so that whoever waits for it holds no others. @throws ApiError storage_full */
  async add(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.byteLength; at += sliceBytes) {
      const slice = bytes.subarray(at, at + sliceBytes);
      this.#hasher.update(slice);
      this.#byteLength += slice.byteLength;
      await this.#write(slice);
    }
  }

  /** Resolves when bytes and name are on disk. @throws ApiError storage_full */
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

  /** Removes what there is of it, kept or not; safe to call twice. */
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
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

function storageError(error: unknown): unknown {
  const code = (error as { code?: unknown }).code;
  return code === "ENOSPC" || code === "EDQUOT" ? new ApiError("storage_full", { cause: error }) : error;
}
