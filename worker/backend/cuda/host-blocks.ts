/**
 * Packed blocks in page-locked memory of the host. The pool has a block in pieces, one in each layer, which the copy
 * engine would move one by one; so a kernel gathers or scatters them within the device, and the copy engine moves whole
 * blocks between the host and staging memory beside the pool. A kernel takes some microseconds for what a copy takes
 * 0.3 ms for, so no block of the pool is held while a copy runs.
 *
 * Kernels have a stream of their own, since in that of the steps they would wait for the steps in flight. Those neither
 * write a block that can be found nor have one that is free; steps that begin later wait for the kernel.
 */
import type { BlockId } from "../../contract/units.ts";
import type { ModelConfig } from "../../model/config.ts";
import {
  type BlockFormat,
  type CopyPace,
  DeviceLost,
  type FetchedBlocks,
  type FilledBlock,
  type HostBlocks,
} from "../backend.ts";
import type { ComputeDevice, DeviceBuffer, SideStream, StreamMark } from "./device/device.ts";
import { mostMovedBlocks } from "./device/kernels.ts";
import { type DevicePool, type KvElement, kvBytesPerBlock } from "./pool.ts";
import { type SparseParts, shadowBlocks } from "./sparse/sparse-ops.ts";

/** Bytes of one part of the staging memory, unless a block is larger. */
const partBytes = 16 << 20;
/** While requests decode, a copy has at most this many bytes, unless a block is larger, and this many copies are under way: 0.2 ms of copying. */
const [bytesBesideDecodes, copiesBesideDecodes] = [5 << 20, 2];
/** Parts for each direction: while one is filled, others are under way. */
const partsEachWay = 4;
/** The host's memory is taken in pieces, because one address range of all of it may not be had. */
const slabBytes = 1 << 30;

/** Bytes of staging memory on the device. */
export const stagingBytes = (blockBytes: number): number =>
  2 * partsEachWay * blocksIn(partBytes, blockBytes) * blockBytes;

/** K and V of a head, token after token; in mx8 16 tokens' numbers and then their scales (kernels/cuda/mx8.cuh). */
const layouts = { bfloat16: 2, mx8: 3 } as const;
const elements = { bfloat16: 4, mx8: 3 } as const;
/** Elements as they are, or in groups of 32 that share a power of two. */
const codecs = { bfloat16: 0, mx8: 1 } as const;

export function blockFormatOf(
  device: ComputeDevice,
  config: ModelConfig,
  blockTokens: number,
  kvElement: KvElement = "bfloat16",
): BlockFormat {
  const { layerCount: layers, kvHeadCount: kvHeads, headDim } = config;
  const name = `cuda/${device.hardware}/${kvElement}/${layers}x${kvHeads}x${headDim}x${blockTokens}`;
  const bytes = kvBytesPerBlock(config, { blockTokens, kvElement });
  const [layout, element, codec] = [layouts[kvElement], elements[kvElement], codecs[kvElement]];
  return { name, bytes, layers, kvHeads, headDim, layout, element, codec };
}

const blocksIn = (bytes: number, blockBytes: number): number =>
  Math.max(1, Math.min(mostMovedBlocks, Math.floor(bytes / blockBytes)));

interface Part {
  readonly buffer: DeviceBuffer;
  /** In the stream of copies: its copy is done. */
  readonly copied: StreamMark;
  /** In the stream of kernels: its kernel is done. */
  readonly moved: StreamMark;
}

export interface HostBlocksParts {
  readonly device: ComputeDevice;
  readonly pool: DevicePool;
  readonly format: BlockFormat;
  readonly blockTokens: number;
  /** Page-locked bytes to take at most. */
  readonly hostBytes: number;
  /** The further buffers of a pool whose K has shadows. */
  readonly sparse?: SparseParts | undefined;
}

export class CudaHostBlocks implements HostBlocks {
  readonly format: BlockFormat;
  readonly slots: readonly Uint8Array[];
  readonly pace: CopyPace;
  readonly paceBesideDecodes: CopyPace;
  readonly #parts: HostBlocksParts;
  readonly #kernels: SideStream;
  readonly #toHost: SideStream;
  readonly #toDevice: SideStream;
  readonly #storing: Part[];
  readonly #fetching: Part[];

