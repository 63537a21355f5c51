/**
 * Turns chains into a TokenPlan. The plan holds each run once, behind all runs that it sees. A run of a chain sees the
 * chain's parents and whatever stands before the run in its chain. Two runs with the same last key are the same run.
 */
import { runBlockKeys } from "../../worker/contract/block-key.ts";
import { limits } from "../../worker/contract/limits.ts";
import type { BlendCopy, PlanRun, SegmentRef, TokenPlan } from "../../worker/contract/messages.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import type { Chain, ChainRun } from "./chains.ts";

/**
 * Most segments of all runs of one plan together. It keeps the message to the worker from growing with the square of
 * the query's size.
 */
const maxPlanSegments = 65_536;

/** The start of the answer: generated tokens follow these tokens. */
export interface Opening {
  readonly tokenIds: Int32Array;
  readonly rootKey: BlockKey;
}

export interface ChainPlan {
  readonly plan: TokenPlan;
  /** Indexes of the runs whose tokens or keys depend on an output that is not known. */
  readonly indeterminateRuns: ReadonlySet<number>;
}

/**
 * Plan of an answer to a prompt: the last run is open.
 * @throws ApiError invalid_value when the query makes more runs or segments than a plan may have
 */
export function planOf(prompt: Chain, opening: Opening, blockTokens: number): ChainPlan {
  const builder = new PlanBuilder(prompt);
  const sees = builder.see(prompt);
  const blockKeys = runBlockKeys(opening.rootKey, opening.tokenIds, blockTokens, false);
  builder.add({ kind: "main", ...opening, position: prompt.end, sees, blockKeys }, prompt.known);
  const { runs, indeterminateRuns } = builder;
  return { plan: { runs }, indeterminateRuns };
}

/** A plan of the closed runs that depend on no unknown output, for computing them before the outputs are there. */
export function determinatePlan({ plan, indeterminateRuns }: ChainPlan): TokenPlan | undefined {
  const closed = plan.runs.slice(0, -1);
  const indexes = new Map<number, number>();
  closed.forEach((_, index) => {
    if (!indeterminateRuns.has(index)) indexes.set(index, indexes.size);
  });
  if (indexes.size === 0) return undefined;
  const moved = <Ref extends SegmentRef | BlendCopy>(refs: readonly Ref[]): readonly Ref[] =>
    refs.map((ref) => {
      const run = indexes.get(ref.run);
      if (run === undefined) throw new Error("a run that depends on no unknown output sees one that does");
      return { ...ref, run };
    });
  const runs = closed.flatMap((run, index): PlanRun[] => {
    if (!indexes.has(index)) return [];
    const { blend } = run;
    const sees = moved(run.sees);
    return [
      blend === undefined ? { ...run, sees } : { ...run, sees, blend: { ...blend, copies: moved(blend.copies) } },
    ];
  });
  return { runs };
}

class PlanBuilder {
  readonly runs: PlanRun[] = [];
  readonly indeterminateRuns = new Set<number>();
  readonly #main: Chain;
  /** Index of each closed run by its last key, which identifies the run and everything that it sees. */
  readonly #indexes = new Map<BlockKey, number>();
  /** Segments of each chain's runs and nested chains, at the chain's own positions, without its parents' segments. */
  readonly #contents = new Map<Chain, readonly SegmentRef[]>();
  #segmentCount = 0;

  constructor(main: Chain) {
    this.#main = main;
  }

  /** Adds a chain and its parents to the plan, and returns the segments that a run at the chain's end sees. */
  see(chain: Chain): readonly SegmentRef[] {
    const parents = chain.parent === undefined ? [] : this.see(chain.parent);
    return [...parents, ...this.#content(chain)];
  }

  add(run: PlanRun, known: boolean): number {
    this.#segmentCount += run.sees.length;
    const index = this.runs.length;
    const isTooMuch =
      index >= limits.maxRuns || run.sees.length > limits.maxSegmentsPerRun || this.#segmentCount > maxPlanSegments;
    if (isTooMuch) throw tooManySpans();
    this.runs.push(run);
    if (!known) this.indeterminateRuns.add(index);
    return index;
  }

  #content(chain: Chain): readonly SegmentRef[] {
    const known = this.#contents.get(chain);
    if (known !== undefined) return known;
    const parents = chain.parent === undefined ? [] : this.see(chain.parent);
    const content: SegmentRef[] = [];
    for (const part of chain.parts) {
      if (part.kind === "run") {
        const run = this.#indexOf(part, chain, [...parents, ...content]);
        content.push({ run, firstToken: 0, tokenCount: part.tokenIds.length, offset: 0 });
        continue;
      }
      if (part.chain.parent !== undefined) this.see(part.chain.parent);
      content.push(...moved(this.#content(part.chain), part.chain.hiddenTokens, part.offset));
    }
    this.#contents.set(chain, content);
    return content;
  }

  #indexOf(part: ChainRun, chain: Chain, sees: readonly SegmentRef[]): number {
    const last = part.blockKeys.at(-1) ?? part.rootKey;
    const known = this.#indexes.get(last);
    if (known !== undefined) return known;
    const { tokenIds, position, rootKey, blockKeys, quotes } = part;
    const base = { tokenIds, position, sees, blockKeys, rootKey };
    const run = quotes.length === 0 ? base : { ...base, quotes };
    const named = chain === this.#main ? { ...run, kind: "main" as const } : spanRun(run, chain.spanId);
    const copies = part.copies.map(({ chain: source, at }) => this.#copyOf(source, at));
    const blend = { recomputeRatio: chain.recomputeRatio, copies };
    const index = this.add(copies.length === 0 ? named : { ...named, blend }, part.known);
    this.#indexes.set(last, index);
    return index;
  }

  #copyOf(source: Chain, at: number): BlendCopy {
    const segment = this.see(source).at(-1);
    if (segment === undefined || source.parts.length !== 1) throw new Error("only a chain of one run is copied");
    return { run: segment.run, firstToken: segment.firstToken, tokenCount: segment.tokenCount, at };
  }
}

const spanRun = (run: Omit<PlanRun, "kind">, spanId: string): PlanRun => ({ ...run, kind: "span", spanId });

/** @param param path of the part of the query that has too many spans */
export function tooManySpans(param?: string): ApiError {
  return new ApiError("invalid_value", { message: "The query has too many spans for one prompt.", param });
}

/** A nested chain's segments as the chain around it sees them: shifted by `by`, without the first `hidden` tokens. */
function moved(segments: readonly SegmentRef[], hidden: number, by: number): readonly SegmentRef[] {
  let left = hidden;
  return segments.flatMap(({ run, firstToken, tokenCount, offset }) => {
    const skipped = Math.min(left, tokenCount);
    left -= skipped;
    if (skipped === tokenCount) return [];
    return [{ run, firstToken: firstToken + skipped, tokenCount: tokenCount - skipped, offset: offset + by }];
  });
}
