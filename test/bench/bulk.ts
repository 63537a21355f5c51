/**
 * Prompt tokens that bulk queries over shared fragments compute, in the order they are given in and in the planner's,
 * with a KV pool of a tenth of the fragments. Each arm has a server of its own, so nothing is cached before.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";
import type { BulkItem } from "../../gateway/client/answers.ts";
import { SpanQueryClient } from "../../gateway/client/span-query-client.ts";
import { startTestServer } from "../support/server.ts";
import { planOrder, simulateOrder } from "../support/span-queries.ts";
import { atLeast, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { SpanTexts } from "./support/prompts.ts";
import { drawQueries, paperOrder, reuseDistances, type Workload } from "./support/reuse-order.ts";
import { figure, median } from "./support/stats.ts";
import { poolOf, workerCounters } from "./support/worker-stats.ts";

const fragmentTokens = 128;
const fragmentCount = 500;
const poolTokens = (fragmentCount * fragmentTokens) / 10;
/** Few, so that the pool holds what runs at the same time many times over. */
const concurrency = 2;

const orders = ["ingestion", "planned"] as const;
type Order = (typeof orders)[number];

const workloads: Readonly<Record<string, Workload>> = {
  "zipf 1.1": { queryCount: 1_000, fragmentsPerQuery: 4, fragmentCount, zipf: 1.1, seed: 11 },
  uniform: { queryCount: 400, fragmentsPerQuery: 4, fragmentCount, zipf: 0, seed: 12 },
};

interface Arm {
  readonly computedTokens: number;
  readonly hitTokens: number;
  readonly seconds: number;
  /** What the server says it ran in. */
  readonly orderUsed: string;
}

interface Simulated {
  readonly missTokens: number;
  readonly hitTokens: number;
  readonly medianReuseDistance: number;
}

interface WorkloadResult {
  readonly name: string;
  readonly queries: number;
  /** Every fragment that occurs, once. */
  readonly leastTokens: number;
  readonly arms: Readonly<Record<Order, Arm>>;
  readonly simulated: Readonly<Record<Order | "paper", Simulated>>;
}

/** Questions differ, so that fragments are all that queries share. */
function bulkItems(texts: readonly string[], queries: readonly (readonly number[])[]): BulkItem[] {
  return queries.map((fragments, index) => {
    const plus = fragments.map((fragment) => ({ fragment: { text: texts[fragment] ?? "" } }));
    const input = { cross: [{ plus }, { user: `Question ${index}?` }] };
    return { query: { g: { max_tokens: 1, temperature: 0, ignore_eos: true, input } } };
  });
}

async function runArm(items: readonly BulkItem[], order: Order, kvBytes: number): Promise<Arm> {
  await using server = await startTestServer({ env: { SPANGATE_KV_BYTES: String(kvBytes) } });
  const { apiKey } = await server.tenant("bench");
  const client = new SpanQueryClient({ url: server.url, apiKey });
  const before = await workerCounters(server);
  const startMs = performance.now();
  let orderUsed = "";
  for await (const line of client.bulk(items, { order, concurrency })) {
    if ("error" in line) throw new CommandError(`query ${line.id} failed: ${line.error.message}`);
    if ("bulk" in line) orderUsed = String(line.bulk.order);
  }
  const seconds = (performance.now() - startMs) / 1_000;
  const after = await workerCounters(server);
  return {
    computedTokens: after.computedTokens - before.computedTokens,
    hitTokens: after.hitTokens - before.hitTokens,
    seconds,
    orderUsed,
  };
}

function simulate(queries: readonly (readonly number[])[]): WorkloadResult["simulated"] {
  const uses = queries.map((fragments) => fragments.map((id) => ({ key: String(id), tokens: fragmentTokens })));
  const figures = (order: readonly number[]): Simulated => ({
    ...simulateOrder(uses, order, poolTokens),
    medianReuseDistance: median(reuseDistances(uses, order)),
  });
  return {
    ingestion: figures(queries.map((_, index) => index)),
    paper: figures(paperOrder(uses)),
    planned: figures(planOrder(uses, poolTokens).order),
  };
}

function rowsOf({ name, queries, leastTokens, arms, simulated }: WorkloadResult): string[][] {
  const arm = (order: Order) => [
    figure(arms[order].computedTokens),
    figure(arms[order].hitTokens),
    figure(arms[order].seconds),
  ];
  const inTheory = (order: Order | "paper") => [
    figure(simulated[order].missTokens),
    figure(simulated[order].medianReuseDistance),
  ];
  const head = [name, `${queries}`, figure(leastTokens)];
  return [
    [...head, "ingestion", ...arm("ingestion"), ...inTheory("ingestion")],
    [...head, "most overlap", "-", "-", "-", ...inTheory("paper")],
    [...head, "planned", ...arm("planned"), ...inTheory("planned")],
  ];
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const share = Number(option("share") ?? 1);
  if (!(share > 0 && share <= 1)) throw new CommandError("--share must be above 0 and at most 1");
  const spanTexts = new SpanTexts();
  say(`writing ${fragmentCount} fragments`);
  const texts = Array.from({ length: fragmentCount }, (_, index) => spanTexts.textOf(fragmentTokens, 20_000 + index));
  const { model, kvBytes } = await poolOf(poolTokens);
  const results: WorkloadResult[] = [];
  for (const [name, workload] of Object.entries(workloads)) {
    const queries = drawQueries({ ...workload, queryCount: Math.ceil(workload.queryCount * share) });
    const items = bulkItems(texts, queries);
    const runOrder = (order: Order): Promise<Arm> => {
      say(`${name}: ${queries.length} queries, ${order}`);
      return runArm(items, order, kvBytes);
    };
    const arms = { ingestion: await runOrder("ingestion"), planned: await runOrder("planned") };
    const leastTokens = new Set(queries.flat()).size * fragmentTokens;
    results.push({ name, queries: queries.length, leastTokens, arms, simulated: simulate(queries) });
  }
  const gain = (name: string): number => {
    const arms = results.find((result) => result.name === name)?.arms;
    return arms === undefined ? Number.NaN : arms.ingestion.computedTokens / arms.planned.computedTokens;
  };
  return {
    model,
    header: ["workload", "queries", "least", "order", "computed", "found", "s", "simulated", "reuse distance"],
    rows: results.flatMap(rowsOf),
    notes: [
      `${fragmentCount} fragments of ${fragmentTokens} tokens, 4 a query, a pool of ${poolTokens} tokens, ${concurrency} queries at a time.`,
      "computed, found: prompt tokens by the worker's counters. simulated: fragment tokens computed one query at a time.",
      "least: every fragment once. reuse distance: median, in tokens of other fragments. most overlap: the paper's order.",
    ],
    bars: [
      atLeast("zipf 1.1: tokens computed, ingestion / planned", gain("zipf 1.1"), 2),
      atLeast("uniform: tokens computed, ingestion / planned", gain("uniform"), 1),
    ],
    details: { fragmentTokens, poolTokens, concurrency, results },
  };
}

export const bulkBench: Bench = {
  name: "bulk",
  summary: "Tokens computed by bulk queries over shared fragments, as given and in the planner's order",
  options: { share: "X  part of the queries, above 0 to 1 (1)" },
  run,
};
