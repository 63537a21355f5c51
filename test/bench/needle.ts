/**
 * Names found in hay of growing length: asked for in one query over all fragments, and in a tree of queries over few
 * fragments each (`reduce`). Full attention over the same documents as one chain is the reference.
 */
import type { HttpClient } from "../../gateway/cli/support/client.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { askChat } from "../../gateway/cli/support/operations.ts";
import { textsOf } from "../../gateway/client/answers.ts";
import { SpanQueryClient } from "../../gateway/client/span-query-client.ts";
import type { QueryJson } from "../../gateway/query/wire.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { type EvalQuestion, evalRequest, readEvalQuestions } from "./support/eval-sets.ts";
import type { Plot } from "./support/plot.ts";

const lengths = ["256", "512", "1k", "2k", "4k", "8k", "16k"] as const;
const defaultArities = [2, 4, 8];
/** The one that the bars are about. */
const defaultArity = 4;
/** Room for the longest list of names. */
const maxTokens = 400;
const concurrency = 4;

interface Score {
  /** Share of the names that the answer lists, over all samples. */
  readonly found: number;
  /** Share of the listed names that are in the hay. */
  readonly right: number;
}

interface LengthResult {
  readonly length: string;
  readonly samples: number;
  readonly names: number;
  /** By "full", "flat" and "reduce m". */
  readonly scores: Readonly<Record<string, Score>>;
}

const namesOf = (answer: string): string[] =>
  answer === "The documents do not say."
    ? []
    : answer
        .trim()
        .replace(/\.$/, "")
        .split(/,\s*/)
        .filter((name) => name !== "");

function scoreOf(questions: readonly EvalQuestion[], answers: readonly string[]): Score {
  let [expected, listed, hits] = [0, 0, 0];
  for (const [index, { answer }] of questions.entries()) {
    const names = new Set(namesOf(answer));
    const given = new Set(namesOf(answers[index] ?? ""));
    expected += names.size;
    listed += given.size;
    hits += [...given].filter((name) => names.has(name)).length;
  }
  return { found: hits / expected, right: listed === 0 ? 0 : hits / listed };
}

/** @param arity undefined: one judge over all fragments */
function needleQuery({ system, documents, question }: EvalQuestion, arity: number | undefined): QueryJson {
  const plus = documents.map(({ text }) => ({ fragment: { text } }));
  const input = { cross: [{ system }, { plus }, { user: question }] };
  const reduce = arity === undefined ? {} : { reduce: { arity } };
  return { g: { model: "", max_tokens: maxTokens, temperature: 0, ...reduce, input } };
}

async function askFull(client: HttpClient, question: EvalQuestion, model: string): Promise<string> {
  const request = { ...evalRequest(question, model), max_tokens: maxTokens, spangate: { attention: "full" } };
  return (await askChat(client, request)).text;
}

async function askQuery(queries: SpanQueryClient, question: EvalQuestion, arity?: number): Promise<string> {
  return textsOf(await queries.execute(needleQuery(question, arity)))[0] ?? "";
}

/** How a length is asked, by the name of its column. */
type Asker = (question: EvalQuestion) => Promise<string>;

async function measure(
  length: string,
  questions: readonly EvalQuestion[],
  askers: ReadonlyMap<string, Asker>,
  say: BenchContext["say"],
): Promise<LengthResult> {
  const scores: Record<string, Score> = {};
  for (const [name, ask] of askers) {
    say(`${length}, ${name}: ${questions.length} samples`);
    scores[name] = scoreOf(questions, await mapConcurrent(questions, concurrency, ask));
  }
  const names = questions.reduce((sum, { answer }) => sum + namesOf(answer).length, 0);
  return { length, samples: questions.length, names, scores };
}

/** Where the flat query has fallen under half, the reduced one must not have, and keeps most of what it finds at best. */
function bars(results: readonly LengthResult[]): Bar[] {
  const reduced = `reduce ${defaultArity}`;
  const foundBy = (result: LengthResult, name: string) => result.scores[name]?.found ?? Number.NaN;
  const lost = results.filter((result) => foundBy(result, "flat") < 0.5);
  const [shortest] = results;
  if (shortest === undefined) return [];
  const isWhole = lengths.every((length) => results.some((result) => result.length === length));
  return [
    ...(isWhole ? [atLeast("lengths where flat finds less than half", lost.length, 1)] : []),
    ...lost.flatMap((result) => {
      const found = foundBy(result, reduced);
      return [
        atLeast(`${result.length}: found by ${reduced}, where flat is under half`, found, 0.5),
        atLeast(
          `${result.length}: found by ${reduced} / at ${shortest.length}`,
          found / foundBy(shortest, reduced),
          0.8,
        ),
      ];
    }),
  ];
}

