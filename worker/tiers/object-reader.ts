/**
 * Reads an object's file: a beginning of some blocks at once, the rest in pieces, each while the one before is opened.
 * Where the pool's processor opens sealed blocks itself it opens some at a time, straight into the pool, when their places
 * are known; elsewhere one is opened here. A file that the system has in memory such a processor reads too, each block by
 * the thread that opens it, in its own cache, without a copy in memory of ours.
 */
import { join } from "node:path";
import type { BlockMover, FileOpener } from "../backend/backend.ts";
import { type KvObject, openings, pageBytes } from "../contract/kv-object.ts";
import type { BlockId } from "../contract/units.ts";
import { type FileSystem, type OpenFile, readAt } from "./file-system.ts";
import { Damaged, ObjectFile, type ObjectShape, type Turn } from "./object-file.ts";

/** Read at once. */
const readBytes = 4 * 1024 * 1024;
/** Opened at once by the pool's processor: some 0.3 ms, which waking its threads for is worth. */
const openBytes = 2 * 1024 * 1024;
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

/** How many blocks were filled, and why not all of them; "later": the next call for blocks reads them otherwise. */
export interface Placed {
  readonly filled: number;
  readonly end?: "damaged" | "later";
}

/** Consecutive blocks of a file, to be put into the pool at once or never. */
export interface ReadBlocks {
  readonly count: number;
  /** Fills these blocks, which no step has. */
  place(blockIds: readonly BlockId[]): Placed;
}

/** Sealed blocks [from, until) in memory. */
interface Piece {
  readonly from: number;
  readonly until: number;
  /** Where they were read to. */
  readonly buffer: Uint8Array;
  readonly sealed: Uint8Array;
}

export class ObjectReader {
  readonly file: ObjectFile;
  readonly #handle: OpenFile;
  readonly #buffers: ReadBuffers;
  /** That of the file's beginning has the segments before the blocks too, until `tokens` has opened them. */
  #piece: Piece;
  /** Is read while that one is opened. */
  #next: Promise<Piece> | undefined;
  /** What nothing is read into or opened from. */
  #spare: Uint8Array | undefined;
  #plain: Uint8Array | undefined;
  /** Opens blocks in the file, while the system has it in memory. */
  #atHand: AtHand | undefined;

  private constructor({ file, handle, buffers, piece, atHand }: ReaderParts) {
    this.file = file;
    this.#handle = handle;
    this.#buffers = buffers;
    this.#piece = piece;
    this.#atHand = atHand;
  }

