/** Blocks between a pool and the host's memory, against plain loops: on a device, and where one is emulated. */
import type { ComputeDevice } from "../../worker/backend/cuda/device/device.ts";
import { blockFormatOf, CudaHostBlocks } from "../../worker/backend/cuda/host-blocks.ts";
import { DevicePool, type KvElement, kvBytesPerBlock } from "../../worker/backend/cuda/pool.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import type { ModelConfig } from "../../worker/model/config.ts";
import { Random } from "../native/random.ts";
import { zeroMx8From } from "../support/gpu-mx8.ts";
import { assertThat } from "./report.ts";

const blockTokens = 16;
const blockCount = 120;
const slotCount = 64;
/** More than there are parts of the staging memory, so that each part is used again before the pool was read. */
const fetchesARound = 6;

/** The pool and the slots as they must be. */
class Plain {
  readonly pool: Uint8Array;
  readonly slots = new Map<number, Uint8Array>();
  readonly #host: CudaHostBlocks;
  readonly #layerStride: number;

  constructor(host: CudaHostBlocks, pool: DevicePool, bytes: Uint8Array) {
    this.#host = host;
    this.#layerStride = pool.layerBytes;
    this.pool = bytes;
  }

  get layerBytes(): number {
    return this.#host.format.bytes / this.#host.format.layers;
  }

  /** Where the pieces of a block are, layer after layer. */
  places(block: number): number[] {
    const { layers } = this.#host.format;
    return Array.from({ length: layers }, (_, layer) => layer * this.#layerStride + block * this.layerBytes);
  }

  store(block: number, tokenCount: number, slot: number): void {
    const { bytes, headDim } = this.#host.format;
    const packed = new Uint8Array(bytes);
    for (const [layer, at] of this.places(block).entries()) {
      packed.set(this.pool.subarray(at, at + this.layerBytes), layer * this.layerBytes);
    }
    if (this.#host.format.codec !== 0) {
      const { kvHeads, layers } = this.#host.format;
      for (let layer = 0; layer < layers; layer++) {
        const part = packed.subarray(layer * this.layerBytes, (layer + 1) * this.layerBytes);
        zeroMx8From(part, { kvHeads, headDim, blockTokens }, tokenCount);
      }
      this.slots.set(slot, packed);
      return;
    }
    const rowBytes = 2 * headDim;
    for (let row = 0; row < bytes / rowBytes; row++) {
      if (row % blockTokens >= tokenCount) packed.fill(0, row * rowBytes, (row + 1) * rowBytes);
    }
    this.slots.set(slot, packed);
  }

  place(slot: number, block: number): void {
    const packed = this.slots.get(slot) ?? new Uint8Array(0);
    for (const [layer, at] of this.places(block).entries()) {
      this.pool.set(packed.subarray(layer * this.layerBytes, (layer + 1) * this.layerBytes), at);
    }
  }
}

export interface MoveOptions {
  readonly seed: number;
  readonly rounds: number;
  /** What the pool holds, which the device's kernels are compiled for. */
  readonly kvElement: KvElement;
}

/** Random blocks go down, and come up into others; in the end all memory is as it must be, bit for bit. */
export async function movesBlocks(
  device: ComputeDevice,
  config: ModelConfig,
  { seed, rounds, kvElement }: MoveOptions,
): Promise<string> {
  const random = new Random(seed);
  const kvBytes = blockCount * kvBytesPerBlock(config, { blockTokens, kvElement });
  const pool = new DevicePool(device, config, { blockTokens, kvElement, kvBytes, reserveBytes: 1 << 20 });
  const format = blockFormatOf(device, config, blockTokens, kvElement);
  const host = new CudaHostBlocks({ device, pool, format, blockTokens, hostBytes: slotCount * format.bytes });
  const bytes = device.allocateHost("pool", pool.memory.byteLength);
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  for (let i = 0; i < words.length; i++) words[i] = random.integer(0, 2 ** 32 - 1);
  const plain = new Plain(host, pool, bytes.slice());
  device.copyIn(pool.memory, bytes);
  const some = (count: number, end: number): number[] => {
    const all = Array.from({ length: end }, (_, value) => ({ value, key: random.integer(0, 2 ** 31 - 1) }));
    return all
      .toSorted((a, b) => a.key - b.key)
      .slice(0, count)
      .map(({ value }) => value);
  };
  const mostBlocks = Math.min(host.pace.blocksPerCopy, 20);
  let moved = 0;
  for (let round = 0; round < rounds; round++) {
    const blocks = some(random.integer(1, mostBlocks), blockCount).map((blockId) => {
      return { blockId: blockId as BlockId, tokenCount: random.integer(1, blockTokens) };
    });
    const slots = some(blocks.length, slotCount);
    await device.settled();
    for (const [index, { blockId, tokenCount }] of blocks.entries()) plain.store(blockId, tokenCount, slots[index]);
    const stored = host.store(blocks, slots);
    // A block may be used for something else at once.
    for (const at of plain.places(blocks[0].blockId)) {
      device.fill(pool.memory.slice(at, plain.layerBytes), round);
      plain.pool.fill(round, at, at + plain.layerBytes);
    }
    await stored;
    for (const slot of slots) {
      const isSame = Buffer.compare(host.slots[slot], plain.slots.get(slot) ?? new Uint8Array(0)) === 0;
      assertThat(isSame, `slot ${slot} is not as it was packed`);
    }
    for (let again = 0; again < fetchesARound; again++) {
      const known = [...plain.slots.keys()];
      const fetched = some(random.integer(1, Math.min(mostBlocks, known.length)), known.length).map((at) => known[at]);
      const targets = some(fetched.length, blockCount).map((block, index) => (index % 5 === 4 ? undefined : block));
      (await host.fetch(fetched)).place(targets.map((block) => block as BlockId | undefined));
      for (const [index, block] of targets.entries()) {
        if (block === undefined) continue;
        plain.place(fetched[index], block);
        moved += 1;
      }
    }
  }
  device.copyOut(bytes, pool.memory);
  await device.settled();
  assertThat(Buffer.compare(bytes, plain.pool) === 0, "the pool is not as it must be");
  return `${moved} blocks moved`;
}
