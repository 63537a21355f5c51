/** Blocks of KV files, opened by the kernels into blocks of a pool that no step reads. Checked calls of kernels/cpu/sealed.cpp. */
import type { Pointer } from "bun:ffi";
import { dataKeyBytes, type FileBlocks, type SealedBlocks, type SealedSegments } from "../contract/kv-object.ts";
import { assertInteger, assertLength, type KernelLibrary } from "./library.ts";

const maxInt32 = 2 ** 31 - 1;
/** Far beyond any KV file, and sums of places in it are exact. */
const maxFileBytes = 2 ** 50;

/**
 * Opens sealed blocks on all threads. What is not as it was sealed leaves its block as it was.
 * @returns for each block one of `openings`
 * @throws KernelError, RangeError
 */
export function openBlocks(
  library: KernelLibrary,
  pool: Pointer,
  blocks: SealedBlocks,
  blockIds: Int32Array,
): Uint8Array {
  const { key, header, sealed, span, firstSegment } = blocks;
  const count = blockIds.length;
  assertSegments(blocks, blockIds);
  assertLength("sealed", sealed, count * span);
  const opened = new Uint8Array(count);
  const status = library.symbols.spg_pool_open_blocks(
    pool,
    key,
    header,
    header.length,
    sealed,
    span,
    firstSegment,
    blockIds,
    count,
    opened,
  );
  library.check("openBlocks", status);
  return opened;
}

/** As `openBlocks`, of segments in a file, as far as the system has it in memory: no call waits for a disk. */
export function openFileBlocks(
  library: KernelLibrary,
  pool: Pointer,
  blocks: FileBlocks,
  blockIds: Int32Array,
): Uint8Array {
  const { key, header, span, firstSegment, fd, at } = blocks;
  const count = blockIds.length;
  assertSegments(blocks, blockIds);
  assertInteger("fd", fd, 0, maxInt32);
  assertInteger("at", at, 0, maxFileBytes);
  const opened = new Uint8Array(count);
  const status = library.symbols.spg_pool_open_file_blocks(
    pool,
    key,
    header,
    header.length,
    fd,
    at,
    span,
    firstSegment,
    blockIds,
    count,
    opened,
  );
  library.check("openFileBlocks", status);
  return opened;
}

/** Whether the system has the ends and the middle of these bytes of an open file in memory, and so probably all. */
export function isFileAtHand(library: KernelLibrary, fd: number, at: number, bytes: number): boolean {
  assertInteger("fd", fd, 0, maxInt32);
  assertInteger("at", at, 0, maxFileBytes);
  assertInteger("bytes", bytes, 1, maxFileBytes);
  return library.symbols.spg_file_at_hand(fd, at, bytes) === 1;
}

function assertSegments({ key, header, span, firstSegment }: SealedSegments, blockIds: Int32Array): void {
  assertInteger("span", span, 1, maxInt32);
  assertInteger("firstSegment", firstSegment, 0, maxInt32 - blockIds.length);
  assertLength("blockIds", blockIds, 1);
  assertLength("key", key, dataKeyBytes);
  assertLength("header", header, 1);
}
