/**
 * KV in files. An object is one file: up to `extentBlocks` consecutive blocks of one chain, from a multiple of that on.
 * Gateway and worker both compute its size from the row and the block's size, so that no length in a file is ever used.
 */
import type { KvOwner } from "./owners.ts";
import { type BlockKey, blockCountForTokens } from "./units.ts";

/** Blocks of an object at most. */
export const extentBlocks = 32;
export const pageBytes = 4_096;
export const tagBytes = 16;
export const dataKeyBytes = 32;
/** The version of the files' format. */
export const kvObjectVersion = 1;
/** Segment 0 without its token ids. */
export const fixedHeadBytes = 84;

/** What a worker's files hold: KV of another format is never read. */
export interface KvFormat {
  /** Names the arithmetic and the layout of a packed block; compared, never parsed. */
  readonly name: string;
  readonly blockTokens: number;
  /** Bytes of a packed block. */
  readonly blockBytes: number;
}

/** One object as its row has it. Blocks are chained from `previousKey` to `lastKey`; the chain begins at `rootKey`. */
export interface KvObject {
  /** 32 lowercase hex digits; the file's name. */
  readonly id: string;
  /** Seals this object and no other. */
  readonly dataKey: Uint8Array;
  readonly rootKey: BlockKey;
  readonly previousKey: BlockKey;
  readonly lastKey: BlockKey;
  /** Chain position of the first token. */
  readonly position: number;
  readonly tokenCount: number;
  /** Whom the blocks are counted for when no request asks for them. */
  readonly owner: KvOwner;
  /** Which of the files that had its name is there: another number for each that came from the bucket. Default: 0. */
  readonly copy?: number;
}

export interface KvObjectSizes {
  readonly blockCount: number;
  /** Bytes of segment 0 before it is sealed. */
  readonly headBytes: number;
  /** What segment 0 and each block's segment take in the file. */
  readonly headSpan: number;
  readonly blockSpan: number;
  readonly fileBytes: number;
}

/** Consecutive blocks as an object's file has them. */
export interface SealedSegments {
  readonly key: Uint8Array;
  /** What is sealed with each, though it is not in it. */
  readonly header: Uint8Array;
  /** There is a segment every so many bytes. */
  readonly span: number;
  /** The number of the first segment in the file. */
  readonly firstSegment: number;
}

/** Segments in memory. */
export interface SealedBlocks extends SealedSegments {
  readonly sealed: Uint8Array;
}

/** Segments in a file that is open. */
export interface FileBlocks extends SealedSegments {
  /** The system's descriptor of the open file. */
  readonly fd: number;
  /** Where the first segment begins, in bytes. */
  readonly at: number;
}

/** What came of opening a block. One in a file is not at hand when a disk would have to be waited for. */
export const openings = { damaged: 0, opened: 1, notAtHand: 2 } as const;

const spanOf = (bytes: number): number => Math.ceil((bytes + tagBytes) / pageBytes) * pageBytes;

/** @throws RangeError when no object has so many tokens */
export function kvObjectSizes(
  tokenCount: number,
  { blockTokens, blockBytes }: Pick<KvFormat, "blockTokens" | "blockBytes">,
): KvObjectSizes {
  const blockCount = blockCountForTokens(tokenCount, blockTokens);
  if (!Number.isInteger(tokenCount) || blockCount < 1 || blockCount > extentBlocks) {
    throw new RangeError(`an object of ${tokenCount} tokens has ${blockCount} blocks, not 1 to ${extentBlocks}`);
  }
  const headBytes = fixedHeadBytes + 4 * tokenCount;
  const [headSpan, blockSpan] = [spanOf(headBytes), spanOf(blockBytes)];
  return { blockCount, headBytes, headSpan, blockSpan, fileBytes: pageBytes + headSpan + blockCount * blockSpan };
}
