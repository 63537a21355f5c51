/**
 * Steps in flight: a step is scheduled and begun while the one before it still runs, so that the device does not wait
 * for the host. What is begun is planned as if the step before it were done and no request ended with it:
 *
 *   its tokens      a decode row takes the token that the step before draws from where it is, on the device. Until it is
 *                   known, the open run holds a name of it: -1 - r for the r-th draw of that step (Request.expectToken)
 *   its end         when a token (a stop token, a failed draw) or a message ends a request, the request is dropped from
 *                   the steps in flight, and their answers for it are ignored. An end by length is known ahead
 *   its blocks      a request that ends keeps its blocks until the last step that uses them is done. Blocks get keys only
 *                   when their step is done, and until then nobody else computes the same blocks
 *
 * The next step waits for this one where that is not enough: when a draw depends on the tokens before it, when a run is
 * blended, or when a block would have to be taken from a request.
 */
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { BlockMove } from "../relocation/plan.ts";
import type { SampledToken } from "../sample/sampler.ts";
import type { Request } from "./request.ts";
import type { StepPlan } from "./step.ts";

/** The answer to a row that wants logits: a token, or why none could be drawn. */
export type Draw = SampledToken | Error;

export interface StepResult {
  /** One for each piece that wants logits, in their order. */
  readonly draws: readonly Draw[];
  /** [rows of all probes]; the backend's own memory, valid until the next step. */
  readonly deviations: Float32Array;
}

/** A step of more rows hides the host's work by its own length, and newcomers should be in the step after it. */
const maxRowsBeforeAhead = 512;

export class StepInFlight {
  readonly plan: StepPlan;
  /** Waits for the step. Call it once, for steps in the order in which they began. */
  readonly result: () => Promise<StepResult>;
  /** The next step can begin before this one is done. */
  readonly allowsNext: boolean;
  /** Requests that are gone; their blocks are given back when the step is done. */
  readonly leaving: Request[] = [];
  readonly #dropped = new Set<Request>();

  /** @param feedsNext the next step can take this one's tokens on the device */
  constructor(plan: StepPlan, result: () => Promise<StepResult>, feedsNext: boolean) {
    const rowCount = plan.pieces.reduce((sum, piece) => sum + piece.rowCount, 0);
    this.plan = plan;
    this.result = result;
    this.allowsNext = feedsNext && rowCount <= maxRowsBeforeAhead;
  }

  /** The step reads or writes blocks of this request. */
  holds(request: Request): boolean {
    const { pieces, probes, copies } = this.plan;
    return [pieces, probes, copies].some((list) => list.some((entry) => entry.request === request));
  }

  /** What the step answers for this request is not wanted any more. */
  drop(request: Request): void {
    this.#dropped.add(request);
  }

  /** Its answer for this request is still wanted. */
  isFor(request: Request): boolean {
    return !this.#dropped.has(request);
  }
}

/** The steps in flight, in the order in which they began; two at most. */
export class StepsInFlight {
  readonly #steps: StepInFlight[] = [];

  get first(): StepInFlight | undefined {
    return this.#steps[0];
  }

  /** Requests that ended and whose blocks a step in flight still holds. */
  get leaving(): readonly Request[] {
    return this.#steps.flatMap((step) => step.leaving);
  }

  /** Blocks that steps in flight bring to where runs stand. */
  get moves(): readonly BlockMove[] {
    return this.#steps.flatMap(({ plan }) => plan.moves);
  }

  /** Takes a step that has begun. */
  add(step: StepInFlight): void {
    this.#steps.push(step);
  }

  /** The first step is done. @returns requests whose blocks are given back now */
  shift(): readonly Request[] {
    return this.#steps.shift()?.leaving ?? [];
  }

  /** Nothing of this request is wanted any more. @returns whether a step in flight still holds its blocks */
  leave(request: Request): boolean {
    const holder = this.#steps.findLast((step) => step.holds(request));
    holder?.leaving.push(request);
    for (const step of this.#steps) step.drop(request);
    return holder !== undefined;
  }

  /** What steps after the first one answer for this request is not wanted any more. */
  dropAfterFirst(request: Request): void {
    for (const step of this.#steps.slice(1)) step.drop(request);
  }

  /** Waits for all steps. */
  async end(): Promise<void> {
    for (const step of this.#steps.splice(0)) await step.result();
  }
}

/** A step has begun: its tokens count as computed, and each of its draws has a place in its run. */
export function expectResults({ pieces }: StepPlan): void {
  let draw = 0;
  for (const { request, run, firstToken, rowCount, wantsLogits, sparse } of pieces) {
    if (run.blending === undefined) run.beginRows(firstToken, firstToken + rowCount, sparse?.tailToken === undefined);
    if (run.open) request.sparse?.begin(sparse, firstToken);
    if (!wantsLogits) continue;
    request.expectToken(-1 - draw);
    draw += 1;
  }
}

/** A step is done: the tokens it computed are there, and the blocks they filled are kept. */
export function settleRuns(step: StepInFlight, deviations: Float32Array, cache: PrefixCache): void {
  const { pieces, probes, copies } = step.plan;
  let row = 0;
  for (const { request, run, rowCount } of probes) {
    if (step.isFor(request)) run.blending?.addDeviations(deviations.subarray(row, row + rowCount));
    row += rowCount;
  }
  for (const { request, run, firstToken, rowCount, sparse } of pieces) {
    if (!step.isFor(request)) continue;
    if (run.open) request.sparse?.settle(sparse, Math.max(0, run.settledTokens - firstToken));
    const exact = sparse?.tailToken === undefined;
    if (run.blending === undefined) run.settleRows(firstToken, firstToken + rowCount, cache, exact);
    else run.blending.advance(rowCount);
  }
  for (const { request, run } of [...copies, ...pieces]) {
    const blending = step.isFor(request) ? run.blending : undefined;
    if (blending?.missingTokens === 0) run.completeBlending(blending, cache);
  }
}

/**
 * Whether a step can be planned while one is in flight.
 * @param admissible waiting requests that may be admitted in it
 */
export function canScheduleAhead(
  running: readonly Request[],
  admissible: readonly Request[],
  unreservedBlocks: number,
): boolean {
  let lackingBlocks = 0;
  for (const request of running) {
    if (request.pendingTokens > 0 && request.drawsByHistory) return false;
    if (!request.decoding || request.openRun === undefined) {
      if (isBlending(request)) return false;
    } else if (!request.drawsLastToken) {
      const { blockCount, blocks } = request.openRun;
      lackingBlocks += Math.max(0, blockCount - blocks.length);
    }
  }
  return lackingBlocks <= unreservedBlocks && !admissible.some(isBlending);
}

const isBlending = ({ runs }: Request): boolean => runs.some((run) => run.plan.blend !== undefined && !run.complete);
