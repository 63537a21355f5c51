/**
 * The answer that sparse decoding must give on the fake backend, by its definition: no blocks, no steps, no seats. Rows
 * choose from the first token of the answer on; greedy, no stop tokens.
 */
import type { BackendShape } from "../../worker/backend/backend.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { fakeLogit, seenTerm, tokenState } from "../support/fake-backend.ts";
import { fakeScore, greatestScores } from "../support/fake-choices.ts";

/** A token as the newest row sees it: its state, and where it stands in that row's chain. */
interface Seen {
  readonly state: number;
  readonly position: number;
}

export interface SparseAnswer {
  readonly tokenIds: number[];
  /** Of the open run, as they are at the end. */
  readonly states: number[];
  /** How many of them come from rows that read all they saw, and saw nothing else. */
  readonly exactTokens: number;
  readonly steps: number;
  readonly rectifiedTokens: number;
}

export function sparseAnswer(
  { plan, params, sparse }: SubmitMessage,
  shape: BackendShape,
  tailTokens: number,
): SparseAnswer {
  const { tokens, rectifyTokens = 64 } = sparse ?? { tokens: 0 };
  const states: number[][] = plan.runs.map(() => []);
  const segmentsOf = (index: number): Seen[][] =>
    plan.runs[index].sees.map(({ run, firstToken, tokenCount, offset }) =>
      Array.from({ length: tokenCount }, (_, i) => {
        const position = plan.runs[run].position + firstToken + i + offset;
        return { state: states[run][firstToken + i], position };
      }),
    );
  const sumAt = (position: number, seen: readonly Seen[]): number =>
    seen.reduce((sum, token) => (sum + seenTerm(token.state, position - token.position)) | 0, 0);
  const own = (index: number, count: number): Seen[] =>
    states[index].slice(0, count).map((state, i) => ({ state, position: plan.runs[index].position + i }));
  const dense = (index: number, token: number, tokenId: number): number => {
    const position = plan.runs[index].position + token;
    return tokenState(tokenId, position, sumAt(position, [...segmentsOf(index).flat(), ...own(index, token)]));
  };
  for (const [index, run] of plan.runs.entries()) {
    for (const [token, tokenId] of run.tokenIds.entries()) states[index].push(dense(index, token, tokenId));
  }

  const last = plan.runs.length - 1;
  const open = plan.runs[last];
  const forced = segmentsOf(last).map((_, i) => (i === 0 ? 4 : plan.runs[open.sees[i].run].kind === "span" ? 2 : 0));
  const chosenBy = (token: number, tokenId: number): Seen[] => {
    const position = open.position + token;
    const tail = Math.max(0, Math.floor((token + 1 - tailTokens) / shape.blockTokens) * shape.blockTokens);
    const segments = [...segmentsOf(last), own(last, tail)];
    const forcedOf = [...forced, forced.length === 0 ? 4 : 0];
    const candidates = segments.flatMap((segment, i) => segment.slice(forcedOf[i]));
    const scores = candidates.map((seen) => fakeScore(tokenId, position, seen.state, position - seen.position));
    const chosen = greatestScores(scores, tokens).map((index) => candidates[index]);
    return [
      ...segments.flatMap((segment, i) => segment.slice(0, forcedOf[i])),
      ...chosen,
      ...own(last, token).slice(tail),
    ];
  };

  const ids = [...open.tokenIds];
  const tokenIds: number[] = [];
  let [exactTokens, steps, rectifiedTokens] = [ids.length, 0, 0];
  for (;;) {
    const logits = Array.from({ length: shape.vocabSize }, (_, id) => fakeLogit(states[last].at(-1) ?? 0, id));
    const tokenId = logits.indexOf(Math.max(...logits));
    tokenIds.push(tokenId);
    if (tokenIds.length === params.maxTokens) break;
    ids.push(tokenId);
    const token = ids.length - 1;
    if (rectifyTokens > 0 && ids.length - exactTokens >= rectifyTokens) {
      rectifiedTokens += token - exactTokens;
      for (; exactTokens < ids.length; exactTokens++)
        states[last][exactTokens] = dense(last, exactTokens, ids[exactTokens]);
      continue;
    }
    const position = open.position + token;
    states[last].push(tokenState(tokenId, position, sumAt(position, chosenBy(token, tokenId))));
    steps += 1;
  }
  return { tokenIds, states: states[last], exactTokens, steps, rectifiedTokens };
}
