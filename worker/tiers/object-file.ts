/**
 * One object's file, byte for byte: a page that begins with the header, then a segment for what the object is and one
 * for each block. Little endian.
 *
 *   header    0 magic 8 | 8 version u16, segments u16 | 12 bytes of segment 0 u32 | 16 object id 16
 *             32 bytes of each other segment u64 | 40 bytes of the file u64 | 48 bytes of a packed block u32 | zeros to 64
 *   segment   ciphertext, tag of 16 bytes, zeros up to a multiple of 4,096
 *   segment 0 model digest 32, position u32, blockTokens, layers, kvHeads, headDim u16, layout, element, codec, 0 u8,
 *             previousKey and lastKey 16 each, tokenCount u32, token ids u32
 *
 * AES-256-GCM with the object's own key; the nonce is the segment's number, so no nonce is used twice with a key; the
 * header is additional data. Whoever reads knows header and sizes beforehand and compares them.
 */
import { type CipherGCM, createCipheriv, createDecipheriv, type DecipherGCM } from "node:crypto";
import type { BlockFormat } from "../backend/backend.ts";
import {
  dataKeyBytes,
  type FileBlocks,
  type KvObject,
  kvObjectSizes,
  kvObjectVersion,
  pageBytes,
  type SealedBlocks,
  type SealedSegments,
  tagBytes,
} from "../contract/kv-object.ts";

const magic = Uint8Array.of(0x53, 0x50, 0x47, 0x4b, 0x56, 0x0d, 0x0a, 0x1a);
const headerBytes = 64;
/** Sealed or opened at once, between two steps of the model: some 0.2 ms. */
export const sliceBytes = 256 * 1024;
const cipherName = "aes-256-gcm";
const zeros = Buffer.alloc(pageBytes);

/** What all objects of one worker have in common. */
export interface ObjectShape {
  /** 64 hex digits. */
  readonly modelDigest: string;
  readonly blockTokens: number;
  readonly blocks: BlockFormat;
}

/** Asked before each slice of so many bytes: undefined, or when it may be worked on. */
export type Turn = (bytes: number) => Promise<void> | undefined;

/** A file is not what was written. */
export class Damaged extends Error {}

/** One object's sizes, header and first segment. */
export class ObjectFile {
  readonly object: KvObject;
  readonly sizes: ReturnType<typeof kvObjectSizes>;
  readonly #shape: ObjectShape;
  readonly #header: Uint8Array;

  /** @throws RangeError when the row cannot be an object's */
  constructor(object: KvObject, shape: ObjectShape) {
    if (object.dataKey.byteLength !== dataKeyBytes) throw new RangeError("a data key has another length");
    this.object = object;
    this.#shape = shape;
    this.sizes = kvObjectSizes(object.tokenCount, { blockTokens: shape.blockTokens, blockBytes: shape.blocks.bytes });
    this.#header = this.#makeHeader();
  }

  /** The file's first page. */
  firstPage(): Uint8Array {
    const page = new Uint8Array(pageBytes);
    page.set(this.#header);
    return page;
  }

  /** Whether these are the bytes of the first page: nothing else is. */
  isFirstPage(bytes: Uint8Array): boolean {
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).equals(this.firstPage());
  }

