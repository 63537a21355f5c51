/**
 * Sparse decoding against dense decoding of the same questions, and against other ways to choose, in the same engine and
 * the same kernels: every question is answered in every way, over the same KV of its documents. Each row chooses an eighth
 * of its context. Then a decode step of a larger shape over a long context, in turn.
 *
 * What is scored does not depend on the machine's speed (`ahead` and TOVA: in single answers on the order), so long runs are
 * cut: `--slice 2/16` asks a part of the questions, and `--keep FOLDER` keeps what was answered. A run with all of it there makes the table.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";
import type { SparseParams } from "../../worker/contract/sparse.ts";
import { atLeast, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { Answerer, type Asked } from "./sparse/answerer.ts";
import { arms, chosenPart } from "./sparse/arms.ts";
import { type ArmResult, barsOf, compareSet } from "./sparse/compare.ts";
import { KeptScores, keptOf } from "./sparse/kept.ts";
import { type Question, type QuestionSet, readSet, sliceOf } from "./sparse/questions.ts";
import { compareSteps, type StepTimes } from "./support/sparse-steps.ts";
import { figure } from "./support/stats.ts";

const defaultSets = ["mixed-long", "two-hop", "needles-2k"];

/** One question in one way. */
interface ArmQuestion extends Asked {
  readonly question: Question;
  readonly arm: string;
}

interface Options {
  readonly sets: readonly string[];
  readonly arms: readonly string[];
  readonly most: number;
  /** Answers that are generated together. */
  readonly together: number;
  readonly evalFolder: string | undefined;
  readonly keep: string | undefined;
  /** False: the table is made of what is kept. */
  readonly asks: boolean;
  readonly slice: { readonly at: number; readonly of: number };
}

/** @throws CommandError */
function readOptions(option: BenchContext["option"]): Options {
  const [most, together] = [Number(option("samples") ?? 1_000), Number(option("together") ?? 24)];
  if (!Number.isInteger(most) || most < 1) throw new CommandError("--samples takes a whole number from 1");
  if (!Number.isInteger(together) || together < 1 || together > 64) throw new CommandError("--together takes 1 to 64");
  const names = option("arms")?.split(",") ?? Object.keys(arms);
  const unknown = names.find((name) => !Object.hasOwn(arms, name));
  if (unknown !== undefined) throw new CommandError(`no arm "${unknown}"; there are ${Object.keys(arms).join(", ")}`);
  const [at, of] = (option("slice") ?? "1/1").split("/").map(Number);
  if (!Number.isInteger(at) || !Number.isInteger(of) || at === undefined || of === undefined || at < 1 || of < at) {
    throw new CommandError("--slice takes K/N: the K-th of N parts");
  }
  const sets = option("sets")?.split(",") ?? defaultSets;
  return {
    sets,
    arms: names,
    most,
    together,
    evalFolder: option("eval"),
    keep: option("keep"),
    asks: option("ask") !== "no",
    slice: { at, of },
  };
}

/** What of a set is not answered yet. */
function* openQuestions(
  answerer: Answerer,
  set: QuestionSet,
  { arms: names, slice }: Options,
  kept: KeptScores,
): Generator<ArmQuestion> {
  for (const question of sliceOf(set.questions, slice.at, slice.of)) {
    const { input, maxAnswerTokens, answer, index } = question;
    const open = names.filter((arm) => kept.get(set.name, index, arm) === undefined);
    if (open.length === 0) continue;
    const contextTokens = answerer.promptTokens(input) + answerer.countTokens(answer);
    const tokens = Math.max(1, Math.round(contextTokens * chosenPart));
    for (const arm of open) {
      const params: SparseParams | undefined = arms[arm] && { ...arms[arm], tokens };
      yield { question, arm, input, maxAnswerTokens, params };
    }
  }
}

