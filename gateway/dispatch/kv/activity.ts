/**
 * Tells followers what became of tenants' KV, by the second: blocks stored, removed, loaded and pinned, by tenant and tier,
 * and by worker where each has its own. It names no block. The newest seconds are kept for followers that come or come back; one that is slow
 * misses the oldest of them, and each tells what is held by now.
 */
import { randomBytes } from "node:crypto";
import type { FileTier } from "../../../worker/contract/messages.ts";
import type { WorkerTier } from "../../../worker/contract/tiers.ts";
import { unlessAborted } from "../../base/hold.ts";

/** One of a worker's tiers, or one that all workers share. */
export type TierPlace =
  | { readonly worker: string; readonly tier: WorkerTier }
  | { readonly worker: null; readonly tier: FileTier };

/** What changed in one place for one tenant. */
export interface BlockChange {
  readonly tenantId: string;
  readonly place: TierPlace;
  storedBlocks: number;
  removedBlocks: number;
  /** Brought from there to a nearer tier: from files to a pool, from the bucket to files. */
  loadedBlocks: number;
  /** Blocks held there at the end of the second. */
  heldBlocks: number;
}

/** Blocks that workers evict last from now on, or no more, wherever they lie. */
export interface PinChange {
  readonly tenantId: string;
  readonly tier: WorkerTier;
  pinnedBlocks: number;
  unpinnedBlocks: number;
}

export interface KvSecond {
  /** When it ended, in Unix milliseconds: rising, and so the second's name. */
  readonly atMs: number;
  readonly blocks: readonly BlockChange[];
  readonly pins: readonly PinChange[];
}

export interface KvActivityOptions {
  /** Blocks of a tenant there. */
  readonly heldBlocks: (place: TierPlace, tenantId: string) => number;
  /** Most changes in all the seconds that are kept. */
  readonly maxChanges: number;
  readonly nowMs?: () => number;
  /** How long changes are gathered. */
  readonly gatherMs?: number;
}

export class KvActivity {
  readonly #options: KvActivityOptions;
  /** Part of every id: times of another process's clock mean nothing here. */
  readonly #name = randomBytes(8).toString("hex");
  #blocks = new Map<string, BlockChange[]>();
  #pins: PinChange[] = [];
  /** What the last change counted for: blocks of one tenant come one after the other. */
  #last: BlockChange | undefined;
  #timer: NodeJS.Timeout | undefined;
  #seconds: KvSecond[] = [];
  #changeCount = 0;
  #more = Promise.withResolvers<void>();

  constructor(options: KvActivityOptions) {
    this.#options = options;
  }

  /** @param count blocks stored, or, below zero, removed */
  blocks(place: TierPlace, tenantId: string, count: number): void {
    if (tenantId === "" || count === 0) return;
    const change = this.#changeOf(place, tenantId);
    if (count > 0) change.storedBlocks += count;
    else change.removedBlocks -= count;
  }

  /** @param count blocks brought from a tier that all workers share */
  loaded(tier: FileTier, tenantId: string, count: number): void {
    if (count > 0) this.#changeOf({ worker: null, tier }, tenantId).loadedBlocks += count;
  }

  /** @param count blocks pinned, or, below zero, no longer */
  pins(tier: WorkerTier, tenantId: string, count: number): void {
    if (count === 0) return;
    let change = this.#pins.find((one) => one.tenantId === tenantId && one.tier === tier);
    if (change === undefined) {
      change = { tenantId, tier, pinnedBlocks: 0, unpinnedBlocks: 0 };
      this.#pins.push(change);
      this.#gather();
    }
    if (count > 0) change.pinnedBlocks += count;
    else change.unpinnedBlocks -= count;
  }

  /**
   * First the seconds that are kept, or those after the one that the follower has seen last, then `undefined`: that was
   * all; then every second in which something changes.
   * @param tenantId whose changes alone; undefined: everybody's
   */
  async *follow(
    tenantId: string | undefined,
    lastId: string | undefined,
    signal: AbortSignal,
  ): AsyncGenerator<KvSecond | undefined> {
    let seenMs = this.#timeOf(lastId);
    let isCurrent = false;
    while (!signal.aborted) {
      const more = this.#more.promise;
      for (const second of this.#seconds.filter(({ atMs }) => atMs > seenMs)) {
        seenMs = second.atMs;
        const own = tenantId === undefined ? second : of(tenantId, second);
        if (signal.aborted) return;
        if (own.blocks.length > 0 || own.pins.length > 0) yield own;
      }
      if (!isCurrent) yield undefined;
      isCurrent = true;
      await unlessAborted(more, signal);
    }
  }

  idOf({ atMs }: KvSecond): string {
    return `${this.#name}-${atMs}`;
  }

  /** Ends the second that is being gathered. */
  flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#last = undefined;
    const blocks = [...this.#blocks.values()].flat();
    const pins = this.#pins;
    if (blocks.length === 0 && pins.length === 0) return;
    const { heldBlocks, maxChanges, nowMs = Date.now } = this.#options;
    for (const change of blocks) change.heldBlocks = heldBlocks(change.place, change.tenantId);
    // Where the clock was set back, a second still comes after the one before.
    const atMs = Math.max(nowMs(), (this.#seconds.at(-1)?.atMs ?? 0) + 1);
    this.#seconds.push({ atMs, blocks, pins });
    [this.#blocks, this.#pins] = [new Map(), []];
    this.#changeCount += blocks.length + pins.length;
    const isTooMuch = (): boolean => this.#changeCount > maxChanges || this.#seconds.length > keptSeconds;
    while (isTooMuch() && this.#seconds.length > 1) this.#dropOldest();
    this.#more.resolve();
    this.#more = Promise.withResolvers();
  }

  #dropOldest(): void {
    const oldest = this.#seconds.shift();
    this.#changeCount -= (oldest?.blocks.length ?? 0) + (oldest?.pins.length ?? 0);
  }

  #changeOf(place: TierPlace, tenantId: string): BlockChange {
    const { worker, tier } = place;
    const isIt = (one: BlockChange): boolean =>
      one.place.worker === worker && one.place.tier === tier && one.tenantId === tenantId;
    if (this.#last !== undefined && isIt(this.#last)) return this.#last;
    const changes = this.#blocks.getOrInsertComputed(tenantId, () => []);
    let change = changes.find(isIt);
    if (change === undefined) {
      change = { tenantId, place, storedBlocks: 0, removedBlocks: 0, loadedBlocks: 0, heldBlocks: 0 };
      changes.push(change);
      this.#gather();
    }
    this.#last = change;
    return change;
  }

  #gather(): void {
    if (this.#timer !== undefined) return;
    this.#timer = setTimeout(() => this.flush(), this.#options.gatherMs ?? 1_000);
    this.#timer.unref();
  }

  /** When the second with this id ended; before all for one that is not ours. */
  #timeOf(id: string | undefined): number {
    const [, name, digits] = /^([0-9a-f]{16})-(\d{1,15})$/.exec(id ?? "") ?? [];
    return name === this.#name ? Number(digits) : 0;
  }
}

/** Seconds with changes that are kept. */
const keptSeconds = 60;

const of = (tenantId: string, { atMs, blocks, pins }: KvSecond): KvSecond => ({
  atMs,
  blocks: blocks.filter((change) => change.tenantId === tenantId),
  pins: pins.filter((change) => change.tenantId === tenantId),
});
