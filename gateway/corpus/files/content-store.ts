/**
 * Uploaded bytes, one file an id in one folder. A staged file is kept once the bytes and their name are on disk,
 * so a row that names them never points at nothing. The reverse, bytes without a row after a crash, is
 * collected at start.
 */
import { existsSync, mkdirSync, readdirSync } from "node:fs";
import { type FileHandle, open, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Id, type IdKind, parseId } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";
import { StagedFile } from "./staged-file.ts";

export interface OpenFile {
  /** Bytes from there on, fewer where the file ends. */
  read(start: number, maxBytes: number): Promise<Uint8Array>;
  close(): Promise<void>;
}

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

  /** A new file, whose bytes come piece by piece. */
  stage(id: Id<Kind>): Promise<StagedFile<Kind>> {
    return StagedFile.open(id, join(this.#dir, id));
  }

  async read(id: Id<Kind>): Promise<Uint8Array> {
    return readFile(join(this.#dir, id));
  }

  /** For reading here and there in it, also after it was deleted. @throws ApiError not_found */
  async open(id: Id<Kind>): Promise<OpenFile> {
    const file = await this.#openFile(id);
    return {
      read: async (start, maxBytes) => {
        const { bytesRead, buffer } = await file.read(new Uint8Array(maxBytes), 0, maxBytes, start);
        return buffer.subarray(0, bytesRead);
      },
      close: () => file.close(),
    };
  }

  /**
   * The file is open when this resolves, and closed when the generator ends.
   * @param closed called then
   * @throws ApiError not_found
   */
  async pieces(id: Id<Kind>, closed: () => void): Promise<AsyncGenerator<Uint8Array>> {
    const file = await this.#openFile(id);
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

  async #openFile(id: Id<Kind>): Promise<FileHandle> {
    return await open(join(this.#dir, id), "r").catch((cause: unknown) => {
      // Deleted a moment ago, after its row was read.
      throw (cause as { code?: unknown }).code === "ENOENT" ? new ApiError("not_found", { cause }) : cause;
    });
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
