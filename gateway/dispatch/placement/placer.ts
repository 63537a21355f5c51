/** Chooses the ready worker that takes a request: the one that the request names, or else the cheapest one with room. */
import type { TokenPlan } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { PendingBlocks } from "../kv/pending-blocks.ts";
import { firstBlocks, type Residency, tokensBefore } from "../kv/residency.ts";
import type { DispatchRequest } from "../request/request.ts";
import type { Registry, WorkerRecord } from "../workers/registry.ts";
import { type Candidate, chooseWorker, missingTokens } from "./route.ts";
import type { WorkerAdmission } from "./worker-admission.ts";

export interface PlacerOptions {
  readonly registry: Registry;
  readonly residency: Residency;
  readonly pendingBlocks: PendingBlocks;
  readonly admission: Pick<WorkerAdmission, "isOpen" | "hasPromptRoom">;
  /** How many of a chain's first blocks lie in files; absent: none do. */
  readonly blocksInFiles?: (blockKeys: readonly BlockKey[]) => number;
}

export interface Placed {
  readonly workerId: string;
  /** Prompt tokens that the worker will compute for this request alone. */
  readonly missingTokens: number;
  /** Keys of the blocks that the worker does not hold yet and will keep. */
  readonly missing: readonly BlockKey[];
}

/** Chains of a request, and blocks, that are looked for in files, for each file once; a hint needs no more. */
const [mostChains, mostBlocks] = [64, 2_048];
/** What loading a token is taken to cost until a worker has measured it, in tokens that it computes meanwhile. */
const guessedLoadCost = 1 / 2;

export class Placer {
  readonly #options: PlacerOptions;
  /** What lies in files of the prompts that wait for a worker, which are placed again and again. */
  readonly #inFiles = new WeakMap<TokenPlan, ReadonlySet<BlockKey>>();

  constructor(options: PlacerOptions) {
    this.#options = options;
  }

  /**
   * Only workers with room for the tenant are considered.
   * @returns undefined when no worker has room, or when the best one has no room for more of the tenant's prompts
   */
  choose(ready: readonly WorkerRecord[], request: DispatchRequest, promptTokens: number): Placed | undefined {
    const { affinity = "", placement, tenantId, background } = request;
    const followed = ready.find(({ id }) => id === placement?.workerId);
    const { admission } = this.#options;
    const possible = followed === undefined ? ready : [followed];
    const open = possible.filter(({ id, inFlight }) => admission.isOpen(id, inFlight, tenantId, background));
    const inFiles = open.length > 1 && request.reuse ? this.#keysInFiles(request.plan) : undefined;
    const candidates = open.map((worker) => this.#candidate(worker, request, inFiles));
    const workerId = chooseWorker(candidates, promptTokens, affinity);
    const chosen = candidates.find(({ id }) => id === workerId);
    if (chosen === undefined) return undefined;
    if (background !== true && !admission.hasPromptRoom(chosen.id, tenantId)) return undefined;
    placement?.moveTo(chosen.id);
    const missing = request.reuse ? this.#missingKeys(chosen.id, request) : [];
    return { workerId: chosen.id, missingTokens: missingTokens(chosen, promptTokens), missing };
  }

  #candidate(worker: WorkerRecord, { reuse, plan }: DispatchRequest, inFiles?: ReadonlySet<BlockKey>): Candidate {
    const { id, pendingTokens, inFlight } = worker;
    const load = { id, pendingTokens, inFlight };
    if (!reuse) return { ...load, cachedTokens: 0, upcomingTokens: 0, fileTokens: 0, loadCost: 0 };
    const { registry, residency, pendingBlocks } = this.#options;
    const { runs } = plan;
    const blockTokens = registry.card()?.blockTokens ?? 1;
    const cachedTokens = residency.cachedTokens(id, runs, blockTokens);
    const isThereSoon = (key: BlockKey): boolean => residency.holds(id, key) || pendingBlocks.isComing(id, key);
    const thereSoon = tokensBefore(runs, blockTokens, isThereSoon);
    const fileTokens =
      inFiles === undefined || inFiles.size === 0
        ? 0
        : tokensBefore(runs, blockTokens, (key) => isThereSoon(key) || inFiles.has(key)) - thereSoon;
    const loadCost =
      residency.tokensBelow(id, runs, blockTokens) * loadCostOf(worker, "host") +
      fileTokens * loadCostOf(worker, "disk");
    return { ...load, cachedTokens, upcomingTokens: thereSoon - cachedTokens, fileTokens, loadCost };
  }

  #keysInFiles(plan: TokenPlan): ReadonlySet<BlockKey> {
    const { blocksInFiles } = this.#options;
    const known = this.#inFiles.get(plan);
    if (known !== undefined) return known;
    const keys = new Set<BlockKey>();
    const chains = blocksInFiles === undefined ? [] : plan.runs.slice(0, mostChains);
    for (const { blockKeys } of chains) {
      const some = blockKeys.slice(0, mostBlocks - keys.size);
      for (const key of some.slice(0, blocksInFiles?.(some))) keys.add(key);
    }
    this.#inFiles.set(plan, keys);
    return keys;
  }

  #missingKeys(workerId: string, { plan }: DispatchRequest): BlockKey[] {
    const { residency } = this.#options;
    const isHeld = (key: BlockKey): boolean => residency.holds(workerId, key);
    return plan.runs.flatMap(({ blockKeys }) => blockKeys.slice(firstBlocks(blockKeys, isHeld)));
  }
}

/** A worker does not load what it computes sooner. */
function loadCostOf({ stats }: WorkerRecord, tier: "host" | "disk"): number {
  return Math.min(1, stats?.tiers.find((known) => known.tier === tier)?.loadCost ?? guessedLoadCost);
}
