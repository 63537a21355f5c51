/**
 * The answer that a plan must get from the fake backend, by its definition: no blocks, no steps, no cache.
 * Only the sampler is shared with the engine.
 */
import type { BackendShape } from "../../worker/backend/backend.ts";
import type { BlendPlan, FinishReason, PlanRun, SubmitMessage } from "../../worker/contract/messages.ts";
import { TokenHistory } from "../../worker/sample/penalties.ts";
import { Sampler } from "../../worker/sample/sampler.ts";
import { fakeDeviation, fakeLogit, seenTerm, tokenState } from "../support/fake-backend.ts";
import { mix } from "../support/hash.ts";

export interface ReferenceAnswer {
  readonly tokenIds: number[];
  readonly reason: FinishReason;
}

export function referenceAnswer(
  { plan, params, closeTokenIds }: SubmitMessage,
  shape: BackendShape,
  eosTokenIds: readonly number[],
  /** As the backend's `relative` positions. */
  relative = false,
): ReferenceAnswer {
  const own: OwnPosition = relative ? () => 0 : (position) => position;
  const states: number[][] = [];
  plan.runs.forEach((run, index) => {
    states.push([]);
    if (run.blend !== undefined) states[index] = blendedStates(plan.runs, states, run, run.blend, own);
    else for (const tokenId of run.tokenIds) states[index].push(stateAt(plan.runs, states, index, tokenId, own));
  });
  let last = states.at(-1)?.at(-1) ?? 0;
  if (params.maxTokens === 0) return { tokenIds: [], reason: "prepared" };

  const stops = [...(params.ignoreEos ? [] : eosTokenIds), ...params.stopTokenIds];
  const history = TokenHistory.forParams(params.sampling, () => plan.runs.map((run) => run.tokenIds));
  const sampler = new Sampler(shape.vocabSize);
  const openIndex = plan.runs.length - 1;
  const open = plan.runs[openIndex];
  const tokenIds: number[] = [];
  for (;;) {
    const logits = Float32Array.from({ length: shape.vocabSize }, (_, id) => fakeLogit(last, id));
    const bannedTokenIds = tokenIds.length < params.minTokens ? stops : [];
    const index = tokenIds.length;
    const { tokenId } = sampler.sample(logits, { params: params.sampling, history, bannedTokenIds, index });
    if (stops.includes(tokenId)) return { tokenIds, reason: "stop" };
    tokenIds.push(tokenId);
    history?.add(tokenId);
    const end = open.position + open.tokenIds.length + tokenIds.length + (closeTokenIds?.length ?? 0);
    const endOfContext = end >= shape.contextTokens;
    if (tokenIds.length >= params.maxTokens || endOfContext) return { tokenIds, reason: "length" };
    last = stateAt(plan.runs, states, openIndex, tokenId, own);
    states[openIndex].push(last);
  }
}

/** What a token's position is to its own state. */
type OwnPosition = (position: number) => number;

/** State of the token that comes next in a run. */
function stateAt(
  runs: readonly PlanRun[],
  states: readonly number[][],
  index: number,
  tokenId: number,
  own: OwnPosition,
): number {
  const before = states[index];
  const position = runs[index].position + before.length;
  return tokenState(
    tokenId,
    own(position),
    visibleSum(runs, runs[index], before, position, (run, i) => states[run][i]),
  );
}

/** Sum over all that a token at `position` sees: tokens of earlier runs, then those of its own run before it. */
function visibleSum(
  runs: readonly PlanRun[],
  { sees }: PlanRun,
  own: readonly number[],
  position: number,
  stateOf: (run: number, token: number) => number,
): number {
  let sum = 0;
  for (const { run: seen, firstToken, tokenCount, offset } of sees) {
    for (let i = firstToken; i < firstToken + tokenCount; i++) {
      sum += seenTerm(stateOf(seen, i), position - offset - (runs[seen].position + i));
    }
  }
  own.forEach((state, i) => {
    sum += seenTerm(state, own.length - i);
  });
  return sum | 0;
}

/** Of a run that is blended as a whole, nothing of it found. */
function blendedStates(
  runs: readonly PlanRun[],
  states: readonly number[][],
  run: PlanRun,
  { recomputeRatio, copies }: BlendPlan,
  own: OwnPosition,
): number[] {
  const blended: (number | undefined)[] = Array.from(run.tokenIds, () => undefined);
  for (const { run: source, firstToken, tokenCount, at } of copies) {
    for (let i = 0; i < tokenCount; i++) blended[at + i] = states[source][firstToken + i];
  }
  const first = (of: PlanRun, i: number): number => mix(of.tokenIds[i], own(of.position + i));
  const deviations = blended.map((state, i) => {
    const before = Array.from({ length: i }, (_, j) => first(run, j));
    const sum = visibleSum(runs, run, before, run.position + i, (seen, j) => first(runs[seen], j));
    return Math.fround(fakeDeviation(state ?? 0, (sum + seenTerm(first(run, i), 0)) | 0));
  });
  const copied = blended.flatMap((state, i) => (state === undefined ? [] : [i]));
  const worst = copied.toSorted((a, b) => deviations[b] - deviations[a] || a - b);
  for (const i of worst.slice(0, Math.ceil(copied.length * recomputeRatio - 1e-9))) blended[i] = undefined;
  const result: number[] = [];
  blended.forEach((state, i) => {
    const position = run.position + i;
    const sum = visibleSum(runs, run, result, position, (seen, j) => states[seen][j]);
    result.push(state ?? tokenState(run.tokenIds[i], own(position), sum));
  });
  return result;
}
