/**
 * Stores uploaded bytes: one file for each id, in one folder. A staged file is kept only once its bytes and its name
 * are on disk, so no row ever names missing bytes. A crash may leave bytes without a row; they are removed at the next
 * start.
 */
import { existsSync, mkdirSync, readdirSync, readSync } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Id, type IdKind, parseId } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";
import { StagedFile } from "./staged-file.ts";

export interface OpenFile {
  /** Reads bytes from an offset on; fewer than `maxBytes` where the file ends. */
  read(start: number, maxBytes: number): Promise<Uint8Array>;
  close(): Promise<void>;
}

/** Reads pieces at once, for who reads the same small part of a large file again and again. */
export interface FilePieces {
  readonly byteLength: number;
  /** The open file, for a process that reads all of it from its first byte on. `read` leaves its position as it is. */
  readonly fd: number;
  /** @returns bytes that are valid until the next call; fewer where the file ends */
  read(start: number, end: number): Uint8Array;
  close(): Promise<void>;
}

export class ContentStore<Kind extends IdKind = "file"> {
  readonly #dir: string;
  /** The kind of the ids that name the files. */
  readonly #kind: Kind;
  /** The names in the folder before this process wrote to it. */
  readonly #namesAtStart: readonly string[];

  constructor(dir: string, kind: Kind) {
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    this.#dir = dir;
    this.#kind = kind;
    this.#namesAtStart = readdirSync(dir);
  }

  /** Begins a new file, whose bytes arrive piece by piece. */
  stage(id: Id<Kind>): Promise<StagedFile<Kind>> {
    return StagedFile.open(id, join(this.#dir, id));
  }

  /**
   * Opens a file for reading at any offset. The open file stays readable after its deletion.
   * @throws ApiError not_found
   */
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
   * Opens a file whose pieces lie in the system's memory after they were read once. The open file stays readable after
   * its deletion.
   * @throws ApiError not_found
   */
  async openPieces(id: Id<Kind>): Promise<FilePieces> {
    const file = await this.#openFile(id);
    let buffer = new Uint8Array(0);
    return {
      byteLength: (await file.stat()).size,
      fd: file.fd,
      read: (start, end) => {
        if (buffer.byteLength < end - start) buffer = new Uint8Array(end - start);
        return buffer.subarray(0, readSync(file.fd, buffer, 0, end - start, start));
      },
      close: () => file.close(),
    };
  }

  /**
   * Reads a file in pieces. The file is open when this resolves, and is closed when the generator ends.
   * @param closed called when the file is closed
   * @throws ApiError not_found
   */
  async pieces(id: Id<Kind>, closed: () => void): Promise<AsyncGenerator<Uint8Array>> {
    const file = await this.#openFile(id);
    const pieces = readPieces(file, closed);
    // The generator has to be started, because `return` closes the file only then.
    await pieces.next();
    return pieces;
  }

  async remove(id: Id<Kind>): Promise<void> {
    await rm(join(this.#dir, id), { force: true });
  }

  /**
   * Removes the bytes that no row names, which a crash left.
   * @param known every id that has a row
   */
  async removeOrphans(known: ReadonlySet<Id<Kind>>): Promise<number> {
    let removed = 0;
    for (const name of this.#namesAtStart) {
      const id = parseId(this.#kind, name.replace(/\.tmp$/, ""));
      // Other files in the folder are not ours to remove.
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
      // The file was deleted a moment ago, after its row was read.
      throw (cause as { code?: unknown }).code === "ENOENT" ? new ApiError("not_found", { cause }) : cause;
    });
  }
}

const pieceBytes = 64 * 1024;

/** Yields an empty piece first, then the file's bytes. */
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