/** @returns the model's name */
async function answerSet(set: QuestionSet, options: Options, kept: KeptScores, say: BenchContext["say"]) {
  const answerer = await Answerer.open(set.modelFolder, options.together, process.env);
  const startMs = performance.now();
  let answered = 0;
  await answerer.answerAll(openQuestions(answerer, set, options, kept), ({ question, arm }, answer) => {
    kept.add(keptOf(set.name, question.index, arm, answer, question.score(answer.text)));
    answered += 1;
    if (answered % 50 !== 0) return;
    say(`${set.name}: ${answered} answers, ${Math.round((performance.now() - startMs) / 1e3)} s`);
  });
  await answerer.close();
  return answerer.model;
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const options = readOptions(option);
  const { at, of } = options.slice;
  const kept = new KeptScores(options.keep, `${options.sets.join("-")}-${at}-of-${of}`);
  const results: { set: string; arms: ArmResult[] }[] = [];
  const models = new Set<string>();
  for (const name of options.sets) {
    const set = readSet(name, options.most, options.evalFolder);
    models.add(
      options.asks ? await answerSet(set, options, kept, say) : set.modelFolder.slice(repositoryRoot.length + 1),
    );
    results.push({ set: name, arms: compareSet(kept, name, options.arms) });
  }
  const times = option("times") === "no" ? undefined : await compareSteps(say);
  const notes = [
    "right: the whole answer is the expected one, at temperature 0; below dense: points of a hundred, paired, with a 95 % interval;",
    "tokens: mean length of an answer; mass: part of a row's attention weights that what it read has, overlap: part of the exact",
    "choice that was chosen, one layer in turn; copied: tokens of a list that a step copied. Each row chooses an eighth of the prompt's",
    "and the right answer's tokens, beside two of each document and its newest 64. paper: the prediction of every step, never",
    "checked; algorithm1: with the prediction that the paper's listing has in place of its equations.",
  ];
  const bars = results.flatMap(({ set, arms: own }) => barsOf(kept, set, own));
  return {
    model: [...models].join(", "),
    bars: [...bars, ...(times === undefined ? [] : barsOfTimes(times))],
    header: ["set", "n", "arm", "right", "below dense", "tokens", "mass", "overlap", "copied", "step ms", "dense / it"],
    rows: [...results.flatMap(({ set, arms: own }) => own.map((arm) => armRow(set, arm))), ...timeRows(times)],
    notes: times === undefined ? notes : [...notes, times.note],
    details: { results, ...(times && { steps: times.rows }) },
  };
}

const armRow = (set: string, { arm, questions, right, ...result }: ArmResult): string[] => [
  ...[set, String(questions), arm, String(right)],
  `${result.pointsBelow.toFixed(2)} ± ${result.pointsEither.toFixed(2)}`,
  ...[result.tokens, result.mass, result.overlap, result.changed].map(figure),
  ...["", ""],
];

const timeRows = (times: StepTimes | undefined): string[][] =>
  (times?.rows ?? []).map(({ arm, stepMs, ratio }) => [
    ...["0.6B at 16k, C = 1,024", "", arm, "", "", "", "", "", ""],
    ...[figure(stepMs), figure(ratio)],
  ]);

const barsOfTimes = ({ rows }: StepTimes): Bar[] =>
  rows.flatMap(({ arm, ratio }) => (arm === "now" ? [atLeast("dense step / now's, 0.6B at 16k", ratio, 1.7)] : []));

export const sparseBench: Bench = {
  name: "sparse",
  summary: "Sparse decoding against dense, Quest, TOVA and others: right answers, lengths, mass; steps of 0.6B at 16k",
  options: {
    sets: `LIST  comma-separated: evaluation sets, chains, chains-short (${defaultSets.join(",")})`,
    arms: `LIST  ways to choose (${Object.keys(arms).join(",")})`,
    samples: "N  at most so many questions of each set (1000)",
    together: "N  answers that are generated together (24)",
    eval: "FOLDER  of evaluation sets, in place of the demo model's",
    keep: "FOLDER  keeps each answer's score, and asks only what it does not have",
    ask: "no  makes the table of what is kept",
    slice: "K/N  asks the K-th of N parts of the questions",
    times: "no  leaves the steps of 0.6B out",
  },
  run,
};
