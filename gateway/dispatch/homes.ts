/**
 * Where fragments are prepared. While a worker has room for more, each fragment is put there, so that every worker
 * answers over all of them; where there is none, what is used much is on every worker and the rest is spread, each
 * fragment at one home. A fragment that a worker holds already stays there. Pure and deterministic.
 */
import type { BlockKey } from "../../worker/contract/units.ts";
import type { WorkerRecord } from "./registry.ts";
import type { Residency } from "./residency.ts";

export interface FragmentHolder {
  readonly id: string;
  /** Blocks that further fragments may take before they begin to push others out. */
  readonly roomBlocks: number;
}

/** Part of a pool that fragments may fill before they are spread: the rest is for prompts that are answered. */
const fragmentShare = 0.5;
/** Uses from which a fragment is kept on every worker, room or not. */
const hotUses = 16;

/**
 * @param blockCount blocks that the fragment takes
 * @param holders workers that hold it now
 * @returns ids of workers, the home first; empty when there is no worker
 */
export function homesOf(
  fragment: { readonly spanKey: BlockKey; readonly blockCount: number; readonly uses: number },
  workers: readonly FragmentHolder[],
  holders: readonly string[],
): readonly string[] {
  const isHolder = (worker: FragmentHolder): boolean => holders.includes(worker.id);
  const ranked = workers
    .map((worker) => ({ worker, rank: rankOf(fragment.spanKey, worker) }))
    .toSorted((a, b) => Number(isHolder(b.worker)) - Number(isHolder(a.worker)) || b.rank - a.rank)
    .map(({ worker }) => worker);
  const isHot = fragment.uses >= hotUses;
  return ranked
    .filter((worker, index) => index === 0 || isHot || worker.roomBlocks >= fragment.blockCount)
    .map(({ id }) => id);
}

/** The room that workers have, by what tenants' fragments take there now. */
export function fragmentHolders(
  workers: readonly WorkerRecord[],
  residency: Pick<Residency, "byTenant">,
): FragmentHolder[] {
  return workers.map(({ id, card }) => {
    const held = [...residency.byTenant(id).values()].reduce((sum, kv) => sum + kv.fragmentBlockCount, 0);
    return { id, roomBlocks: Math.floor((card?.blockCount ?? 0) * fragmentShare) - held };
  });
}

/** Weighted rendezvous hashing: each worker is first for a part of the names that is in proportion to its room. */
function rankOf(spanKey: BlockKey, { id, roomBlocks }: FragmentHolder): number {
  const uniform = (Number(Bun.hash.wyhash(`${spanKey}\0${id}`) >> 11n) + 0.5) / 2 ** 53;
  return -Math.max(1, roomBlocks) / Math.log(uniform);
}
