/**
 * Time to first token of a question over k prepared fragments, against the same prompt computed without reuse
 * and against plain concatenation (one chain, full attention). All three in turn, in one run, through HTTP.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { askChat, type ChatAnswer } from "../../gateway/cli/support/operations.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { atLeast, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { readEvalQuestions } from "./support/eval-sets.ts";
import { decades, type Plot, powersOfTwo } from "./support/plot.ts";
import { SpanTexts } from "./support/prompts.ts";
import { figure, median } from "./support/stats.ts";

const fragmentTokenCounts = [128, 512];
const fragmentCounts = [1, 2, 4, 8, 16, 32];

/** How the fragments are computed: found, computed on their own, or computed as one chain. */
const modes = {
  prepared: {},
  cold: { spangate: { reuse: false } },
  plain: { spangate: { reuse: false, attention: "full" } },
} as const;
type Mode = keyof typeof modes;

interface Cell {
  readonly fragmentTokens: number;
  readonly fragmentCount: number;
  readonly promptTokens: number;
  readonly ttftMs: Readonly<Record<Mode, number>>;
  readonly workerTtftMs: number;
  readonly cachedTokens: number;
  readonly cachedTokensReversed: number;
}

class Questioner {
  readonly #server: TestServer;
  readonly #tenant: TestTenant;
  /** Real ones, of the length that users ask in, about other people each. */
  readonly #questions = [...new Set(readEvalQuestions(["facts-3", "facts-6"]).map(({ question }) => question))];
  #asked = 0;

  constructor(server: TestServer, tenant: TestTenant) {
    this.#server = server;
    this.#tenant = tenant;
  }

  /** A question never asked before, so that only fragments can be found. One token of answer. */
  ask(documents: readonly { text: string }[], mode: Mode): Promise<ChatAnswer> {
    const content = this.#questions[this.#asked];
    this.#asked += 1;
    if (content === undefined) throw new CommandError(`there are only ${this.#questions.length} questions`);
    return askChat(this.#tenant.client, {
      model: this.#server.model,
      messages: [{ role: "user", content }],
      documents,
      temperature: 0,
      max_tokens: 1,
      min_tokens: 1,
      ignore_eos: true,
      ...modes[mode],
    });
  }
}

async function measure(questioner: Questioner, documents: { text: string }[], fragmentTokens: number): Promise<Cell> {
  const fragmentCount = documents.length;
  const tokens = fragmentCount * fragmentTokens;
  await questioner.ask(documents, "prepared");
  const rounds = tokens <= 512 ? 11 : tokens <= 4_096 ? 5 : 3;
  const samples: Record<Mode, ChatAnswer[]> = { prepared: [], cold: [], plain: [] };
  for (let round = 0; round < rounds; round++) {
    for (const mode of ["prepared", "cold", "plain"] as const)
      samples[mode].push(await questioner.ask(documents, mode));
  }
  const reversed = await questioner.ask(documents.toReversed(), "prepared");
  const [first] = samples.prepared;
  if (first === undefined) throw new CommandError("no round was run");
  const wrong = first.spangate.spans.find((span) => span.tokens !== fragmentTokens);
  if (wrong) throw new CommandError(`a fragment has ${wrong.tokens} tokens, not ${fragmentTokens}`);
  const times = (mode: Mode) => median(samples[mode].map(({ clientTtftMs }) => clientTtftMs));
  return {
    fragmentTokens,
    fragmentCount,
    promptTokens: first.usage.prompt_tokens,
    ttftMs: { prepared: times("prepared"), cold: times("cold"), plain: times("plain") },
    workerTtftMs: median(samples.prepared.map(({ spangate }) => spangate.ttft_ms)),
    cachedTokens: Math.min(...samples.prepared.map(({ usage }) => usage.prompt_tokens_details.cached_tokens)),
    cachedTokensReversed: reversed.usage.prompt_tokens_details.cached_tokens,
  };
}

