/**
 * The answer that a plan must get from the fake backend, by its definition: no blocks, no steps, no cache.
 * Only the sampler is shared with the engine.
 */
import type { BackendShape } from "../../worker/backend/backend.ts";
import { fakeLogit, seenTerm, tokenState } from "../../worker/backend/fake.ts";
import type { FinishReason, SubmitMessage } from "../../worker/contract/messages.ts";
import { TokenHistory } from "../../worker/sample/penalties.ts";
import { Sampler } from "../../worker/sample/sampler.ts";

export interface ReferenceAnswer {
  readonly tokenIds: number[];
  readonly reason: FinishReason;
}

export function referenceAnswer(
  { plan, params, closeTokenIds }: SubmitMessage,
  shape: BackendShape,
  eosTokenIds: readonly number[],
): ReferenceAnswer {
  const states: number[][] = [];
  const extend = (runIndex: number, tokenId: number): number => {
    const run = plan.runs[runIndex];
    const own = states[runIndex];
    const position = run.position + own.length;
    let sum = 0;
    for (const { run: seen, firstToken, tokenCount, offset } of run.sees) {
      for (let i = firstToken; i < firstToken + tokenCount; i++) {
        sum += seenTerm(states[seen][i], position - offset - (plan.runs[seen].position + i));
      }
    }
    own.forEach((state, i) => {
      sum += seenTerm(state, own.length - i);
    });
    const state = tokenState(tokenId, position, sum | 0);
    own.push(state);
    return state;
  };
  let last = 0;
  plan.runs.forEach((run, index) => {
    states.push([]);
    for (const tokenId of run.tokenIds) last = extend(index, tokenId);
  });
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
    last = extend(openIndex, tokenId);
  }
}
