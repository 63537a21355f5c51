/**
 * A judge over n generated candidates (the span-query paper's nested generation), with the candidates' KV reused as they
 * were generated, and with the judge's whole prompt computed. Both in turn, each with candidates of its own. Counted by
 * the client, from sending the query to the judge's first token, so that the generation of the candidates is in both;
 * beside it the judge alone, as its worker counts it, which is a part of that and no figure of HTTP.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { piecesOf, type SpangateReport } from "../../gateway/client/answers.ts";
import { SpanQueryClient } from "../../gateway/client/span-query-client.ts";
import type { QueryJson } from "../../gateway/query/wire.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, atMost, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { decades, type Plot } from "./support/plot.ts";
import { SpanTexts } from "./support/prompts.ts";
import { figure, median } from "./support/stats.ts";

const fanOuts = [1, 2, 4, 8, 16, 24];
const outputTokenCounts = [128, 512];

const system = "You compare drafts and pick the best one.";
/** The demo model goes on from this in many ways; most other beginnings it answers in one. */
const task = { cross: [{ system: "You write drafts." }, { user: "Last year, the" }] };
const verdict = "Which of these drafts is the clearest?";

const maxAttempts = 5;

interface Round {
  /** From sending the query to the judge's first token, at the client. */
  readonly ttftMs: number;
  /** From the judge's arrival in the worker to its first token. */
  readonly judgeMs: number;
  readonly promptTokens: number;
  readonly computedTokens: number;
}

interface Cell {
  readonly fanOut: number;
  readonly outputTokens: number;
  readonly reused: readonly Round[];
  readonly computed: readonly Round[];
}

/** @param seed other candidates each time, so that none is found from an earlier round */
function judgeQuery(fanOut: number, outputTokens: number, seed: number): QueryJson {
  const candidate = {
    model: "",
    max_tokens: outputTokens,
    temperature: 0.5,
    ignore_eos: true,
    seed,
    input: task,
  };
  const input = { cross: [{ system }, { plus: [{ repeat: { n: fanOut, g: candidate } }] }, { user: verdict }] };
  return { g: { model: "", max_tokens: 1, temperature: 0, ignore_eos: true, input } };
}

class Judge {
  readonly #client: SpanQueryClient;
  #asked = 0;

  constructor(client: SpanQueryClient) {
    this.#client = client;
  }

  /** @param reuse false: the outer generate computes its whole prompt; the candidates are generated as ever */
  async ask(fanOut: number, outputTokens: number, reuse: boolean): Promise<Round> {
    for (let attempt = 0; attempt < maxAttempts; attempt++) {
      const round = await this.#askOnce(fanOut, outputTokens, reuse);
      // Candidates that are equal to the last token stand in the prompt once: that would be a smaller round.
      if (round.promptTokens >= fanOut * outputTokens) return round;
    }
    throw new CommandError(`${fanOut} candidates of ${outputTokens} tokens were never all different`);
  }

  async #askOnce(fanOut: number, outputTokens: number, reuse: boolean): Promise<Round> {
    this.#asked += 1;
    const { ttftMs, report } = await this.#stream(judgeQuery(fanOut, outputTokens, this.#asked * 1_000), reuse);
    const candidates = report.generates.slice(0, -1);
    const outer = report.generates.at(-1);
    const asAsked = candidates.every(({ completion_tokens: tokens }) => tokens === outputTokens);
    if (outer === undefined || candidates.length !== fanOut || !asAsked) {
      throw new CommandError(`not ${fanOut} candidates of ${outputTokens} tokens: ${JSON.stringify(report.generates)}`);
    }
    const { prompt_tokens: promptTokens, cached_tokens: cachedTokens, ttft_ms: judgeMs } = outer;
    return { ttftMs, judgeMs, promptTokens, computedTokens: promptTokens - cachedTokens };
  }

  /** The judge's one token may be a part of a character: then the end of its answer is what comes first. */
  async #stream(query: QueryJson, reuse: boolean): Promise<{ ttftMs: number; report: SpangateReport }> {
    const startMs = performance.now();
    let ttftMs: number | undefined;
    let report: SpangateReport | undefined;
    for await (const chunk of this.#client.stream(query, { reuse })) {
      if (piecesOf(chunk).some(({ text, isLast }) => text !== "" || isLast)) ttftMs ??= performance.now() - startMs;
      report = chunk.spangate ?? report;
    }
    if (ttftMs === undefined || report === undefined) throw new CommandError("a query ended without an answer");
    return { ttftMs, report };
  }
}

/** A generation of 512 tokens by 24 takes seconds, so long ones get few rounds. */
function roundCount(fanOut: number, outputTokens: number): number {
  const tokens = fanOut * outputTokens;
  return tokens <= 1_024 ? 7 : tokens <= 4_096 ? 4 : 3;
}

async function measure(judge: Judge, fanOut: number, outputTokens: number): Promise<Cell> {
  const cell = { fanOut, outputTokens, reused: [] as Round[], computed: [] as Round[] };
  for (let round = 0; round < roundCount(fanOut, outputTokens); round++) {
    cell.reused.push(await judge.ask(fanOut, outputTokens, true));
    cell.computed.push(await judge.ask(fanOut, outputTokens, false));
  }
  return cell;
}

