/**
 * Packs blocks of the CPU's pool: layer after layer what the pool has of the block. In each layer that is, head after
 * head, K as [headDim][blockTokens] and V as [blockTokens][headDim] (kernels/abi.h).
 */
import type { BlockId } from "../../contract/units.ts";
import type { KvPool } from "../../native/cpu-kernels.ts";
import type { BlockFormat, BlockMover } from "../backend.ts";

/** K transposed, V not. */
const layout = 1;
const elements = { float16: 1, float32: 2 } as const;

export class CpuBlockMover implements BlockMover {
  readonly format: BlockFormat;
  readonly #pool: KvPool;
  readonly #layerBytes: number;

  /** @param isa the instruction set that computes what is packed: another one's last bits may differ */
  constructor(pool: KvPool, isa: string) {
    const { layerCount: layers, kvHeads, headDim, kvType, blockTokens } = pool.options;
    this.#pool = pool;
    this.#layerBytes = pool.kvBytesPerBlock / layers;
    const element = elements[kvType];
    const name = `cpu/${isa}/${kvType}/${layers}x${kvHeads}x${headDim}x${blockTokens}`;
    this.format = { name, bytes: pool.kvBytesPerBlock, layers, kvHeads, headDim, layout, element };
  }

  pack(blockId: BlockId, tokenCount: number, out: Uint8Array): void {
    for (let layer = 0; layer < this.format.layers; layer++) {
      const part = out.subarray(layer * this.#layerBytes, (layer + 1) * this.#layerBytes);
      part.set(this.#pool.blockMemory(layer, blockId));
    }
    if (tokenCount < this.#pool.options.blockTokens) this.#zeroFrom(tokenCount, out);
  }

  unpack(blockId: BlockId, packed: Uint8Array): void {
    for (let layer = 0; layer < this.format.layers; layer++) {
      const part = packed.subarray(layer * this.#layerBytes, (layer + 1) * this.#layerBytes);
      this.#pool.blockMemory(layer, blockId).set(part);
    }
  }

  /** Slots behind the last token hold what the block held before, maybe another tenant's. */
  #zeroFrom(tokenCount: number, packed: Uint8Array): void {
    const { kvHeads, headDim, blockTokens, kvType } = this.#pool.options;
    const elementBytes = kvType === "float16" ? 2 : 4;
    const [rowK, rowV] = [blockTokens * elementBytes, headDim * elementBytes];
    const headBytes = 2 * headDim * rowK;
    for (let head = 0; head < this.format.layers * kvHeads; head++) {
      const [k, v] = [head * headBytes, head * headBytes + headDim * rowK];
      for (let row = 0; row < headDim; row++) {
        packed.fill(0, k + row * rowK + tokenCount * elementBytes, k + (row + 1) * rowK);
      }
      packed.fill(0, v + tokenCount * rowV, v + blockTokens * rowV);
    }
  }
}