  /** @throws Error in one sentence when the system or the device has too little memory, or no block fits */
  constructor(parts: HostBlocksParts) {
    const { device, format, hostBytes } = parts;
    this.#parts = parts;
    this.format = format;
    this.pace = { copiesAtOnce: partsEachWay, blocksPerCopy: blocksIn(partBytes, format.bytes) };
    const blocksPerCopy = blocksIn(bytesBesideDecodes, format.bytes);
    this.paceBesideDecodes = { copiesAtOnce: copiesBesideDecodes, blocksPerCopy };
    this.#kernels = device.sideStream(true);
    this.#toHost = device.sideStream();
    this.#toDevice = device.sideStream();
    const partsOf = (name: string, stream: SideStream): Part[] =>
      Array.from({ length: partsEachWay }, () => {
        const buffer = device.allocate(name, this.pace.blocksPerCopy * format.bytes);
        return { buffer, copied: stream.mark(), moved: this.#kernels.mark() };
      });
    this.#storing = partsOf("blocks for the host", this.#toHost);
    this.#fetching = partsOf("blocks from the host", this.#toDevice);
    this.slots = takeSlots(device, format.bytes, hostBytes);
  }

  async store(blocks: readonly FilledBlock[], slots: readonly number[]): Promise<void> {
    const part = takePart(this.#storing);
    const { bytes } = this.format;
    this.#launch("pack_blocks", part, blocks);
    this.#toHost.waitFor(part.moved);
    for (const [index, slot] of slots.entries()) {
      this.#toHost.copyOut(this.slots[slot], part.buffer.slice(index * bytes, bytes));
    }
    part.copied.set();
    await reached(part.copied);
    this.#storing.push(part);
  }

  async fetch(slots: readonly number[]): Promise<FetchedBlocks> {
    const part = takePart(this.#fetching);
    const { bytes } = this.format;
    // What was in it before has to be in the pool by then.
    this.#toDevice.waitFor(part.moved);
    for (const [index, slot] of slots.entries()) {
      this.#toDevice.copyIn(part.buffer.slice(index * bytes, bytes), this.slots[slot]);
    }
    part.copied.set();
    await reached(part.copied);
    const place = (blockIds: readonly (BlockId | undefined)[]): void => {
      const blocks = blockIds.map((blockId) => ({ blockId: blockId ?? -1, tokenCount: 0 }));
      if (blocks.some(({ blockId }) => blockId >= 0)) this.#launch("unpack_blocks", part, blocks);
      this.#fetching.push(part);
    };
    return { place };
  }

  #launch(
    kernel: "pack_blocks" | "unpack_blocks",
    { buffer, moved: done }: Part,
    blocks: readonly NumberedBlock[],
  ): void {
    const { device, pool, format, blockTokens, sparse } = this.#parts;
    const moved = new Int32Array(2 * mostMovedBlocks);
    for (const [index, { blockId, tokenCount }] of blocks.entries()) {
      moved[index] = blockId;
      moved[mostMovedBlocks + index] = tokenCount;
    }
    const list = new Uint8Array(moved.buffer);
    const layerVectors = format.bytes / format.layers / vectorBytes;
    const rowVectors = (format.headDim * (format.codec === 0 ? bfloat16Bytes : 1)) / vectorBytes;
    const layerStride = pool.layerBytes / vectorBytes;
    const launch =
      kernel === "pack_blocks"
        ? device.prepare(kernel, list, pool.memory, layerStride, layerVectors, rowVectors, blockTokens, buffer)
        : device.prepare(kernel, list, buffer, pool.memory, layerStride, layerVectors);
    launch({ grid: [blocks.length, format.layers], blockThreads: 256, stream: this.#kernels });
    if (sparse && kernel === "unpack_blocks") shadowBlocks(sparse, list, blocks.length, this.#kernels);
    done.set();
    device.waitFor(done);
  }
}

interface NumberedBlock {
  readonly blockId: number;
  readonly tokenCount: number;
}

const bfloat16Bytes = 2;
/** A thread moves so much at once. */
const vectorBytes = 16;

function takePart(parts: Part[]): Part {
  const part = parts.shift();
  if (part === undefined) throw new RangeError(`more than ${partsEachWay} copies are under way`);
  return part;
}

async function reached(mark: StreamMark): Promise<void> {
  try {
    await mark.reached();
  } catch (error) {
    throw new DeviceLost(`the device failed: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function takeSlots(device: ComputeDevice, blockBytes: number, hostBytes: number): Uint8Array[] {
  const count = Math.floor(hostBytes / blockBytes);
  if (count < 1) throw new Error(`${hostBytes} bytes of host memory do not hold one block of ${blockBytes} bytes`);
  const perSlab = Math.max(1, Math.floor(slabBytes / blockBytes));
  const slots: Uint8Array[] = [];
  while (slots.length < count) {
    const slab = device.allocateHost("blocks in host memory", Math.min(perSlab, count - slots.length) * blockBytes);
    for (let at = 0; at < slab.byteLength; at += blockBytes) slots.push(slab.subarray(at, at + blockBytes));
  }
  return slots;
}
