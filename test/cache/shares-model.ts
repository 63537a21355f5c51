/** Whose memory is used first, by definition. */
import { levelOf } from "../../worker/cache/shares.ts";
import { retentionTimesMs } from "../../worker/contract/owners.ts";
import type { BlockId } from "../../worker/contract/units.ts";

/** The policy, worked out from all blocks each time. */
export class SharesModel {
  readonly #blocks = new Map<
    BlockId,
    { owner: number; freedAtMs: number | undefined; list: number; pinned: boolean }
  >();
  readonly #blockCount: number;

  constructor(blockCount: number) {
    this.#blockCount = blockCount;
  }

  take(blockId: BlockId, owner: number): void {
    this.#blocks.set(blockId, { owner, freedAtMs: undefined, list: 0, pinned: false });
  }

  change(blockId: BlockId, change: Partial<{ freedAtMs: number | undefined; list: number; pinned: boolean }>): void {
    Object.assign(this.#blocks.get(blockId) ?? {}, change);
  }

  prolong(blockId: BlockId, list: number): void {
    this.change(blockId, { list: Math.max(list, this.#blocks.get(blockId)?.list ?? 0) });
  }

  expiry(blockId: BlockId): number {
    const { freedAtMs = 0, list = 0 } = this.#blocks.get(blockId) ?? {};
    return freedAtMs + retentionTimesMs[list];
  }

  /** Blocks that may be next: those with the best rank. */
  next(taker: number, nowMs: number): BlockId[] {
    const held = new Map<number, number>();
    for (const { owner } of this.#blocks.values()) held.set(owner, (held.get(owner) ?? 0) + 1);
    const rising = Float64Array.from(held.values()).sort();
    const [share, floor] = [7 / 8, 1 / 2].map((part) => levelOf(rising, this.#blockCount * part));
    let best: { key: number[]; blocks: BlockId[] } | undefined;
    const free = [...this.#blocks].filter(([, { freedAtMs }]) => freedAtMs !== undefined);
    for (const [number, count] of held) {
      const own = free.filter(([, { owner }]) => owner === number);
      if (own.length === 0) continue;
      const keys = own.map(([blockId, { freedAtMs = 0, list, pinned }]) => {
        const live = list > 0 && freedAtMs + retentionTimesMs[list] > nowMs;
        const [level, at] = pinned ? [2, freedAtMs] : live ? [1, freedAtMs + retentionTimesMs[list]] : [0, freedAtMs];
        return { blockId, freedAtMs, key: [level, at] };
      });
      keys.sort((a, b) => compare(a.key, b.key));
      const [first] = keys;
      if (first === undefined) continue;
      const protectedRank = number === taker ? 3 : 4;
      const open = own.every(([, { pinned }]) => pinned) ? 2 : count > (share ?? 0) ? 0 : 1;
      const key = [count <= (floor ?? 0) ? protectedRank : open, first.freedAtMs];
      if (best === undefined || compare(key, best.key) < 0) best = { key, blocks: [first.blockId] };
    }
    return best?.blocks ?? [];
  }
}

function compare(a: readonly number[], b: readonly number[]): number {
  for (const [index, value] of a.entries()) if (value !== b[index]) return value - (b[index] ?? 0);
  return 0;
}
