/** What is asked in `bench sparse`, and what of an answer is right. */
import { join } from "node:path";
import { demoModelFolder } from "../../../gateway/cli/demo-corpora.ts";
import type { LowerInput } from "../../../gateway/lower/plan.ts";
import { type Bounds, longChain, makeChain, readNames } from "../chains/chains.ts";
import { scoreChain } from "../chains/score.ts";
import { type EvalQuestion, readEvalQuestions } from "../support/eval-sets.ts";
import { salt } from "./answerer.ts";

export interface Question {
  /** Of its set, from 0. */
  readonly index: number;
  readonly input: LowerInput;
  readonly maxAnswerTokens: number;
  readonly answer: string;
  readonly score: (given: string) => Score;
}

export interface Score {
  readonly isRight: boolean;
  /** Of a chain: lines before the first that is wrong. */
  readonly lines?: number;
}

export interface QuestionSet {
  readonly name: string;
  readonly modelFolder: string;
  readonly questions: readonly Question[];
}

/** Sets of chains, by their name: lines of a chain. */
const chainSets: Readonly<Record<string, Bounds>> = { chains: longChain, "chains-short": { least: 20, most: 40 } };

function documentQuestion({ system, documents, question, answer }: EvalQuestion, index: number): Question {
  const input: LowerInput = {
    messages: [
      { role: "system", content: system },
      { role: "user", content: question },
    ],
    documents: documents.map(({ text }, at) => ({ id: `${at}`, text, salt })),
    attention: "span",
    salt,
  };
  return { index, input, answer, maxAnswerTokens: 200, score: (given) => ({ isRight: given === answer }) };
}

/** A chain is right when nothing of its answer is wrong. */
function chainQuestion(index: number, bounds: Bounds, names: readonly string[]): Question {
  const chain = makeChain(index + 1, bounds, names);
  return {
    index,
    input: { messages: [{ role: "user", content: chain.prompt }], documents: [], attention: "full", salt },
    answer: chain.answer,
    // A line of an answer has 44 tokens; one that goes on past this has lost its way.
    maxAnswerTokens: Math.ceil(50 * (bounds.most + 1)),
    score: (given) => {
      const { isWhole, linesBeforeMistake } = scoreChain(chain, given);
      return { isRight: isWhole, lines: linesBeforeMistake };
    },
  };
}

/**
 * @param folder of evaluation sets; default: the demo model's own
 * @throws CommandError for a set that is not there
 */
export function readSet(name: string, most: number, folder?: string): QuestionSet {
  const bounds = chainSets[name];
  if (bounds !== undefined) {
    const names = readNames();
    const questions = Array.from({ length: most }, (_, index) => chainQuestion(index, bounds, names));
    return { name, modelFolder: join(import.meta.dir, "..", "chains", "model"), questions };
  }
  const questions = readEvalQuestions([name], folder).slice(0, most).map(documentQuestion);
  return { name, modelFolder: demoModelFolder, questions };
}

/** The questions [from, end) of slice `at` of `of`, at from 1: together all, and each of them once. */
export function sliceOf<T>(all: readonly T[], at: number, of: number): readonly T[] {
  return all.slice(Math.floor((all.length * (at - 1)) / of), Math.floor((all.length * at) / of));
}