  /** Where segment i begins in the file, and what it takes there. */
  placeOf(segment: number): { readonly at: number; readonly span: number; readonly bytes: number } {
    const { headBytes, headSpan, blockSpan } = this.sizes;
    if (segment === 0) return { at: pageBytes, span: headSpan, bytes: headBytes };
    return { at: pageBytes + headSpan + (segment - 1) * blockSpan, span: blockSpan, bytes: this.#shape.blocks.bytes };
  }

  /** Segment 0 before it is sealed. */
  head(tokenIds: Int32Array): Uint8Array {
    const { position, previousKey, lastKey, tokenCount } = this.object;
    const { modelDigest, blockTokens, blocks } = this.#shape;
    if (tokenIds.length !== tokenCount) throw new RangeError(`${tokenIds.length} tokens are not ${tokenCount}`);
    const bytes = new Uint8Array(this.sizes.headBytes);
    const view = new DataView(bytes.buffer);
    bytes.set(Buffer.from(modelDigest, "hex").subarray(0, 32));
    view.setUint32(32, position, true);
    [blockTokens, blocks.layers, blocks.kvHeads, blocks.headDim].forEach((value, index) => {
      view.setUint16(36 + 2 * index, value, true);
    });
    bytes.set([blocks.layout, blocks.element, blocks.codec, 0], 44);
    bytes.set(Buffer.from(previousKey, "hex").subarray(0, 16), 48);
    bytes.set(Buffer.from(lastKey, "hex").subarray(0, 16), 64);
    view.setUint32(80, tokenCount, true);
    // All processors that this runs on have numbers of 32 bits as the file has them.
    new Int32Array(bytes.buffer, 84).set(tokenIds);
    return bytes;
  }

  /** The tokens of an opened segment 0; undefined when it is another object's. */
  tokensOf(head: Uint8Array): Int32Array | undefined {
    if (head.byteLength !== this.sizes.headBytes) return undefined;
    const tokenIds = new Int32Array(head.slice(84).buffer);
    return Buffer.from(this.head(tokenIds)).equals(head) ? tokenIds : undefined;
  }

  /** Segments of blocks from `firstSegment` on, which lie in `sealed`, for whoever opens them. */
  sealedBlocks(firstSegment: number, sealed: Uint8Array): SealedBlocks {
    return { ...this.#segments(firstSegment), sealed };
  }

  /** The same where they lie in the open file. */
  fileBlocks(firstSegment: number, fd: number): FileBlocks {
    return { ...this.#segments(firstSegment), fd, at: this.placeOf(firstSegment).at };
  }

  /** Seals a segment into `out`, which takes the segment's whole span. */
  async seal(segment: number, plain: Uint8Array, out: Uint8Array, turn: Turn): Promise<void> {
    const { bytes, span } = this.placeOf(segment);
    if (plain.byteLength !== bytes || out.byteLength !== span) throw new RangeError("a segment has another size");
    const cipher: CipherGCM = createCipheriv(cipherName, this.object.dataKey, nonceOf(segment));
    cipher.setAAD(this.#header);
    for (let at = 0; at < bytes; at += sliceBytes) {
      const end = Math.min(at + sliceBytes, bytes);
      const wait = turn(end - at);
      if (wait !== undefined) await wait;
      out.set(cipher.update(plain.subarray(at, end)), at);
    }
    cipher.final();
    out.set(cipher.getAuthTag(), bytes);
    out.fill(0, bytes + tagBytes);
  }

  /** Opens a segment into `out`. @returns false when it is not what was sealed; `out` is then not to be used */
  async open(segment: number, sealed: Uint8Array, out: Uint8Array, turn: Turn): Promise<boolean> {
    const { bytes, span } = this.placeOf(segment);
    if (sealed.byteLength !== span || out.byteLength !== bytes) return false;
    const decipher: DecipherGCM = createDecipheriv(cipherName, this.object.dataKey, nonceOf(segment));
    decipher.setAAD(this.#header).setAuthTag(sealed.subarray(bytes, bytes + tagBytes));
    for (let at = 0; at < bytes; at += sliceBytes) {
      const end = Math.min(at + sliceBytes, bytes);
      const wait = turn(end - at);
      if (wait !== undefined) await wait;
      out.set(decipher.update(sealed.subarray(at, end)), at);
    }
    try {
      decipher.final();
    } catch {
      return false;
    }
    // The padding is no part of what is sealed, and is held to zeros so that a file has one form.
    return zeros.subarray(0, span - bytes - tagBytes).equals(sealed.subarray(bytes + tagBytes));
  }

  #segments(firstSegment: number): SealedSegments {
    return { key: this.object.dataKey, header: this.#header, span: this.sizes.blockSpan, firstSegment };
  }

  #makeHeader(): Uint8Array {
    const { blockCount, headBytes, fileBytes } = this.sizes;
    const blockBytes = this.#shape.blocks.bytes;
    const header = new Uint8Array(headerBytes);
    const view = new DataView(header.buffer);
    header.set(magic);
    view.setUint16(8, kvObjectVersion, true);
    view.setUint16(10, blockCount + 1, true);
    view.setUint32(12, headBytes, true);
    header.set(Buffer.from(this.object.id, "hex").subarray(0, 16), 16);
    view.setBigUint64(32, BigInt(blockBytes), true);
    view.setBigUint64(40, BigInt(fileBytes), true);
    view.setUint32(48, blockBytes, true);
    return header;
  }
}

/** The segment's number and 8 zeros. */
function nonceOf(segment: number): Uint8Array {
  const nonce = new Uint8Array(12);
  new DataView(nonce.buffer).setUint32(0, segment, true);
  return nonce;
}
