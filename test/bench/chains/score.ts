/** Asking for a chain, and what is right of an answer. */
import type { ChatRequest } from "../../../gateway/cli/support/operations.ts";
import type { Chain } from "./chains.ts";

/** The longest right answer has 7,970 tokens; one that goes on past this has lost its way. */
const maxAnswerTokens = 9000;

/** Greedy, so that a difference between two answers is the engine's. */
export function chainRequest({ prompt }: Chain, model: string): ChatRequest {
  return { model, messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens: maxAnswerTokens };
}

export interface ChainScore {
  /** The last value is said, and is right. */
  readonly isRight: boolean;
  /** Nothing in the answer is wrong. */
  readonly isWhole: boolean;
  /** Lines, the last one among them, before the first that is wrong. */
  readonly linesBeforeMistake: number;
}

export function scoreChain({ answer }: Chain, given: string): ChainScore {
  const [right, said] = [answer.split("\n"), given.trimEnd().split("\n")];
  const firstWrong = right.findIndex((line, index) => line !== said[index]);
  const isWhole = firstWrong < 0 && said.length === right.length;
  return {
    isRight: said.at(-1) === right.at(-1),
    isWhole,
    linesBeforeMistake: firstWrong < 0 ? right.length : firstWrong,
  };
}
