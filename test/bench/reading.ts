/**
 * Reading a page that the model's training never saw: questions about pages written by hand, with the page alone and
 * among four others, with full and with span attention.
 */
import { askChat } from "../../gateway/cli/support/operations.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { judge, pagesAround, type ReadingPage, type ReadingQuestion, readReadingPages } from "./support/reading-set.ts";

const attentions = ["full", "span"] as const;
const concurrency = 8;

interface Case {
  readonly pages: readonly ReadingPage[];
  readonly question: ReadingQuestion;
}

interface Score {
  readonly pages: number;
  readonly attention: (typeof attentions)[number];
  /** Shares of the answerable questions. */
  readonly right: number;
  readonly refused: number;
  /** The share of the unanswerable questions of which the answer says so. */
  readonly saidSo: number;
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const set = readReadingPages(option("set"));
  const model = option("model");
  await using server = await startTestServer({ env: model === undefined ? {} : { SPANGATE_MODEL: model } });
  const { client } = await server.tenant("bench");
  const scores: Score[] = [];
  const examples: string[] = [];
  for (const others of [0, 4]) {
    const cases = set.flatMap((page, index): Case[] =>
      page.questions.map((question) => ({ pages: pagesAround(set, index, others), question })),
    );
    for (const attention of attentions) {
      say(`${others + 1} page(s), ${attention} attention: ${cases.length} questions`);
      const answers = await mapConcurrent(cases, concurrency, async ({ pages, question }) => {
        const { text } = await askChat(client, {
          model: server.model,
          messages: [{ role: "user", content: question.question }],
          documents: pages.map((page) => ({ text: page.text })),
          temperature: 0,
          max_tokens: 80,
          spangate: { attention },
        });
        return text.trim();
      });
      scores.push({ pages: others + 1, attention, ...shares(cases, answers) });
      if (others === 0 && attention === "span") examples.push(...misses(cases, answers).slice(0, 10));
    }
  }
  return report(server.model, set, scores, examples);
}

function shares(cases: readonly Case[], answers: readonly string[]): Pick<Score, "right" | "refused" | "saidSo"> {
  const judged = cases.map(({ question }, index) => ({
    answerable: question.answerable,
    judgement: judge(question, answers[index] ?? ""),
  }));
  const share = (answerable: boolean, judgement: string) => {
    const asked = judged.filter((one) => one.answerable === answerable);
    return asked.filter((one) => one.judgement === judgement).length / asked.length;
  };
  return { right: share(true, "right"), refused: share(true, "refused"), saidSo: share(false, "right") };
}

function misses(cases: readonly Case[], answers: readonly string[]): string[] {
  return cases.flatMap(({ question }, index) =>
    judge(question, answers[index] ?? "") === "right"
      ? []
      : [`${question.question} — "${answers[index]}" instead of ${JSON.stringify(question.answers)}`],
  );
}

function report(
  model: string,
  set: readonly ReadingPage[],
  scores: readonly Score[],
  examples: readonly string[],
): BenchReport {
  const percent = (share: number) => `${(100 * share).toFixed(1)} %`;
  const questions = set.flatMap((page) => page.questions);
  return {
    model,
    header: ["pages in the prompt", "attention", "right", "refused although answerable", "unanswerable said so"],
    rows: scores.map(({ pages, attention, right, refused, saidSo }) => [
      String(pages),
      attention,
      percent(right),
      percent(refused),
      percent(saidSo),
    ]),
    notes: [
      `${set.length} pages written by hand, ${questions.filter((one) => one.answerable).length} questions that they answer and ` +
        `${questions.filter((one) => !one.answerable).length} that they do not. Temperature 0, each question asked alone, no system message.`,
      "The first misses with one page and span attention:",
      ...examples,
    ],
    bars: [
      ...scores.map(({ pages, attention, right }) =>
        atLeast(`right, ${pages} page(s), ${attention} attention`, right, pages === 1 ? 0.7 : 0.6),
      ),
      ...scores.flatMap(({ pages, attention, refused, saidSo }) => [
        atMost(`refused although answerable, ${pages} page(s), ${attention} attention`, refused, 0.15),
        atLeast(`unanswerable said so, ${pages} page(s), ${attention} attention`, saidSo, 0.7),
      ]),
      ...[1, 5].map((pages) => {
        const [full, span] = scores.filter((score) => score.pages === pages).map(({ right }) => right);
        return atMost(`between full and span, ${pages} page(s)`, Math.abs((full ?? NaN) - (span ?? NaN)), 0.03);
      }),
    ],
    details: { scores },
  };
}

export const readingBench: Bench = {
  name: "reading",
  summary: "Questions about pages written by hand, one page and five, full and span attention",
  options: {
    set: "FILE  a set of pages (the hand-written one)",
    model: "DIR  another model's folder (the demo model)",
  },
  run,
};
