/** Reads an object's file: a beginning of some blocks at once, the rest when it is wanted. */
import { join } from "node:path";
import { type KvObject, pageBytes } from "../contract/kv-object.ts";
import { type FileSystem, type OpenFile, readAt } from "./file-system.ts";
import { Damaged, ObjectFile, type ObjectShape, type Turn } from "./object-file.ts";

/** Read at once. */
const readBytes = 4 * 1024 * 1024;

export class ObjectReader {
  readonly file: ObjectFile;
  readonly #handle: OpenFile;
  /** The file's beginning, up to block `#until`; later, blocks from `#from` on. */
  #sealed: Uint8Array;
  #from = 0;
  #until: number;

  private constructor(file: ObjectFile, handle: OpenFile, sealed: Uint8Array, until: number) {
    this.file = file;
    this.#handle = handle;
    this.#sealed = sealed;
    this.#until = until;
  }

  /** Opens the file and reads what of it fits. @throws Damaged, or what the system says */
  static async open(files: FileSystem, folder: string, object: KvObject, shape: ObjectShape): Promise<ObjectReader> {
    const file = new ObjectFile(object, shape);
    const { fileBytes, headSpan, blockSpan, blockCount } = file.sizes;
    const handle = await files.open(join(folder, object.id), "r");
    try {
      const { size } = await handle.stat();
      if (size !== fileBytes) throw new Damaged("the file has another size");
      const blocks = Math.min(blockCount, blocksAtOnce(blockSpan));
      const sealed = await readAt(handle, 0, pageBytes + headSpan + blocks * blockSpan);
      return new ObjectReader(file, handle, sealed, blocks);
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

  /** Opens block `index` into `plain`; call it in rising order. @throws Damaged, or what the system says */
  async block(index: number, plain: Uint8Array, turn: Turn): Promise<void> {
    const { blockCount, blockSpan } = this.file.sizes;
    if (index >= this.#until) {
      this.#from = index;
      this.#until = Math.min(index + blocksAtOnce(blockSpan), blockCount);
      this.#sealed = await readAt(this.#handle, this.file.placeOf(index + 1).at, (this.#until - index) * blockSpan);
    }
    const at = (index - this.#from) * blockSpan;
    if (!(await this.file.open(index + 1, this.#sealed.subarray(at, at + blockSpan), plain, turn))) {
      throw new Damaged(`segment ${index + 1} is not what was written`);
    }
  }

  async close(): Promise<void> {
    await this.#handle.close();
  }
}

const blocksAtOnce = (blockSpan: number): number => Math.max(1, Math.floor(readBytes / blockSpan));
