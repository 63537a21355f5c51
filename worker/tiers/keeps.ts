/**
 * Writes blocks to files. A block is copied out of the pool when its turn comes, and only while it is found under its
 * key: its step is done, and nobody writes to it. What has gone by then is not kept. A file appears under its name when
 * all of it is on the disk; the gateway's row, written after that, is the commit.
 */
import * as systemFiles from "node:fs/promises";
import { join } from "node:path";
import type { BlockMover } from "../backend/backend.ts";
import type { BlockContent, PrefixCache } from "../cache/prefix-cache.ts";
import type { KeepMessage, WorkerMessage } from "../contract/messages.ts";
import type { BlockId } from "../contract/units.ts";
import { type FileSystem, type OpenFile, syncFolder, writeAll } from "./file-system.ts";
import { ObjectFile, type ObjectShape, type Turn } from "./object-file.ts";

/** Steps of a write, in order; tests end the process at each. */
export type WriteStep = "open" | "header" | "head" | "block" | "datasync" | "rename" | "folder";

export interface KeepsOptions {
  readonly shape: ObjectShape;
  readonly mover: BlockMover;
  readonly cache: Pick<PrefixCache, "find">;
  /** Resolves when what was computed before can be found. */
  readonly settled?: () => Promise<void>;
  readonly turn: Turn;
  readonly emit: (message: WorkerMessage) => void;
  /** Default: the system's. */
  readonly files?: FileSystem;
  /** Called after each step of a write. */
  readonly onStep?: (step: WriteStep) => void;
}

/** Objects in line; more are refused, and kept when they are asked for again. */
const maxWaiting = 4_096;
/** Bytes that are written at once: a gap between two steps has room for more than a block. */
const writeBytes = 1024 * 1024;
/** How many files, or how many bytes of them, are synced together. */
const [filesAtOnce, bytesAtOnce] = [16, 32 * 1024 * 1024];

class BlockGone extends Error {}

/** A file that was written and is not synced yet. */
interface Written {
  readonly message: KeepMessage;
  readonly handle: OpenFile;
  readonly bytes: number;
}

export class Keeps {
  /** Bytes and time of files that were written whole. */
  readonly counts = { bytes: 0, ms: 0 };
  readonly #options: KeepsOptions;
  readonly #waiting: KeepMessage[] = [];
  readonly #cancelled = new Set<string>();
  #isRunning = false;

  constructor(options: KeepsOptions) {
    this.#options = options;
  }

  add(message: KeepMessage): void {
    const { object } = message;
    if (this.#waiting.length >= maxWaiting) {
      this.#options.emit({ type: "keep failed", objectId: object.id, reason: "busy" });
      return;
    }
    this.#waiting.push(message);
    if (!this.#isRunning) void this.#run();
  }

  /** Gives up objects that are not wanted any more. */
  cancel(objectIds: readonly string[]): void {
    if (!this.#isRunning) return;
    for (const id of objectIds) this.#cancelled.add(id);
  }

  /** A disk takes hardly longer to sync some files than one, and meanwhile the next ones are written. */
  async #run(): Promise<void> {
    this.#isRunning = true;
    while (this.#waiting.length > 0) {
      let syncing = Promise.resolve();
      while (this.#waiting.length > 0) {
        const written = await this.#writeSome();
        await syncing;
        syncing = this.#sync(written);
      }
      await syncing;
    }
    this.#cancelled.clear();
    this.#isRunning = false;
  }

  async #writeSome(): Promise<readonly Written[]> {
    const written: Written[] = [];
    const beganMs = performance.now();
    for (let bytes = 0; written.length < filesAtOnce && bytes < bytesAtOnce; ) {
      const message = this.#waiting.shift();
      if (message === undefined) break;
      try {
        const file = await this.#write(message);
        written.push(file);
        bytes += file.bytes;
      } catch (error) {
        await this.#fail(message, error);
      }
    }
    this.counts.ms += performance.now() - beganMs;
    return written;
  }