type Clock = (rounds: readonly Round[]) => number;
const wholeMs: Clock = (rounds) => median(rounds.map(({ ttftMs }) => ttftMs));
const judgeMs: Clock = (rounds) => median(rounds.map((round) => round.judgeMs));
/** NaN of no round: then no bar is met. */
const mostComputed = (rounds: readonly Round[]): number =>
  rounds.length === 0 ? Number.NaN : Math.max(...rounds.map(({ computedTokens }) => computedTokens));

function bars(cells: readonly Cell[], ownTokens: number): Bar[] {
  const of = (fanOut: number, tokens: number) =>
    cells.find((cell) => cell.fanOut === fanOut && cell.outputTokens === tokens);
  const ratio = (clock: Clock, cell: Cell | undefined): number =>
    cell === undefined ? Number.NaN : clock(cell.computed) / clock(cell.reused);
  return [
    ...outputTokenCounts.map((tokens) =>
      atLeast(`ttft computed / reused, from HTTP, 24 x ${tokens}, median`, ratio(wholeMs, of(24, tokens)), 1),
    ),
    atLeast("judge computed / reused, in the worker, 24 x 512, median", ratio(judgeMs, of(24, 512)), 15),
    ...outputTokenCounts.map((tokens) =>
      atLeast(`judge computed / reused, in the worker, 1 x ${tokens}, median`, ratio(judgeMs, of(1, tokens)), 1),
    ),
    ...outputTokenCounts.map((tokens) => {
      const computed = mostComputed(of(24, tokens)?.reused ?? []);
      return atMost(`prompt tokens computed at 24 x ${tokens}, own messages have ${ownTokens}`, computed, ownTokens);
    }),
  ];
}

function row(cell: Cell): string[] {
  const { fanOut, outputTokens, reused, computed } = cell;
  return [
    `${fanOut} x ${outputTokens}`,
    String(reused.length),
    String(reused[0]?.promptTokens ?? 0),
    String(mostComputed(reused)),
    ...[wholeMs, judgeMs].flatMap((clock) => {
      const [reusedMs, computedMs] = [clock(reused), clock(computed)];
      return [reusedMs, computedMs, computedMs / reusedMs].map(figure);
    }),
  ];
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const only = option("fan-outs")?.split(",").map(Number) ?? fanOuts;
  await using server = await startTestServer();
  const { apiKey } = await server.tenant("bench");
  const texts = new SpanTexts();
  const ownTokens =
    texts.messageTokens("system", system) + texts.messageTokens("user", verdict) + texts.answerStartTokens;
  const judge = new Judge(new SpanQueryClient({ url: server.url, apiKey }));
  await judge.ask(2, 32, true);
  await judge.ask(2, 32, false);
  const cells: Cell[] = [];
  for (const outputTokens of outputTokenCounts) {
    for (const fanOut of fanOuts.filter((count) => only.includes(count))) {
      say(`${fanOut} x ${outputTokens}`);
      cells.push(await measure(judge, fanOut, outputTokens));
    }
  }
  return {
    model: server.model,
    header: [
      ...["candidates", "rounds", "prompt", "computed", "reused ms", "computed ms", "ratio"],
      ...["judge reused ms", "judge computed ms", "ratio"],
    ],
    rows: cells.map(row),
    notes: [
      "reused, computed ms: medians at the client, from sending the query to the judge's first token. The generation of",
      "the candidates, at temperature 0.5, is in both. judge: the judge alone, from its arrival in the worker, without HTTP.",
      `computed: prompt tokens of the judge that no cache held, at most; its own messages have ${ownTokens}.`,
    ],
    bars: bars(cells, ownTokens),
    details: { ownTokens, cells },
  };
}

/** The candidates of the picture: the longer ones. */
const plottedTokens = 512;

function plot({ cells }: { readonly cells?: unknown }): Omit<Plot, "source"> {
  const drawn = (cells as readonly Cell[]).filter(({ outputTokens }) => outputTokens === plottedTokens);
  const series = (["computed", "reused"] as const).map((side) => ({
    name: side,
    points: drawn.map((cell) => [cell.fanOut, median(cell[side].map(({ judgeMs }) => judgeMs))] as const),
  }));
  return {
    title: `A judge over candidates of ${plottedTokens} tokens`,
    x: {
      label: "candidates that the judge reads",
      ticks: drawn.map(({ fanOut }) => [fanOut, String(fanOut)] as const),
      isLogarithmic: true,
    },
    y: {
      label: "the judge's time to first token, in the worker",
      ticks: decades(
        series.flatMap(({ points }) => points.map(([, ms]) => ms)),
        " ms",
      ),
      isLogarithmic: true,
    },
    series,
  };
}

export const nestedBench: Bench = {
  name: "nested",
  summary: "TTFT of a query whose judge reads 1 to 24 generated candidates, their KV reused or computed again",
  options: { "fan-outs": `LIST  comma-separated, of ${fanOuts.join(", ")} (all)` },
  run,
  plot,
};
