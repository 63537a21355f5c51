/**
 * Exact match on the demo model's evaluation sets, by this engine: full attention (the documents one after the
 * other in one chain) and span attention (each document on its own, reused).
 */
import { askChat } from "../../gateway/cli/support/operations.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { evalRequest, readEvalQuestions } from "./support/eval-sets.ts";

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

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const names = option("sets")?.split(",") ?? [];
  const questions = readEvalQuestions(names);
  const weights = option("weights") ?? "float32";
  await using server = await startTestServer({ env: { SPANGATE_WEIGHTS: weights } });
  const { client } = await server.tenant("bench");
  const examples: string[] = [];
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
  const percent = (right: number, all: number) => `${((100 * right) / all).toFixed(1)} %`;
  return {
    model: `${server.model} (${weights})`,
    header: ["set", "questions", "full attention", "span attention"],
    rows: scores.map(({ set, questions: all, right }) => [
      set,
      String(all),
      percent(right.full, all),
      percent(right.span, all),
    ]),
    notes: ["Exact match of the whole answer at temperature 0. The first miss of each set:", ...examples],
    bars: scores
      .filter(({ set }) => factSets.test(set))
      .flatMap(({ set, questions: all, right }) =>
        attentions.map((attention) =>
          atLeast(`${set}, ${attention} attention, exact match`, right[attention] / all, 0.99),
        ),
      ),
    details: { scores },
  };
}

export const qualityBench: Bench = {
  name: "quality",
  summary: "Exact match of the demo model's evaluation sets, full and span attention",
  options: { sets: "LIST  comma-separated evaluation sets (all)", weights: "float32 | int8" },
  run,
};
