/**
 * Reads an object's file: a beginning of some blocks at once, the rest when it is wanted. Where the pool's processor
 * opens sealed blocks itself it opens some at a time, straight into the pool, when their places are known; elsewhere one
 * is opened here.
 */
import { join } from "node:path";
import type { BlockMover } from "../backend/backend.ts";
import { type KvObject, pageBytes } from "../contract/kv-object.ts";
import type { BlockId } from "../contract/units.ts";
import { type FileSystem, type OpenFile, readAt } from "./file-system.ts";
import { Damaged, ObjectFile, type ObjectShape, type Turn } from "./object-file.ts";

/** Read at once. */
const readBytes = 4 * 1024 * 1024;
/** Opened at once by the pool's processor: some 0.2 ms. */
const openBytes = 1024 * 1024;
/** Memory that is kept for the next files, as many pieces as files are read ahead. */
const mostBuffers = 8;

/** Memory that files were read into. That of a new piece takes the system as long to give as a disk to fill. */
export class ReadBuffers {
  readonly #free: Uint8Array[] = [];

  /** At least so many bytes, of any content. */
  take(bytes: number): Uint8Array {
    const at = this.#free.findIndex(({ byteLength }) => byteLength >= bytes);
    return this.#free.splice(at, at < 0 ? 0 : 1)[0] ?? Buffer.allocUnsafeSlow(bytes);
  }

  /** Nobody reads into it any more. */
  give(buffer: Uint8Array): void {
    this.#free.push(buffer);
    if (this.#free.length > mostBuffers) this.#free.shift();
  }

  clear(): void {
    this.#free.length = 0;
  }
}

/** Consecutive blocks of a file, to be put into the pool at once or never. */
export interface ReadBlocks {
  readonly count: number;
  /** Fills these blocks, which no step has. @returns how many, until one that is not what was written */
  place(blockIds: readonly BlockId[]): number;
}

export class ObjectReader {
  readonly file: ObjectFile;
  readonly #handle: OpenFile;
  readonly #buffers: ReadBuffers;
  readonly #buffer: Uint8Array;
  /** The file's beginning, up to block `#until`; later, blocks from `#from` on. */
  #sealed: Uint8Array;
  #from = 0;
  #until: number;
  #plain: Uint8Array | undefined;

  private constructor(file: ObjectFile, handle: OpenFile, buffers: ReadBuffers, buffer: Uint8Array, until: number) {
    this.file = file;
    this.#handle = handle;
    this.#buffers = buffers;
    this.#buffer = buffer;
    this.#sealed = buffer;
    this.#until = until;
  }

  /** Opens the file and reads what of it fits. @throws Damaged, or what the system says */
  static async open(
    files: FileSystem,
    folder: string,
    object: KvObject,
    shape: ObjectShape,
    buffers: ReadBuffers,
  ): Promise<ObjectReader> {
    const file = new ObjectFile(object, shape);
    const { fileBytes, headSpan, blockSpan, blockCount } = file.sizes;
    const handle = await files.open(join(folder, object.id), "r");
    try {
      const blocks = Math.min(blockCount, blocksAtOnce(blockSpan));
      const bytes = pageBytes + headSpan + blocks * blockSpan;
      const buffer = buffers.take(bytes);
      const [{ size }] = await Promise.all([handle.stat(), readAt(handle, 0, buffer.subarray(0, bytes))]);
      if (size !== fileBytes) throw new Damaged("the file has another size");
      return new ObjectReader(file, handle, buffers, buffer, blocks);
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  /** Verifies header and segment 0. Call it first. @throws Damaged */
  async tokens(turn: Turn): Promise<Int32Array> {
    const { headBytes, headSpan } = this.file.sizes;
    if (!this.file.isFirstPage(this.#sealed.subarray(0, pageBytes))) {
      throw new Damaged("the header is another object's");
    }
    const sealed = this.#sealed.subarray(pageBytes, pageBytes + headSpan);
    this.#sealed = this.#sealed.subarray(pageBytes + headSpan);
    const head = new Uint8Array(headBytes);
    const isWhole = await this.file.open(0, sealed, head, turn);
    const tokenIds = isWhole ? this.file.tokensOf(head) : undefined;
    if (tokenIds === undefined) throw new Damaged("segment 0 is not what was written");
    return tokenIds;
  }

  /**
   * The next blocks, from `index` on: some of so many; call it in rising order. They are read, and verified by the time
   * that they are placed. @throws Damaged, or what the system says
   */
  async blocks(index: number, most: number, mover: BlockMover, turn: Turn): Promise<ReadBlocks> {
    const { blockSpan } = this.file.sizes;
    const { bytes } = mover.format;
    await this.#read(index);
    const at = (index - this.#from) * blockSpan;
    const { open } = mover;
    if (open !== undefined) {
      const count = Math.min(most, this.#until - index, Math.max(1, Math.floor(openBytes / bytes)));
      await turn(count * bytes);
      return { count, place: (blockIds) => this.#openInto(index, at, blockIds, open) };
    }
    this.#plain ??= new Uint8Array(bytes);
    const plain = this.#plain;
    const isWhole = await this.file.open(index + 1, this.#sealed.subarray(at, at + blockSpan), plain, turn);
    if (!isWhole) throw damagedBlock(index);
    const place = ([blockId]: readonly BlockId[]): number => {
      mover.unpack(blockId, plain);
      return 1;
    };
    return { count: 1, place };
  }

  async close(): Promise<void> {
    this.#buffers.give(this.#buffer);
    await this.#handle.close();
  }

  /** Has block `index` in memory. */
  async #read(index: number): Promise<void> {
    if (index < this.#until) return;
    const { blockCount, blockSpan } = this.file.sizes;
    const until = Math.min(index + blocksAtOnce(blockSpan), blockCount);
    const sealed = this.#buffer.subarray(0, (until - index) * blockSpan);
    await readAt(this.#handle, this.file.placeOf(index + 1).at, sealed);
    [this.#from, this.#until, this.#sealed] = [index, until, sealed];
  }

  #openInto(index: number, at: number, blockIds: readonly BlockId[], open: NonNullable<BlockMover["open"]>): number {
    const sealed = this.#sealed.subarray(at, at + blockIds.length * this.file.sizes.blockSpan);
    const opened = open(this.file.sealedBlocks(index + 1, sealed), Int32Array.from(blockIds));
    const damaged = opened.indexOf(0);
    return damaged < 0 ? blockIds.length : damaged;
  }
}

export const damagedBlock = (index: number): Damaged => new Damaged(`segment ${index + 1} is not what was written`);

const blocksAtOnce = (blockSpan: number): number => Math.max(1, Math.floor(readBytes / blockSpan));
