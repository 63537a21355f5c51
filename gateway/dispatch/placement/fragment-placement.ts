/**
 * Where fragments are prepared. A corpus has a home, where its fragments go while there is room: questions are about
 * one corpus, and find all they need on one worker. A corpus that outgrows it goes on where most room is, and where
 * there is none it stays. While pools are rather empty every worker gets a copy beside; later only what is used much
 * does. A fragment that a worker holds already stays there.
 */
import { LRUCache } from "lru-cache";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { Residency } from "../kv/residency.ts";
import type { WorkerRecord } from "../workers/registry.ts";
import { rankOf } from "./route.ts";

export interface FragmentHolder {
  readonly id: string;
  /** Blocks of its pool, and those that fragments take. */
  readonly blockCount: number;
  readonly fragmentBlockCount: number;
}

export interface UnplacedFragment {
  /** The same for all fragments of a corpus. */
  readonly corpus: string;
  readonly spanKey: BlockKey;
  readonly blockCount: number;
  readonly uses: number;
}

/** Part of a pool that fragments may fill as their home; the rest is for prompts that are answered. */
const homeShare = 0.75;
/** Part up to which a worker takes copies of what has its home elsewhere. */
const copyShare = 0.25;
/** Uses from which a fragment is kept on every worker, room or not. */
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

/** What tenants' fragments take on each worker now. */
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

/** The best of the workers; of equals the one that comes first for the name. */
function preferred(
  workers: readonly FragmentHolder[],
  name: string,
  worth: (worker: FragmentHolder) => number,
): FragmentHolder | undefined {
  const ranked = workers.map((worker) => ({ worker, worth: worth(worker), rank: rankOf(name, worker.id) }));
  return ranked.toSorted((a, b) => b.worth - a.worth || (a.rank < b.rank ? -1 : 1))[0]?.worker;
}
