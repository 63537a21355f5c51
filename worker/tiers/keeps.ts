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
import { type FileSystem, syncFolder, writeAll } from "./file-system.ts";
import { ObjectFile, type ObjectShape, sliceBytes, type Turn } from "./object-file.ts";

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
const maxWaiting = 256;

class BlockGone extends Error {}

export class Keeps {
  /** Of files that were written whole. */
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

  /** These objects are not wanted any more. */
  cancel(objectIds: readonly string[]): void {
    if (!this.#isRunning) return;
    for (const id of objectIds) this.#cancelled.add(id);
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    for (let message = this.#waiting.shift(); message !== undefined; message = this.#waiting.shift()) {
      const objectId = message.object.id;
      try {
        const beganMs = performance.now();
        this.counts.bytes += await this.#write(message);
        this.counts.ms += performance.now() - beganMs;
        this.#options.emit({ type: "kept", objectId });
      } catch (error) {
        const reason = error instanceof BlockGone ? "gone" : reasonOf(error);
        this.#options.emit({ type: "keep failed", objectId, reason });
      }
    }
    this.#cancelled.clear();
    this.#isRunning = false;
  }

  /** @returns bytes of the file */
  async #write({ object, folder, temporaryName, tokenIds, blockKeys }: KeepMessage): Promise<number> {
    const { shape, mover, turn, settled, files = systemFiles, onStep = () => undefined } = this.#options;
    const file = new ObjectFile(object, shape);
    const { headSpan, blockSpan, blockCount } = file.sizes;
    if (blockKeys.length !== blockCount) throw new RangeError("an object has other blocks than keys");
    await settled?.();
    const aside = join(folder, temporaryName);
    const handle = await files.open(aside, "wx", 0o600);
    try {
      try {
        onStep("open");
        await writeAll(handle, file.firstPage());
        onStep("header");
        const head = new Uint8Array(headSpan);
        await file.seal(0, file.head(tokenIds), head, turn);
        await writeAll(handle, head);
        onStep("head");
        const [plain, sealed] = [new Uint8Array(mover.format.bytes), new Uint8Array(blockSpan)];
        for (let index = 0; index < blockCount; index++) {
          await turn(sliceBytes);
          this.#pack(object.id, object.position, tokenIds, blockKeys, index, plain);
          await file.seal(index + 1, plain, sealed, turn);
          await writeAll(handle, sealed);
          onStep("block");
        }
        await handle.datasync();
        onStep("datasync");
      } finally {
        await handle.close();
      }
      if (this.#cancelled.has(object.id)) throw new BlockGone();
      await files.rename(aside, join(folder, object.id));
      onStep("rename");
      await syncFolder(files, folder);
      onStep("folder");
      return file.sizes.fileBytes;
    } catch (error) {
      for (const name of [temporaryName, object.id]) await files.unlink(join(folder, name)).catch(() => undefined);
      throw error;
    }
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
