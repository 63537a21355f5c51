/**
 * Packs blocks of the CPU's pool: layer after layer what the pool has of the block. In each layer that is, head after
 * head, K as [headDim][blockTokens] and V as [blockTokens][headDim], and in mx8 the scales of both (kernels/abi.h).
 */
import { type BlockId, mx8Group } from "../../contract/units.ts";
import type { KvPool } from "../../native/cpu-kernels.ts";
import type { BlockFormat, BlockMover } from "../backend.ts";

/** K transposed, V not. */
const layout = 1;
const elements = { float16: 1, float32: 2, mx8: 3 } as const;
/** Elements as they are, or in groups of 32 that share a power of two. */
const codecs = { float16: 0, float32: 0, mx8: 1 } as const;

export class CpuBlockMover implements BlockMover {
  readonly format: BlockFormat;
  readonly open: BlockMover["open"];
  readonly files: BlockMover["files"];
  readonly #pool: KvPool;
  readonly #layerBytes: number;

  /** @param isa the instruction set that computes what is packed: another one's last bits may differ */
  constructor(pool: KvPool, isa: string) {
    const { layerCount: layers, kvHeads, headDim, kvType, blockTokens } = pool.options;
    this.#pool = pool;
    this.#layerBytes = pool.kvBytesPerBlock / layers;
    if (pool.opensBlocks) {
      this.open = (sealed, blockIds) => pool.openBlocks(sealed, blockIds);
      this.files = {
        isAtHand: (fd, at, bytes) => pool.isFileAtHand(fd, at, bytes),
        open: (blocks, blockIds) => pool.openFileBlocks(blocks, blockIds),
      };
    }
    const [element, codec] = [elements[kvType], codecs[kvType]];
    const name = `cpu/${isa}/${kvType}/${layers}x${kvHeads}x${headDim}x${blockTokens}`;
    this.format = { name, bytes: pool.kvBytesPerBlock, layers, kvHeads, headDim, layout, element, codec };
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
    this.#pool.seats?.writeShadows(Int32Array.of(blockId));
  }

  /** Slots behind the last token hold what the block held before, maybe another tenant's. */
  #zeroFrom(tokenCount: number, packed: Uint8Array): void {
    const { kvHeads, headDim, blockTokens, kvType } = this.#pool.options;
    const elementBytes = { float16: 2, float32: 4, mx8: 1 }[kvType];
    /** Elements of a token's K, and of its V; in mx8 the scales follow, which are as many bytes as there are groups. */
    const widths = kvType === "mx8" ? [headDim, headDim / mx8Group] : [headDim];
    let at = 0;
    for (let head = 0; head < this.format.layers * kvHeads; head++) {
      for (const width of widths) {
        const [rowK, rowV] = [blockTokens * elementBytes, width * elementBytes];
        for (let row = 0; row < width; row++, at += rowK) packed.fill(0, at + tokenCount * elementBytes, at + rowK);
        packed.fill(0, at + tokenCount * rowV, at + blockTokens * rowV);
        at += blockTokens * rowV;
      }
    }
  }
}
