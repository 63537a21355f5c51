/**
 * Uploaded bytes, one file an id in one folder. A write resolves once the bytes and their name are on disk,
 * so a row that names them never points at nothing. The reverse, bytes without a row after a crash, is
 * collected at start.
 */
import { existsSync, mkdirSync, readdirSync } from "node:fs";
import { type FileHandle, open, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Id, type IdKind, parseId } from "../../db/ids.ts";
import { ApiError } from "../errors.ts";

export class ContentStore<Kind extends IdKind = "file"> {
  readonly #dir: string;
  /** Of the ids that name its files. */
  readonly #kind: Kind;
  /** What the folder held before this process wrote to it. */
  readonly #namesAtStart: readonly string[];

  constructor(dir: string, kind: Kind) {
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    this.#dir = dir;
    this.#kind = kind;
    this.#namesAtStart = readdirSync(dir);
  }

  /** @throws ApiError storage_full */
  async write(id: Id<Kind>, bytes: Uint8Array): Promise<void> {
    const path = join(this.#dir, id);
    const aside = `${path}.tmp`;
    try {
      const file = await open(aside, "wx", 0o600);
      try {
        await file.writeFile(bytes);
        await file.sync();
      } finally {
        await file.close();
      }
      await rename(aside, path);
      await this.#syncFolder();
    } catch (error) {
      await rm(aside, { force: true });
      throw storageError(error);
    }
  }

  async read(id: Id<Kind>): Promise<Uint8Array> {
    return readFile(join(this.#dir, id));
  }

  /**
   * The file is open when this resolves, and closed when the generator ends.
   * @param closed called then
   * @throws ApiError not_found
   */
  async pieces(id: Id<Kind>, closed: () => void): Promise<AsyncGenerator<Uint8Array>> {
    const file = await open(join(this.#dir, id), "r").catch((cause: unknown) => {
      // Deleted a moment ago, after its row was read.
      throw (cause as { code?: unknown }).code === "ENOENT" ? new ApiError("not_found", { cause }) : cause;
    });
    const pieces = readPieces(file, closed);
    // Begun, so that `return` closes the file.
    await pieces.next();
    return pieces;
  }

  async remove(id: Id<Kind>): Promise<void> {
    await rm(join(this.#dir, id), { force: true });
  }

  /** Removes what a crash left: bytes that no row names. `known`: every id that has a row. */
  async removeOrphans(known: ReadonlySet<Id<Kind>>): Promise<number> {
    let removed = 0;
    for (const name of this.#namesAtStart) {
      const id = parseId(this.#kind, name.replace(/\.tmp$/, ""));
      // Anything else in the folder is not ours to remove.
      if (id === undefined || (name === id && known.has(id))) continue;
      await rm(join(this.#dir, name), { force: true });
      removed++;
    }
    return removed;
  }

  has(id: Id<Kind>): boolean {
    return existsSync(join(this.#dir, id));
  }

  async #syncFolder(): Promise<void> {
    const folder = await open(this.#dir, "r");
    try {
      await folder.sync();
    } finally {
      await folder.close();
    }
  }
}

const pieceBytes = 64 * 1024;

/** Gives an empty piece first. */
async function* readPieces(file: FileHandle, closed: () => void): AsyncGenerator<Uint8Array> {
  try {
    yield new Uint8Array(0);
    for (;;) {
      const { bytesRead, buffer } = await file.read(new Uint8Array(pieceBytes), 0, pieceBytes);
      if (bytesRead === 0) return;
      yield buffer.subarray(0, bytesRead);
    }
  } finally {
    await file.close().finally(closed);
  }
}

function storageError(error: unknown): unknown {
  const code = (error as { code?: unknown }).code;
  return code === "ENOSPC" || code === "EDQUOT" ? new ApiError("storage_full", { cause: error }) : error;
}
