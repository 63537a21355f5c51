/**
 * The KV memory of all layers in one allocation. A layer is [block][kvHead] of K [blockTokens][headDim], then V, in
 * bfloat16, or as kernels/cuda/mx8.cuh has it. The pool takes the memory that weights and workspace leave free, so it is
 * made last.
 */
import { mx8Group } from "../../contract/units.ts";
import type { ModelConfig } from "../../model/config.ts";
import type { ComputeDevice, DeviceBuffer } from "./device/device.ts";

/** What the pool holds. */
export type KvElement = "bfloat16" | "mx8";

export interface PoolOptions {
  readonly blockTokens: number;
  /** Default: bfloat16. */
  readonly kvElement?: KvElement;
  /** The most bytes to take; undefined: all that is free but the reserve. */
  readonly kvBytes: number | undefined;
  /** Bytes left free for the driver, and for graphs that are recorded later. */
  readonly reserveBytes: number;
  /** What lies beside the pool for each of its blocks; default: nothing. */
  readonly besideBlockBytes?: number;
}

/** The most slots of a pool: kernels number slots with int32. */
const maxSlots = 2 ** 31 - 1;

export function kvBytesPerBlock(
  { layerCount, kvHeadCount, headDim }: ModelConfig,
  { blockTokens, kvElement }: Pick<PoolOptions, "blockTokens" | "kvElement">,
): number {
  const headBytes = kvElement === "mx8" ? headDim + headDim / mx8Group : 2 * headDim;
  return 2 * layerCount * kvHeadCount * headBytes * blockTokens;
}

/** 1536 -> "1.5 KiB" */
export function bytesText(bytes: number): string {
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  const unit = ["bytes", "KiB", "MiB", "GiB", "TiB"][power];
  return power === 0 ? `${bytes} ${unit}` : `${(bytes / 1024 ** power).toFixed(1)} ${unit}`;
}

/** @throws Error in one sentence when the memory does not hold one block */
export function poolBlockCount(config: ModelConfig, freeBytes: number, options: PoolOptions): number {
  const blockBytes = kvBytesPerBlock(config, options);
  const usable = Math.max(0, freeBytes - options.reserveBytes);
  const room = Math.floor((usable * blockBytes) / (blockBytes + (options.besideBlockBytes ?? 0)));
  const bytes = Math.min(room, options.kvBytes ?? room);
  const blockCount = Math.min(Math.floor(bytes / blockBytes), Math.floor(maxSlots / options.blockTokens));
  if (blockCount >= 1) return blockCount;
  const block = `one block of ${options.blockTokens} tokens (${bytesText(blockBytes)})`;
  if (room >= blockBytes) throw new Error(`a KV pool of ${bytesText(bytes)} does not hold ${block}`);
  const free = `${bytesText(freeBytes)} are free beside the model, ${bytesText(options.reserveBytes)} of it stay free`;
  throw new Error(`the device has no memory for ${block}: ${free}`);
}

export class DevicePool {
  readonly blockCount: number;
  readonly blockBytes: number;
  readonly memory: DeviceBuffer;
  readonly layerBytes: number;

  constructor(device: ComputeDevice, config: ModelConfig, options: PoolOptions) {
    this.blockCount = poolBlockCount(config, device.freeBytes(), options);
    this.blockBytes = kvBytesPerBlock(config, options);
    this.memory = device.allocate("KV pool", this.blockCount * this.blockBytes);
    this.layerBytes = this.memory.byteLength / config.layerCount;
    // Kernels mask unwritten slots, but a stray NaN times a weight of 0 would still be NaN. So the pool starts as
    // zeros.
    device.fill(this.memory, 0);
  }

  layer(index: number): DeviceBuffer {
    return this.memory.slice(index * this.layerBytes, this.layerBytes, `KV of layer ${index}`);
  }
}
