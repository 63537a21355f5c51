/**
 * Decides on which workers fragments are prepared. Each corpus has a home worker that its fragments go to while there is
 * room, since a question is mostly about one corpus and then finds all it needs on one worker. Fragments for which the
 * home has no room go to the worker with most room, or to the home if no worker has any. While pools are rather empty
 * every other worker gets a copy too; later only fragments that are used much do. A fragment that a worker holds already
 * stays there.
 */
import { LRUCache } from "lru-cache";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { Residency } from "../kv/residency.ts";
import type { WorkerRecord } from "../workers/registry.ts";
import { rankOf } from "./route.ts";

export interface FragmentHolder {
  readonly id: string;
  /** Blocks in its pool, and those of them that fragments take. */
  readonly blockCount: number;
  readonly fragmentBlockCount: number;
}

export interface UnplacedFragment {
  /** Name of the corpus: equal for all of its fragments. */
  readonly corpus: string;
  readonly spanKey: BlockKey;
  readonly blockCount: number;
  readonly uses: number;
}

/** Share of a home's pool that fragments may fill; the rest is for prompts that are being answered. */
const homeShare = 0.75;
/** Share of a pool up to which a worker takes copies of fragments whose home is elsewhere. */
const copyShare = 0.25;
/** A fragment with at least so many uses is kept on every worker, whether there is room or not. */
const hotUses = 16;

export class FragmentPlacement {
  readonly #homes: LRUCache<string, string>;

  constructor(maxCorpora: number) {
    this.#homes = new LRUCache({ max: maxCorpora });
  }

  /**
   * @param holders ids of workers that hold the fragment now
   * @returns ids of workers, the home first; empty when there is no worker
   */
  of(fragment: UnplacedFragment, workers: readonly FragmentHolder[], holders: readonly string[]): readonly string[] {
    const home = workers.find(({ id }) => holders.includes(id)) ?? this.#homeOf(fragment, workers);
    if (home === undefined) return [];
    const takesCopy = (worker: FragmentHolder): boolean =>
      holders.includes(worker.id) || fragment.uses >= hotUses || hasRoom(worker, fragment, copyShare);
    return [home, ...workers.filter((worker) => worker !== home && takesCopy(worker))].map(({ id }) => id);
  }

  #homeOf(fragment: UnplacedFragment, workers: readonly FragmentHolder[]): FragmentHolder | undefined {
    const withRoom = workers.filter((worker) => hasRoom(worker, fragment, homeShare));
    const open = withRoom.length === 0 ? workers : withRoom;
    const known = this.#homes.get(fragment.corpus);
    const home = open.find(({ id }) => id === known) ?? preferred(open, fragment.corpus, roomOf);
    if (home !== undefined) this.#homes.set(fragment.corpus, home.id);
    return home;
  }
}

/** The blocks that fragments take on each worker now. */
export function fragmentHolders(
  workers: readonly WorkerRecord[],
  residency: Pick<Residency, "byTenant">,
): FragmentHolder[] {
  return workers.map(({ id, card }) => {
    const held = [...residency.byTenant(id).values()];
    const fragmentBlockCount = held.reduce((sum, kv) => sum + kv.fragmentBlockCount, 0);
    return { id, blockCount: card?.blockCount ?? 0, fragmentBlockCount };
  });
}

const roomOf = ({ blockCount, fragmentBlockCount }: FragmentHolder): number => blockCount - fragmentBlockCount;

function hasRoom(worker: FragmentHolder, { blockCount }: UnplacedFragment, share: number): boolean {
  return worker.fragmentBlockCount + blockCount <= worker.blockCount * share;
}

/** The best of the workers; among equals the one that the name prefers. */
function preferred(
  workers: readonly FragmentHolder[],
  name: string,
  worth: (worker: FragmentHolder) => number,
): FragmentHolder | undefined {
  const ranked = workers.map((worker) => ({ worker, worth: worth(worker), rank: rankOf(name, worker.id) }));
  return ranked.toSorted((a, b) => b.worth - a.worth || (a.rank < b.rank ? -1 : 1))[0]?.worker;
}