  /** Opens the file and reads what of it fits. @throws Damaged, or what the system says */
  static async open(
    files: FileSystem,
    folder: string,
    object: KvObject,
    { shape, mover }: { readonly shape: ObjectShape; readonly mover: Pick<BlockMover, "files"> },
    buffers: ReadBuffers,
  ): Promise<ObjectReader> {
    const file = new ObjectFile(object, shape);
    const { fileBytes, headSpan, blockSpan, blockCount } = file.sizes;
    const handle = await files.open(join(folder, object.id), "r");
    try {
      const atHand = atHandOf(handle, fileBytes, mover);
      const blocks = atHand ? 0 : Math.min(blockCount, blocksAtOnce(blockSpan));
      const bytes = pageBytes + headSpan + blocks * blockSpan;
      const buffer = buffers.take(bytes);
      // Both end before the file is closed, whichever fails: a read that came short goes on with another one.
      const [stat, read] = await Promise.allSettled([handle.stat(), readAt(handle, 0, buffer.subarray(0, bytes))]);
      if (stat.status === "rejected") throw stat.reason;
      if (read.status === "rejected") throw read.reason;
      if (stat.value.size !== fileBytes) throw new Damaged("the file has another size");
      return new ObjectReader({
        file,
        handle,
        buffers,
        atHand,
        piece: { from: 0, until: blocks, buffer, sealed: buffer },
      });
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  /** Verifies header and segment 0. Call it first. @throws Damaged */
  async tokens(turn: Turn): Promise<Int32Array> {
    const { headBytes, headSpan } = this.file.sizes;
    const { buffer, until } = this.#piece;
    if (!this.file.isFirstPage(buffer.subarray(0, pageBytes))) {
      throw new Damaged("the header is another object's");
    }
    if (this.#atHand === undefined) this.#readAhead(until);
    const sealed = buffer.subarray(pageBytes, pageBytes + headSpan);
    this.#piece = { ...this.#piece, sealed: buffer.subarray(pageBytes + headSpan) };
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
    const atOnce = Math.min(most, Math.max(1, Math.floor(openBytes / bytes)));
    const atHand = this.#atHand;
    if (atHand !== undefined) {
      await turn(atOnce * bytes);
      return { count: atOnce, place: (blockIds) => this.#openAtHand(index, blockIds, atHand) };
    }
    const { from, until, sealed } = await this.#pieceOf(index);
    const at = (index - from) * blockSpan;
    const { open } = mover;
    if (open !== undefined) {
      const count = Math.min(atOnce, until - index);
      await turn(count * bytes);
      return { count, place: (blockIds) => this.#openInto(index, sealed.subarray(at), blockIds, open) };
    }
    this.#plain ??= new Uint8Array(bytes);
    const plain = this.#plain;
    const isWhole = await this.file.open(index + 1, sealed.subarray(at, at + blockSpan), plain, turn);
    if (!isWhole) throw damagedBlock(index);
    const place = ([blockId]: readonly BlockId[]): Placed => {
      mover.unpack(blockId, plain);
      return { filled: 1 };
    };
    return { count: 1, place };
  }

  async close(): Promise<void> {
    // Nothing reads into memory that is given to another file.
    const next = await this.#next?.catch(() => undefined);
    for (const buffer of [this.#piece.buffer, next?.buffer, this.#spare]) {
      if (buffer !== undefined) this.#buffers.give(buffer);
    }
    await this.#handle.close();
  }

  /** The piece that has block `index`. */
  async #pieceOf(index: number): Promise<Piece> {
    while (index >= this.#piece.until) {
      const next = await (this.#next ?? this.#readPiece(index));
      this.#next = undefined;
      if (this.#spare !== undefined) this.#buffers.give(this.#spare);
      this.#spare = this.#piece.buffer;
      this.#piece = next;
      // Blocks that are there already are passed over.
      this.#readAhead(Math.max(index, next.until));
    }
    return this.#piece;
  }

  /** Begins to read the blocks from `index` on, if there are any. */
  #readAhead(index: number): void {
    if (index >= this.file.sizes.blockCount) return;
    this.#next = this.#readPiece(index);
    // Its failure is seen by who wants it.
    this.#next.catch(() => undefined);
  }

  async #readPiece(from: number): Promise<Piece> {
    const { blockCount, blockSpan } = this.file.sizes;
    const until = Math.min(from + blocksAtOnce(blockSpan), blockCount);
    const bytes = (until - from) * blockSpan;
    const buffer = this.#takeBuffer(bytes);
    const sealed = buffer.subarray(0, bytes);
    await readAt(this.#handle, this.file.placeOf(from + 1).at, sealed);
    return { from, until, buffer, sealed };
  }

  /** At least so many bytes. */
  #takeBuffer(bytes: number): Uint8Array {
    const spare = this.#spare;
    // That of a file's beginning alone is small.
    if (spare === undefined || spare.byteLength < bytes) return this.#buffers.take(bytes);
    this.#spare = undefined;
    return spare;
  }

  #openInto(
    index: number,
    from: Uint8Array,
    blockIds: readonly BlockId[],
    open: NonNullable<BlockMover["open"]>,
  ): Placed {
    const sealed = from.subarray(0, blockIds.length * this.file.sizes.blockSpan);
    return placedOf(open(this.file.sealedBlocks(index + 1, sealed), Int32Array.from(blockIds)));
  }

  #openAtHand(index: number, blockIds: readonly BlockId[], { fd, opener }: AtHand): Placed {
    const placed = placedOf(opener.open(this.file.fileBlocks(index + 1, fd), Int32Array.from(blockIds)));
    // From here on it is read as a file that is not in memory.
    if (placed.end === "later") this.#atHand = undefined;
    return placed;
  }
}

/** A file that the system has in memory, and who opens blocks there. */
interface AtHand {
  readonly fd: number;
  readonly opener: FileOpener;
}

interface ReaderParts {
  readonly file: ObjectFile;
  readonly handle: OpenFile;
  readonly buffers: ReadBuffers;
  readonly piece: Piece;
  readonly atHand: AtHand | undefined;
}

function atHandOf(
  { fd }: OpenFile,
  fileBytes: number,
  { files: opener }: Pick<BlockMover, "files">,
): AtHand | undefined {
  return fd !== undefined && opener?.isAtHand(fd, 0, fileBytes) ? { fd, opener } : undefined;
}

/** Blocks that follow one that was not opened are not used, though they may have been opened. */
function placedOf(opened: Uint8Array): Placed {
  const filled = opened.findIndex((each) => each !== openings.opened);
  if (filled < 0) return { filled: opened.length };
  return { filled, end: opened[filled] === openings.damaged ? "damaged" : "later" };
}

export const damagedBlock = (index: number): Damaged => new Damaged(`segment ${index + 1} is not what was written`);

const blocksAtOnce = (blockSpan: number): number => Math.max(1, Math.floor(readBytes / blockSpan));
