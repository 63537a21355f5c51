/**
 * Sparse decoding against dense decoding of the same questions, and against other ways to choose, in the same engine and
 * the same kernels: every question is answered in every way, one after the other, over the same KV of its documents. Each
 * row chooses an eighth of its prompt. Then a decode step of a larger shape over a long context, in turn.
 */
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { Lowerer } from "../../gateway/lower/plan.ts";
import { ChatTemplate } from "../../gateway/text/chat-template.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import { readModelText } from "../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";
import { CpuBackend, numericMode, openArithmetic } from "../../worker/backend/cpu/cpu-backend.ts";
import { parseWorkerConfig } from "../../worker/config.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { TokenPlan, WorkerMessage } from "../../worker/contract/messages.ts";
import type { SparseParams, SparseReport } from "../../worker/contract/sparse.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { loadModel } from "../../worker/model/load.ts";
import { atLeast, atMost, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { type EvalQuestion, readEvalQuestions } from "./support/eval-sets.ts";
import { compareSteps, type StepTimes } from "./support/sparse-steps.ts";
import { figure } from "./support/stats.ts";

/** Ways to choose; undefined: dense. The paper's own setting predicts for every step and never looks again. */
const arms: Readonly<Record<string, Omit<SparseParams, "tokens"> | undefined>> = {
  dense: undefined,
  now: { mode: "now" },
  ahead: { mode: "ahead" },
  paper: { mode: "ahead", refreshSteps: 1, leastCosine: -1 },
  "algorithm 1": { mode: "algorithm1", refreshSteps: 1, leastCosine: -1 },
  Quest: { mode: "quest" },
  TOVA: { mode: "tova" },
  "last query": { mode: "last" },
  "exact choice": { mode: "exact" },
};
const defaultSets = ["mixed-long", "two-hop", "needles-2k"];
const [chosenPart, maxAnswerTokens, mostListTokens] = [1 / 8, 200, 8_192];
const salt = "YmVuY2g=" as CacheSalt;

interface Answer {
  readonly text: string;
  readonly tokens: number;
  readonly sparse: SparseReport | undefined;
}

interface ArmScore {
  right: number;
  tokens: number;
  readonly reports: SparseReport[];
}

/** An engine over the demo model, which has nobody else to serve. */
class Answerer {
  readonly #engine: Engine;
  readonly #messages: WorkerMessage[] = [];
  readonly #lowerer: Lowerer;
  readonly #tokenBytes: TokenBytes;
  #count = 0;

  constructor(backend: CpuBackend, digest: string, eosTokenIds: readonly number[]) {
    const text = readModelText(demoModelFolder);
    const { blockTokens, contextTokens } = backend.shape;
    const template = new ChatTemplate(text);
    const tokenizer = new TextTokenizer(text, { cacheBytes: 16_000_000 });
    const card = { digest, blockTokens, contextTokens };
    this.#lowerer = new Lowerer({ template, tokenizer, card, cacheBytes: 16_000_000 });
    this.#tokenBytes = new TokenBytes(text.tokenizer, template.signs);
    this.#engine = new Engine({
      backend,
      eosTokenIds,
      clock: () => performance.now(),
      emit: (message) => this.#messages.push(message),
      // Every row chooses: what it is worth is not asked here.
      sparse: { fromTokens: 0, mostCost: Number.POSITIVE_INFINITY },
    });
  }

  planOf({ system, documents, question }: EvalQuestion): TokenPlan {
    return this.#lowerer.lower({
      messages: [
        { role: "system", content: system },
        { role: "user", content: question },
      ],
      documents: documents.map(({ text }, index) => ({ id: `${index}`, text, salt })),
      attention: "span",
      salt,
    });
  }

  async answer(plan: TokenPlan, sparse: SparseParams | undefined): Promise<Answer> {
    const requestId = `${this.#count++}`;
    const params = { maxTokens: maxAnswerTokens, minTokens: 0, ignoreEos: false, stopTokenIds: [] };
    const message = { type: "submit", requestId, plan, params: { ...params, sampling: greedySampling } } as const;
    this.#messages.length = 0;
    this.#engine.submit({ ...message, reuse: true, ...(sparse && { sparse }) });
    while (await this.#engine.step());
    const tokenIds = this.#messages.flatMap((sent) => (sent.type === "tokens" ? sent.tokenIds : []));
    for (const sent of this.#messages) {
      if (sent.type === "failed") throw new CommandError(sent.message);
      if (sent.type === "finished")
        return { text: this.#textOf(tokenIds), tokens: tokenIds.length, sparse: sent.sparse };
    }
    throw new CommandError("an answer has no end");
  }

  #textOf(tokenIds: readonly number[]): string {
    const bytes = tokenIds.flatMap((tokenId) => this.#tokenBytes.describe(tokenId).bytes);
    return new TextDecoder().decode(Uint8Array.from(bytes)).trim();
  }
}

const promptTokens = ({ runs }: TokenPlan): number => runs.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);

async function scoreSet(
  answerer: Answerer,
  questions: readonly EvalQuestion[],
  say: BenchContext["say"],
): Promise<Map<string, ArmScore>> {
  const scores = new Map(
    Object.keys(arms).map((arm): [string, ArmScore] => [arm, { right: 0, tokens: 0, reports: [] }]),
  );
  for (const [index, question] of questions.entries()) {
    if (index % 20 === 0) say(`${question.set}: ${index} of ${questions.length} questions`);
    const plan = answerer.planOf(question);
    const tokens = Math.max(1, Math.round(promptTokens(plan) * chosenPart));
    for (const [arm, score] of scores) {
      const params = arms[arm];
      const { text, tokens: length, sparse } = await answerer.answer(plan, params && { ...params, tokens });
      if (text === question.answer) score.right += 1;
      score.tokens += length;
      if (sparse !== undefined) score.reports.push(sparse);
    }
  }
  return scores;
}