  async #write(message: KeepMessage): Promise<Written> {
    const { object, folder, temporaryName, tokenIds, blockKeys } = message;
    const { shape, mover, turn, settled, files = systemFiles, onStep = () => undefined } = this.#options;
    const file = new ObjectFile(object, shape);
    const { headSpan, blockSpan, blockCount, fileBytes } = file.sizes;
    if (blockKeys.length !== blockCount) throw new RangeError("an object has other blocks than keys");
    await settled?.();
    const handle = await files.open(join(folder, temporaryName), "wx", 0o600);
    try {
      onStep("open");
      await writeAll(handle, file.firstPage());
      onStep("header");
      const head = new Uint8Array(headSpan);
      await file.seal(0, file.head(tokenIds), head, turn);
      await writeAll(handle, head);
      onStep("head");
      const plain = new Uint8Array(mover.format.bytes);
      const sealed = new Uint8Array(Math.min(blockCount, Math.ceil(writeBytes / blockSpan)) * blockSpan);
      for (let index = 0, at = 0; index < blockCount; index++) {
        await turn(plain.byteLength);
        this.#pack(object.id, object.position, tokenIds, blockKeys, index, plain);
        await file.seal(index + 1, plain, sealed.subarray(at, at + blockSpan), turn);
        at += blockSpan;
        onStep("block");
        if (at < sealed.byteLength && index + 1 < blockCount) continue;
        await writeAll(handle, sealed.subarray(0, at));
        at = 0;
      }
      return { message, handle, bytes: fileBytes };
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  /** Syncs files, gives them their names and syncs those. Throws nothing. */
  async #sync(written: readonly Written[]): Promise<void> {
    const { emit, files = systemFiles, onStep = () => undefined } = this.#options;
    const beganMs = performance.now();
    const named: Written[] = [];
    await Promise.all(
      written.map(async (file) => {
        const { message, handle } = file;
        const { object, folder, temporaryName } = message;
        try {
          await handle.datasync().finally(() => handle.close());
          onStep("datasync");
          if (this.#cancelled.has(object.id)) throw new BlockGone();
          await files.rename(join(folder, temporaryName), join(folder, object.id));
          onStep("rename");
          named.push(file);
        } catch (error) {
          await this.#fail(message, error);
        }
      }),
    );
    for (const [folder, there] of Map.groupBy(named, ({ message }) => message.folder)) {
      try {
        await syncFolder(files, folder);
        onStep("folder");
        for (const { message, bytes } of there) {
          this.counts.bytes += bytes;
          emit({ type: "kept", objectId: message.object.id });
        }
      } catch (error) {
        for (const { message } of there) await this.#fail(message, error);
      }
    }
    this.counts.ms += performance.now() - beganMs;
  }

  /** Leaves nothing of the object in the folder. */
  async #fail({ object, folder, temporaryName }: KeepMessage, error: unknown): Promise<void> {
    const { emit, files = systemFiles } = this.#options;
    for (const name of [temporaryName, object.id]) await files.unlink(join(folder, name)).catch(() => undefined);
    emit({ type: "keep failed", objectId: object.id, reason: error instanceof BlockGone ? "gone" : reasonOf(error) });
  }

  /** Copies a block out of the pool. @throws BlockGone when it is not found any more */
  #pack(
    objectId: string,
    position: number,
    tokenIds: Int32Array,
    blockKeys: KeepMessage["blockKeys"],
    index: number,
    out: Uint8Array,
  ): void {
    const { cache, mover, shape } = this.#options;
    const content = contentOf(tokenIds, position, index, shape.blockTokens);
    const blockId: BlockId | undefined = cache.find(blockKeys[index], content);
    if (blockId === undefined || this.#cancelled.has(objectId)) throw new BlockGone();
    mover.pack(blockId, content.end - content.start, out);
  }
}

/** What block `index` of an object holds. */
export function contentOf(tokenIds: Int32Array, position: number, index: number, blockTokens: number): BlockContent {
  const start = index * blockTokens;
  const end = Math.min(start + blockTokens, tokenIds.length);
  return { tokenIds, start, end, position: position + start, place: 0 };
}

/** The system's code of a failure, or its sentence. */
export function reasonOf(error: unknown): string {
  const code = (error as { code?: unknown } | undefined)?.code;
  if (typeof code === "string") return code;
  return error instanceof Error ? error.message : "unknown failure";
}
