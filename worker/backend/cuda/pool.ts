/**
 * The KV memory: one allocation, all layers. Of a layer [block][kvHead] of K [blockTokens][headDim], then V, bfloat16.
 * It takes what is free once weights and workspace are there, so it is made last.
 */
import type { ModelConfig } from "../../model/config.ts";
import type { ComputeDevice, DeviceBuffer } from "./device/device.ts";

export interface PoolOptions {
  readonly blockTokens: number;
  /** At most so much; undefined: all that is free but the reserve. */
  readonly kvBytes: number | undefined;
  /** Left free: for the driver, and for graphs that are recorded later. */
  readonly reserveBytes: number;
}

/** Slots are int32 on the device. */
const maxSlots = 2 ** 31 - 1;

export function kvBytesPerBlock(config: ModelConfig, blockTokens: number): number {
  return 2 * 2 * config.layerCount * config.kvHeadCount * config.headDim * blockTokens;
}

/** 1536 -> "1.5 KiB" */
export function bytesText(bytes: number): string {
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  const unit = ["bytes", "KiB", "MiB", "GiB", "TiB"][power];
  return power === 0 ? `${bytes} ${unit}` : `${(bytes / 1024 ** power).toFixed(1)} ${unit}`;
}

/** @throws Error in one sentence when the memory does not hold one block */
export function poolBlockCount(config: ModelConfig, freeBytes: number, options: PoolOptions): number {
  const blockBytes = kvBytesPerBlock(config, options.blockTokens);
  const usable = Math.max(0, freeBytes - options.reserveBytes);
  const bytes = Math.min(usable, options.kvBytes ?? usable);
  const blockCount = Math.min(Math.floor(bytes / blockBytes), Math.floor(maxSlots / options.blockTokens));
  if (blockCount >= 1) return blockCount;
  const block = `one block of ${options.blockTokens} tokens (${bytesText(blockBytes)})`;
  if (usable >= blockBytes) throw new Error(`a KV pool of ${bytesText(bytes)} does not hold ${block}`);
  const free = `${bytesText(freeBytes)} are free beside the model, ${bytesText(options.reserveBytes)} of it stay free`;
  throw new Error(`the device has no memory for ${block}: ${free}`);
}

export class DevicePool {
  readonly blockCount: number;
  readonly blockBytes: number;
  readonly memory: DeviceBuffer;
  /** Elements from one layer to the next. */
  readonly layerStride: number;

  constructor(device: ComputeDevice, config: ModelConfig, options: PoolOptions) {
    this.blockCount = poolBlockCount(config, device.freeBytes(), options);
    this.blockBytes = kvBytesPerBlock(config, options.blockTokens);
    this.memory = device.allocate("KV pool", this.blockCount * this.blockBytes);
    this.layerStride = this.memory.byteLength / 2 / config.layerCount;
    // What was never written is never read as a number, but a stray NaN in it could spread through a masked product.
    device.fill(this.memory, 0);
  }

  layer(index: number): DeviceBuffer {
    return this.memory.slice(index * this.layerStride * 2, this.layerStride * 2, `KV of layer ${index}`);
  }
}