/** Mean of what was measured over all looks; NaN for none. */
function meanOf(reports: readonly SparseReport[], part: "mass" | "overlap"): number {
  const measured = reports.reduce((sum, report) => sum + report.measured, 0);
  return reports.reduce((sum, report) => sum + report[part], 0) / (measured === 0 ? Number.NaN : measured);
}

const rightOf = (scores: ReadonlyMap<string, ArmScore>, arm: string): number => scores.get(arm)?.right ?? Number.NaN;

function barsOf(set: string, questions: number, scores: ReadonlyMap<string, ArmScore>): Bar[] {
  const [dense, now, exact] = ["dense", "now", "exact choice"].map((arm) => scores.get(arm));
  if (dense === undefined || now === undefined || exact === undefined) return [];
  const points = (arm: string): number => (100 * (rightOf(scores, "dense") - rightOf(scores, arm))) / questions;
  return [
    atMost(`${set}: now, points below dense`, points("now"), 1),
    atMost(`${set}: now, points below Quest`, points("now") - points("Quest"), 0),
    atMost(`${set}: now, points below TOVA`, points("now") - points("TOVA"), 0),
    atMost(`${set}: length of now's answers, off dense's`, Math.abs(now.tokens / dense.tokens - 1), 0.02),
    atLeast(
      `${set}: mass of now / of the exact choice`,
      meanOf(now.reports, "mass") / meanOf(exact.reports, "mass"),
      0.98,
    ),
    // Of a model that was made to fetch facts, in one row of four predictions do not know what is fetched next.
    atMost(`${set}: ahead, points below dense`, points("ahead"), 1),
  ];
}

async function openDemo(env: Readonly<Record<string, string | undefined>>) {
  const config = parseWorkerConfig({ ...env, SPANGATE_MODEL: demoModelFolder });
  const { kernels, dense } = await openArithmetic(config);
  const mode = numericMode({ ...config, dense });
  const model = loadModel(config.modelFolder, mode);
  const sparse = { seats: 1, listTokens: mostListTokens, shadowBits: 4, rings: true } as const;
  const { kvBytes = 2 ** 30, stepTokens: maxRows } = config;
  const options = { ...config, sparse, dense, kvBytes, maxRows, maxLogitRows: 64, kernels };
  return { backend: await CpuBackend.open(model, options), model, mode };
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const sets = option("sets")?.split(",") ?? defaultSets;
  const most = Number(option("samples") ?? 1_000);
  if (!Number.isInteger(most) || most < 1) throw new CommandError("--samples takes a whole number from 1");
  const { backend, model, mode } = await openDemo(process.env);
  const answerer = new Answerer(backend, model.digest, model.eosTokenIds);
  const rows: string[][] = [];
  const bars: Bar[] = [];
  for (const set of sets) {
    const questions = readEvalQuestions([set]).slice(0, most);
    const scores = await scoreSet(answerer, questions, say);
    for (const [arm, { right, tokens, reports }] of scores) {
      const counts = [right, tokens / questions.length, meanOf(reports, "mass"), meanOf(reports, "overlap")];
      rows.push([set, String(questions.length), arm, String(counts[0]), ...counts.slice(1).map(figure), "", ""]);
    }
    bars.push(...barsOf(set, questions.length, scores));
  }
  await backend.dispose();
  const times = option("times") === "no" ? undefined : await compareSteps(say);
  const notes = [
    "right: the whole answer is the expected one, at temperature 0; tokens: mean length of an answer; mass: part of a row's",
    "attention weights that what it read has, overlap: part of the exact choice that was chosen, one layer in turn.",
    "Each row chooses an eighth of its prompt's tokens, beside two of each document and its newest 64. paper: the prediction",
    "of every step, never checked; algorithm 1: with the prediction that the paper's listing has in place of its equations.",
  ];
  return {
    model: `${model.id} (${mode})`,
    bars: [...bars, ...(times === undefined ? [] : barsOfTimes(times))],
    header: ["set", "questions", "arm", "right", "tokens", "mass", "overlap", "step ms", "dense / it"],
    rows: [...rows, ...(times?.rows ?? []).map(timeRow)],
    notes: times === undefined ? notes : [...notes, times.note],
  };
}

const timeRow = ({ arm, stepMs, ratio }: StepTimes["rows"][number]): string[] => [
  ...["0.6B at 16k, C = 1,024", "", arm, "", "", "", ""],
  ...[figure(stepMs), figure(ratio)],
];

const barsOfTimes = ({ rows }: StepTimes): Bar[] =>
  rows.flatMap(({ arm, ratio }) => (arm === "now" ? [atLeast("dense step / now's, 0.6B at 16k", ratio, 1.7)] : []));

export const sparseBench: Bench = {
  name: "sparse",
  summary: "Sparse decoding against dense, Quest, TOVA and others: right answers, lengths, mass; steps of 0.6B at 16k",
  options: {
    sets: `LIST  comma-separated evaluation sets (${defaultSets.join(",")})`,
    samples: "N  at most so many questions of each set (1000)",
    times: "no  leaves the steps of 0.6B out",
  },
  run,
};
