/** Who waits for what is loaded: requests, as far as a load needs to know them. */
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { PlanRun } from "../contract/messages.ts";
import type { KvOwner } from "../contract/owners.ts";
import type { BlockKey } from "../contract/units.ts";

export interface LackingRun {
  readonly plan: Pick<PlanRun, "rootKey" | "position">;
  readonly keyed: boolean;
  readonly complete: boolean;
  readonly owner: KvOwner;
  readonly blocks: readonly unknown[];
  readonly blockCount: number;
  keyAt(blockIndex: number): BlockKey | undefined;
  isResident(blockIndex: number, cache: PrefixCache): boolean;
}

/** A request that waits for loads. Its reserved blocks are those that its runs still lack. */
export interface Requester {
  readonly runs: readonly LackingRun[];
  /** Undefined when the request only prepares KV. */
  readonly openRun: unknown;
  readonly reservedBlocks: number;
}
