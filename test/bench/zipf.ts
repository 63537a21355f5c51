/**
 * What a KV budget finds of documents whose popularity follows Zipf's law and that stand anywhere in the prompts: with
 * prefixes only, with a copy for each place (what the published formula is of), with K moved (relocation), and with q
 * turned instead (deferred). LazyAttention (arXiv 2606.04302) reports 13.6% against 7.3% at 1 GB and zipf 2.1 for a system
 * that keeps turned copies of a span beside it. Hit ratios are of the real scheduler and cache at the full budgets of an 8B model's KV; times
 * to the first token are of the demo model on a shorter trace, with as many tokens of KV as the least budget holds.
 */
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { CpuBackend, numericMode } from "../../worker/backend/cpu/cpu-backend.ts";
import { loadModel } from "../../worker/model/load.ts";
import { atLeast, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { figure, median } from "./support/stats.ts";
import { CountingBackend, type Served, serve } from "./support/zipf-serve.ts";
import { type Arm, arms, Trace, type TraceOptions } from "./support/zipf-trace.ts";

/** K and V of a token: 36 layers, 8 heads of 128, bfloat16 (Qwen3-8B). */
const tokenBytes = 2 * 2 * 36 * 8 * 128;
const budgetsGib = [1, 10, 50];
const skews = [1.1, 1.5, 2.1];
const blockTokens = 16;
const concurrency = 64;
/** Of deferred over others in the hit ratio, where memory is short and few documents are asked for by most. */
const wantedLead = 1.8;

const traceOptions = {
  documentCount: 20_000,
  documentsPerPrompt: 10,
  documentTokens: 128,
  questionTokens: 32,
  answerTokens: 32,
  vocabSize: 64,
  blockTokens,
  seed: 1,
} satisfies Partial<TraceOptions>;

interface Cell {
  readonly budgetGib: number;
  readonly zipf: number;
  /** What the formula says of deferred over a copy a place. */
  readonly predicted: number;
  /** Documents that a cache has to keep to be less than `wantedLead` behind any other. */
  readonly documentsForLead: number;
  readonly served: Readonly<Record<Arm, Served>>;
}

function blocksOf(budgetGib: number): number {
  return Math.floor((budgetGib * 2 ** 30) / tokenBytes / blockTokens);
}

/** Popularity of the first `count` documents together, by Zipf's law, in shares of the first's. */
function popularity(count: number, zipf: number): number {
  return Array.from({ length: count }, (_, rank) => (rank + 1) ** -zipf).reduce((sum, share) => sum + share, 0);
}

/**
 * Hit ratio of a cache that knows no positions over one that has a copy for each of D places, where each keeps the most
 * popular of C documents that the budget holds (LazyAttention, arXiv 2606.04302):
 * sum of i^-a for i up to C, over the same up to C / D.
 */
function predictedRatio(budgetGib: number, zipf: number): number {
  const { documentCount, documentTokens, documentsPerPrompt: places } = traceOptions;
  const documents = Math.min(documentCount, Math.floor((blocksOf(budgetGib) * blockTokens) / documentTokens));
  return popularity(documents, zipf) / popularity(Math.floor(documents / places), zipf);
}

async function serveAll(serveArm: (arm: Arm) => Promise<Served>): Promise<Record<Arm, Served>> {
  const served: Partial<Record<Arm, Served>> = {};
  for (const arm of arms) served[arm] = await serveArm(arm);
  return served as Record<Arm, Served>;
}

async function measureHits(requestCount: number, say: (line: string) => void): Promise<Cell[]> {
  const cells: Cell[] = [];
  for (const zipf of skews) {
    const trace = new Trace({ ...traceOptions, requestCount, zipf });
    for (const budgetGib of budgetsGib) {
      say(`hit ratios, ${budgetGib} GiB, zipf ${zipf}`);
      const shared = { concurrency, warmUp: Math.floor(requestCount / 4), stepTokens: 8_192 };
      const served = await serveAll((arm) =>
        serve(trace, new CountingBackend(blocksOf(budgetGib), trace, concurrency), { arm, ...shared }),
      );
      const documentsForLead = trace.documentsOfShare(1 / wantedLead);
      cells.push({ budgetGib, zipf, predicted: predictedRatio(budgetGib, zipf), documentsForLead, served });
    }
  }
  return cells;
}

/** The least budget and the greatest skew, on the demo model: as many tokens of KV, fewer requests at a time. */
async function measureTimes(requestCount: number, say: (line: string) => void): Promise<Record<Arm, Served>> {
  const kv = { weightMode: "int8", kvType: "float16" } as const;
  const model = loadModel(demoModelFolder, numericMode(kv));
  const { layerCount, kvHeadCount, headDim, vocabSize } = model.config;
  const kvBytes = blocksOf(budgetsGib[0]) * blockTokens * 2 * 2 * layerCount * kvHeadCount * headDim;
  const trace = new Trace({ ...traceOptions, requestCount, vocabSize, zipf: skews[skews.length - 1] });
  const sizes = { kvBytes, blockTokens, threadCount: 2, maxRows: 512, maxLogitRows: concurrency };
  return serveAll(async (arm) => {
    say(`times to the first token, ${arm}`);
    const backend = await CpuBackend.open(model, { ...kv, ...sizes });
    try {
      const warmUp = Math.floor(requestCount / 4);
      return await serve(trace, backend, { arm, concurrency: 8, warmUp, stepTokens: sizes.maxRows });
    } finally {
      await backend.dispose();
    }
  });
}

function bars(cells: readonly Cell[], times: Readonly<Record<Arm, Served>>): Bar[] {
  const hardest = cells.find(({ budgetGib, zipf }) => budgetGib === budgetsGib[0] && zipf === skews[skews.length - 1]);
  if (hardest === undefined) throw new Error("the hardest cell was not measured");
  const { deferred, relocation, "a copy a place": placed } = hardest.served;
  const where = `${hardest.budgetGib} GiB, zipf ${hardest.zipf}`;
  const leads = cells.map(({ served }) => served.deferred.hitRatio / served.relocation.hitRatio);
  return [
    atLeast(`hit ratio, deferred / relocation, ${where}`, deferred.hitRatio / relocation.hitRatio, wantedLead),
    atLeast(
      `tokens missed, relocation / deferred, ${where}`,
      (1 - relocation.hitRatio) / (1 - deferred.hitRatio),
      wantedLead,
    ),
    atLeast(`hit ratio, deferred / a copy a place, ${where}`, deferred.hitRatio / placed.hitRatio, wantedLead),
    atLeast("hit ratio, deferred / relocation, least of all", Math.min(...leads), 0.99),
    atLeast("ttft, relocation / deferred, demo model", medianTtft(times.relocation) / medianTtft(times.deferred), 1),
  ];
}

function medianTtft({ ttftMs }: Served): number {
  return median([...ttftMs]);
}

function row(cell: Cell, arm: Arm): string[] {
  const { hitRatio, runningRequests, copiesPerBlock, movedShare } = cell.served[arm];
  const { deferred } = cell.served;
  return [
    `${cell.budgetGib} GiB, zipf ${cell.zipf}`,
    arm,
    hitRatio.toFixed(4),
    figure(deferred.hitRatio / hitRatio),
    arm === "a copy a place" ? figure(cell.predicted) : "",
    figure(runningRequests),
    figure(copiesPerBlock),
    figure(movedShare),
    "",
    "",
  ];
}

function timesRow(arm: Arm, served: Readonly<Record<Arm, Served>>): string[] {
  const { hitRatio, runningRequests, copiesPerBlock, movedShare, requestsPerSecond } = served[arm];
  const lead = figure(served.deferred.hitRatio / hitRatio);
  const means = [figure(runningRequests), figure(copiesPerBlock), figure(movedShare)];
  return [
    "demo model",
    arm,
    hitRatio.toFixed(4),
    lead,
    "",
    ...means,
    figure(medianTtft(served[arm])),
    figure(requestsPerSecond),
  ];
}

/** What was found; times are of a model only. */
function found(served: Readonly<Record<Arm, Served>>): Record<string, unknown> {
  return Object.fromEntries(
    arms.map((arm) => {
      const { ttftMs: _times, requestsPerSecond: _rate, ...means } = served[arm];
      return [arm, means];
    }),
  );
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const cells = await measureHits(Number(option("zipf-requests") ?? 1_500), say);
  const times = await measureTimes(Number(option("zipf-timed") ?? 80), say);
  const { documentCount, documentsPerPrompt, documentTokens, questionTokens, answerTokens } = traceOptions;
  const prompt = `${documentsPerPrompt} of ${documentCount} documents of ${documentTokens} tokens in random order`;
  return {
    model: "KV of Qwen3-8B (36 layers, 8 heads of 128, bfloat16); demo model, int8, for times",
    header: ["trace", "kept", "hit ratio", "deferred /", "formula", "running", "copies", "moved", "ttft ms", "req/s"],
    rows: [...cells.flatMap((cell) => arms.map((arm) => row(cell, arm))), ...arms.map((arm) => timesRow(arm, times))],
    notes: [
      `${prompt}, a question of ${questionTokens}, an answer of ${answerTokens}; ${concurrency} requests at a time (demo model: 8).`,
      "running: requests that the budget lets run, mean. copies: blocks for each that holds something different. moved: of",
      "what was found, turned or copied to another place. demo model: as many tokens of KV as 1 GiB holds above.",
      `At zipf 2.1 ${cells[cells.length - 1].documentsForLead} documents are ${figure(100 / wantedLead)}% of all uses: who keeps these, in whatever way, finds more`,
      `than 1/${wantedLead} of what anybody can find. The least budget holds ${Math.floor((blocksOf(budgetsGib[0]) * blockTokens) / documentTokens)}.`,
    ],
    bars: bars(cells, times),
    details: {
      cells: cells.map(({ served, ...cell }) => ({ ...cell, served: found(served) })),
      times: Object.fromEntries(arms.map((arm) => [arm, { ...times[arm], ttftMs: medianTtft(times[arm]) }])),
    },
  };
}

export const zipfBench: Bench = {
  name: "zipf",
  summary: "hit ratio and TTFT at KV budgets of 1, 10, 50 GiB over skewed documents at random places",
  options: {
    "zipf-requests": "requests of each trace that hit ratios are of (default 1500)",
    "zipf-timed": "requests of the trace on the demo model (default 80)",
  },
  run,
};