function numbersOf(text: string | undefined, fallback: readonly number[]): readonly number[] {
  if (text === undefined) return fallback;
  const numbers = text.split(",").map(Number);
  if (numbers.every((value) => Number.isInteger(value) && value >= 2)) return numbers;
  throw new CommandError("--arities takes whole numbers from 2, separated by commas");
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const arities = [...new Set([...numbersOf(option("arities"), defaultArities), defaultArity])].sort((a, b) => a - b);
  const sampleLimit = Number(option("samples") ?? 24);
  const wanted = option("lengths")?.split(",") ?? lengths;
  const unknown = wanted.find((length) => !lengths.some((known) => known === length));
  if (unknown !== undefined) throw new CommandError(`no length "${unknown}"; there are ${lengths.join(", ")}`);
  await using server = await startTestServer();
  const { client, apiKey } = await server.tenant("bench");
  const queries = new SpanQueryClient({ url: server.url, apiKey });
  const askers = new Map<string, Asker>([
    ["full", (question) => askFull(client, question, server.model)],
    ["flat", (question) => askQuery(queries, question)],
    ...arities.map(
      (arity) => [`reduce ${arity}`, (question: EvalQuestion) => askQuery(queries, question, arity)] as const,
    ),
  ]);
  const results: LengthResult[] = [];
  for (const length of wanted) {
    const questions = readEvalQuestions([`needles-${length}`]).slice(0, sampleLimit);
    results.push(await measure(length, questions, askers, say));
  }
  const percent = (share: number) => `${(100 * share).toFixed(1)} %`;
  return {
    model: server.model,
    header: ["hay", "samples", "names", ...[...askers.keys()].flatMap((name) => [name, "right"])],
    rows: results.map(({ length, samples, names, scores }) => [
      length,
      String(samples),
      String(names),
      ...[...askers.keys()].flatMap((name) => [percent(scores[name]?.found ?? 0), percent(scores[name]?.right ?? 0)]),
    ]),
    notes: [
      "Share of the hay's names that the answer lists; right: share of the listed names that are in the hay.",
      "The demo model was trained on prompts of up to 8,192 tokens, at most 7,400 of them documents: flat and full at 8k and 16k",
      "are past that. The tree stays within it: it asks short lists and merges lists, and training had both.",
      "flat: one query over all fragments. reduce m: a tree of queries over m each. full: the documents as one chain.",
    ],
    bars: bars(results),
    details: { results },
  };
}

const tokensOf = (length: string): number =>
  length.endsWith("k") ? 1_024 * Number.parseInt(length, 10) : Number.parseInt(length, 10);

function plot({ results }: { readonly results?: unknown }): Omit<Plot, "source"> {
  const drawn = results as readonly LengthResult[];
  const arms = Object.keys(drawn[0]?.scores ?? {});
  const shares = [0, 20, 40, 60, 80, 100];
  return {
    title: "Names found in hay of some length",
    x: {
      label: "tokens of hay",
      ticks: drawn.map(({ length }) => [tokensOf(length), length] as const),
      isLogarithmic: true,
    },
    y: { label: "names found", ticks: shares.map((share) => [share, `${share} %`] as const), isLogarithmic: false },
    series: arms.map((name) => ({
      name,
      points: drawn.map(({ length, scores }) => [tokensOf(length), 100 * (scores[name]?.found ?? 0)] as const),
    })),
  };
}

export const needleBench: Bench = {
  name: "needle",
  summary: "Names found in 256 to 16k tokens of hay, by one query over all of it and by a tree of small ones",
  options: {
    lengths: `LIST  comma-separated, of ${lengths.join(", ")} (all)`,
    arities: `LIST  comma-separated (${defaultArities.join(",")})`,
    samples: "N  at most so many of each length (24)",
  },
  run,
  plot,
};