function bars(cells: readonly Cell[]): Bar[] {
  const speedup = (tokens: number, count: number) => {
    const cell = cells.find((one) => one.fragmentTokens === tokens && one.fragmentCount === count);
    return cell ? cell.ttftMs.cold / cell.ttftMs.prepared : Number.NaN;
  };
  const orderHits = cells.map(({ cachedTokens, cachedTokensReversed }) => cachedTokensReversed / cachedTokens);
  const hits = cells.map((cell) => cell.cachedTokens / (cell.fragmentCount * cell.fragmentTokens));
  return [
    atLeast("ttft cold / prepared, 32 x 128", speedup(128, 32), 20),
    atLeast("ttft cold / prepared, 32 x 512", speedup(512, 32), 40),
    atLeast("ttft cold / prepared, 1 x 128", speedup(128, 1), 1),
    atLeast("ttft cold / prepared, 1 x 512", speedup(512, 1), 1),
    atLeast("fragment tokens found, least share", Math.min(...hits), 1),
    atLeast("tokens found in another order / in order, least", Math.min(...orderHits), 1),
  ];
}

function row(cell: Cell): string[] {
  const { prepared, cold, plain } = cell.ttftMs;
  return [
    `${cell.fragmentCount} x ${cell.fragmentTokens}`,
    String(cell.promptTokens),
    String(cell.cachedTokens),
    String(cell.cachedTokensReversed),
    figure(prepared),
    figure(cell.workerTtftMs),
    figure(cold),
    figure(plain),
    figure(cold / prepared),
    figure(plain / prepared),
  ];
}

async function run({ say }: BenchContext): Promise<BenchReport> {
  await using server = await startTestServer();
  const texts = new SpanTexts();
  const questioner = new Questioner(server, await server.tenant("bench"));
  await questioner.ask([{ text: texts.textOf(128, 0) }], "cold");
  const cells: Cell[] = [];
  for (const tokens of fragmentTokenCounts) {
    const documents = Array.from({ length: 32 }, (_, index) => ({ text: texts.textOf(tokens, tokens * 100 + index) }));
    for (const count of fragmentCounts) {
      say(`${count} x ${tokens}`);
      cells.push(await measure(questioner, documents.slice(0, count), tokens));
    }
  }
  return {
    model: server.model,
    header: [
      "fragments",
      "prompt",
      "found",
      "reversed",
      "prepared ms",
      "in worker",
      "cold ms",
      "plain ms",
      "cold/prep",
      "plain/prep",
    ],
    rows: cells.map(row),
    notes: [
      "Medians of the client's time to first token. cold: same spans, nothing found, nothing kept.",
      "plain: the documents as one chain with full attention. found: cached tokens of the prepared prompt.",
    ],
    bars: bars(cells),
    details: { cells },
  };
}

/** The fragments of the picture: those whose prompts are the longest. */
const plottedTokens = 512;
const plotNames: Readonly<Record<Mode, string>> = { prepared: "prepared", cold: "computed anew", plain: "one chain" };

function plot({ cells }: { readonly cells?: unknown }): Omit<Plot, "source"> {
  const drawn = (cells as readonly Cell[]).filter(({ fragmentTokens }) => fragmentTokens === plottedTokens);
  const series = (["plain", "cold", "prepared"] as const).map((mode) => ({
    name: plotNames[mode],
    points: drawn.map(({ fragmentCount, ttftMs }) => [fragmentCount, ttftMs[mode]] as const),
  }));
  const counts = drawn.map(({ fragmentCount }) => fragmentCount);
  const times = series.flatMap(({ points }) => points.map(([, ms]) => ms));
  return {
    title: `Time to first token over fragments of ${plottedTokens} tokens`,
    x: {
      label: "fragments in the prompt",
      ticks: powersOfTwo(Math.min(...counts), Math.max(...counts)),
      isLogarithmic: true,
    },
    y: { label: "time to first token, from HTTP", ticks: decades(times, " ms"), isLogarithmic: true },
    series,
  };
}

export const ragBench: Bench = {
  name: "rag",
  summary: "TTFT of a question over prepared fragments against computing them, 1 to 32 fragments",
  run,
  plot,
};
