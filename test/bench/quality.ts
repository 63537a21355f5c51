/**
 * Exact match on the demo model's evaluation sets, by this engine: full attention (the documents one after the
 * other in one chain) and span attention (each document on its own, reused).
 */
import { askChat } from "../../gateway/cli/support/operations.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { atLeast, atMost, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { type EvalQuestion, evalRequest, readEvalQuestions } from "./support/eval-sets.ts";
import { kvOption, kvSettings } from "./support/kv.ts";

const attentions = ["full", "span"] as const;
type Attention = (typeof attentions)[number];

/** Sets of plain facts: what the model was trained for, and what the bars are about. */
const factSets = /^facts-/;
const concurrency = 8;

interface SetScore {
  readonly set: string;
  readonly questions: number;
  readonly right: Readonly<Record<Attention, number>>;
}

/** Asks every question of each set in both ways; `examples` gets the first miss of each. */
async function scoresOf(
  server: TestServer,
  questions: readonly EvalQuestion[],
  say: BenchContext["say"],
  examples: string[],
): Promise<SetScore[]> {
  const { client } = await server.tenant("bench");
  const scores: SetScore[] = [];
  for (const [set, ofSet = []] of Object.entries(Object.groupBy(questions, (question) => question.set))) {
    const right = { full: 0, span: 0 };
    for (const attention of attentions) {
      say(`${set}, ${attention} attention: ${ofSet.length} questions`);
      const answers = await mapConcurrent(ofSet, concurrency, (question) =>
        askChat(client, { ...evalRequest(question, server.model), spangate: { attention } }),
      );
      const wrong = ofSet.flatMap(({ question, answer: expected }, index) => {
        const got = answers[index]?.text.trim() ?? "";
        return got === expected ? [] : [`${set}, ${attention}: ${question} — "${got}" instead of "${expected}"`];
      });
      right[attention] = ofSet.length - wrong.length;
      examples.push(...wrong.slice(0, 1));
    }
    scores.push({ set, questions: ofSet.length, right });
  }
  return scores;
}

/** What rounding to mx8 loses, in points of the score in float16. */
function lossBars(scores: readonly SetScore[], inFloat16: readonly SetScore[]): Bar[] {
  return scores.flatMap(({ set, questions: all, right }, index) =>
    attentions.map((attention) => {
      const before = inFloat16[index]?.right[attention] ?? 0;
      return atMost(
        `${set}, ${attention} attention, points below float16`,
        (100 * (before - right[attention])) / all,
        1,
      );
    }),
  );
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const names = option("sets")?.split(",") ?? [];
  const questions = readEvalQuestions(names);
  const weights = option("weights") ?? "float32";
  const kv = option("kv");
  const examples: string[] = [];
  const scored = async (env: Readonly<Record<string, string>>, misses: string[]) => {
    await using server = await startTestServer({ env: { SPANGATE_WEIGHTS: weights, ...env } });
    return { model: server.model, scores: await scoresOf(server, questions, say, misses) };
  };
  const { model, scores } = await scored(kvSettings(kv), examples);
  const inFloat16 = kv === "mx8" ? (await scored({}, [])).scores : undefined;
  const percent = (right: number, all: number) => `${((100 * right) / all).toFixed(1)} %`;
  const columns = (score: SetScore | undefined) =>
    score === undefined ? [] : attentions.map((attention) => percent(score.right[attention], score.questions));
  return {
    model: `${model} (${weights}${kv === undefined ? "" : `, KV ${kv}`})`,
    header: [
      ...["set", "questions", "full attention", "span attention"],
      ...(inFloat16 ? ["full, KV float16", "span, KV float16"] : []),
    ],
    rows: scores.map((score, index) => [
      ...[score.set, String(score.questions)],
      ...columns(score),
      ...columns(inFloat16?.[index]),
    ]),
    notes: ["Exact match of the whole answer at temperature 0. The first miss of each set:", ...examples],
    bars: [
      ...scores
        .filter(({ set }) => factSets.test(set))
        .flatMap(({ set, questions: all, right }) =>
          attentions.map((attention) =>
            atLeast(`${set}, ${attention} attention, exact match`, right[attention] / all, 0.99),
          ),
        ),
      ...(inFloat16 ? lossBars(scores, inFloat16) : []),
    ],
    details: { scores, ...(inFloat16 && { inFloat16 }) },
  };
}

export const qualityBench: Bench = {
  name: "quality",
  summary: "Exact match of the demo model's evaluation sets, full and span attention",
  options: {
    sets: "LIST  comma-separated evaluation sets (all)",
    weights: "float32 | int8",
    kv: `${kvOption}; mx8 is compared with float16`,
  },
  run,
};
