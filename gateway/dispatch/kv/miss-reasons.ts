/** Why a request's KV was not found, span by span: what was known when it was sent, and what its worker then found. */
import type { PlanRun } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { MissReason, MissReport } from "../request/miss-report.ts";
import type { DispatchRequest, WorkOwner } from "../request/request.ts";
import type { KvHistory } from "./history.ts";
import { firstBlocks, type Residency } from "./residency.ts";

export interface MissReasonsOptions {
  readonly history: KvHistory;
  readonly residency: Pick<Residency, "holds" | "holders">;
  /** Tokens in a block; undefined while no worker was ever ready. */
  readonly blockTokens: () => number | undefined;
}

/** For each run, why its first missing block is missing; undefined: the whole run is there. */
export type LookUp = readonly (MissReason | undefined)[];

export class MissReasons {
  readonly #options: MissReasonsOptions;

  constructor(options: MissReasonsOptions) {
    this.#options = options;
  }

  /** To be called as the request is sent. @returns undefined unless the request asks why KV was not found */
  lookUp(workerId: string, reuse: boolean, request: DispatchRequest): LookUp | undefined {
    const blockTokens = this.#options.blockTokens();
    if (blockTokens === undefined || request.diagnose !== true) return undefined;
    const { tenantId, plan, params } = request;
    return plan.runs.map((run, index) => {
      if (!reuse) return "reuse_off";
      const open = params.maxTokens > 0 && index === plan.runs.length - 1;
      return this.#reasonOf(workerId, tenantId, run, { open, blockTokens });
    });
  }

  /** Remembers the texts of a request that is sent, for later look-ups. To be called after its own, and in the same turn. */
  noteTexts(workerId: string, reuse: boolean, { tenantId, plan }: DispatchRequest): void {
    const { history, residency } = this.#options;
    const blockTokens = this.#options.blockTokens();
    // Work on corpora has no tenant. Runs that the worker holds were noted when they were computed.
    if (blockTokens === undefined || !reuse || tenantId === "") return;
    const fresh = plan.runs.filter(({ blockKeys: [key] }) => key !== undefined && !residency.holds(workerId, key));
    history.noteTexts(tenantId, fresh, blockTokens);
  }

  #reasonOf(
    workerId: string,
    tenantId: WorkOwner,
    run: PlanRun,
    { open, blockTokens }: { readonly open: boolean; readonly blockTokens: number },
  ): MissReason | undefined {
    const { history, residency } = this.#options;
    const { blockKeys, tokenIds } = run;
    // The worker was told to forget the block, and has not confirmed it yet.
    const isThere = (id: string, key: BlockKey) => residency.holds(id, key) && history.goneFor(key) !== "removed";
    const held = firstBlocks(blockKeys, (key) => isThere(workerId, key));
    const reusable = open ? Math.floor((tokenIds.length - 1) / blockTokens) : blockKeys.length;
    if (held >= reusable) return open ? "below_block" : undefined;
    const key = blockKeys[held];
    if (key === undefined) return "below_block";
    if (residency.holders(key).some((id) => isThere(id, key))) return "other_worker";
    const gone = history.goneFor(key);
    if (gone !== undefined) return gone;
    if (held > 0 || history.formerKey(tenantId, run, blockTokens) === undefined) return "never_computed";
    return startsChain(run) ? "salt_changed" : "text_before_changed";
  }
}

/** Whether nothing stands before the run, so that its key depends on its text and its salt alone. */
const startsChain = ({ position, sees }: PlanRun): boolean => position === 0 && sees.length === 0;

/** @param foundTokens tokens that the worker found, for each run */
export function missReports(
  runs: readonly PlanRun[],
  lookUp: LookUp,
  foundTokens: readonly number[],
): readonly MissReport[] {
  const reports = new Map<string | undefined, MissReport>();
  for (const [index, { kind, spanId, tokenIds }] of runs.entries()) {
    const id = kind === "span" ? (spanId ?? String(index)) : undefined;
    const before = reports.get(id);
    const found = foundTokens[index] ?? 0;
    reports.set(id, {
      id,
      tokens: (before?.tokens ?? 0) + tokenIds.length,
      cachedTokens: (before?.cachedTokens ?? 0) + found,
      // Blocks that were there when the request was sent, and were not found, have been evicted meanwhile.
      reason: graver(before?.reason, found === tokenIds.length ? undefined : (lookUp[index] ?? "evicted")),
    });
  }
  return [...reports.values()];
}

/** The first reason that says more than that a prompt ends within a block. */
function graver(first: MissReason | undefined, second: MissReason | undefined): MissReason | undefined {
  return first === undefined || (first === "below_block" && second !== undefined) ? second : first;
}
