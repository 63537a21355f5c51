/**
 * Novel combinations of the same fragments, one after the other, in a pool that holds the fragments and not much more:
 * what each question leaves behind in the pool must not crowd the fragments out of it as time goes on.
 */
import { askChat } from "../../gateway/cli/support/operations.ts";
import { mapConcurrent } from "../bench/support/concurrent.ts";
import { fillerWords, SpanTexts } from "../bench/support/prompts.ts";
import { drawQueries } from "../bench/support/reuse-order.ts";
import { poolOf } from "../bench/support/worker-stats.ts";
import { startTestServer, type TestServerOptions } from "../support/server.ts";

export interface ReusePlan {
  readonly queries: number;
  readonly fragments: number;
  readonly fragmentTokens: number;
  /** The pool's tokens, in those of all fragments. */
  readonly poolShare: number;
  readonly server?: Pick<TestServerOptions, "model">;
  readonly say: (line: string) => void;
}

export interface Reuse {
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly ttftMs: number;
}

export interface ReuseReport {
  readonly model: string;
  /** One of each query, in order. */
  readonly queries: readonly Reuse[];
}

const fragmentsPerQuery = 4;
const atOnce = 4;
const answerTokens = 4;

export async function reuseOverTime(plan: ReusePlan): Promise<ReuseReport> {
  const { queries: queryCount, fragments: fragmentCount, fragmentTokens, poolShare, say } = plan;
  const { kvBytes } = await poolOf(fragmentCount * fragmentTokens * poolShare, plan.server);
  await using server = await startTestServer({ ...plan.server, env: { SPANGATE_KV_BYTES: String(kvBytes) } });
  const { client } = await server.tenant("reuse");
  const texts = new SpanTexts();
  const fragments = Array.from({ length: fragmentCount }, (_, index) => texts.textOf(fragmentTokens, 40_000 + index));
  const ask = async (ids: readonly number[], questionSeed: number): Promise<Reuse> => {
    const { usage, clientTtftMs } = await askChat(client, {
      model: server.model,
      messages: [{ role: "user", content: fillerWords(questionSeed, 12).join(" ") }],
      documents: ids.map((id) => ({ text: fragments[id] ?? "" })),
      temperature: 0,
      max_tokens: answerTokens,
      min_tokens: answerTokens,
      ignore_eos: true,
    });
    const { prompt_tokens: promptTokens, prompt_tokens_details: details } = usage;
    return { promptTokens, cachedTokens: details.cached_tokens, ttftMs: clientTtftMs };
  };
  // Every fragment is computed once before it counts.
  for (let id = 0; id < fragmentCount; id += fragmentsPerQuery) {
    const ids = Array.from({ length: fragmentsPerQuery }, (_, offset) => (id + offset) % fragmentCount);
    await ask(ids, 1_000_000 + id);
  }
  const queries = await mapConcurrent(novelSets(queryCount, fragmentCount), atOnce, async (ids, index) => {
    if (index % 500 === 499) say(`${index + 1} of ${queryCount} queries`);
    return await ask(ids, 2_000_000 + index);
  });
  return { model: server.model, queries };
}

/** Sets of fragments by chance, no two of them alike. */
function novelSets(count: number, fragmentCount: number): readonly number[][] {
  const drawn = drawQueries({ queryCount: 2 * count, fragmentsPerQuery, fragmentCount, zipf: 0, seed: 11 });
  const byName = new Map(drawn.map((ids) => [ids.toSorted((a, b) => a - b).join(" "), ids]));
  if (byName.size < count) throw new Error(`chance gave less than ${count} combinations of ${fragmentCount} fragments`);
  return [...byName.values()].slice(0, count);
}

/** Part of the prompts' tokens that was found. */
export function reuseRatio(queries: readonly Reuse[]): number {
  const sum = (field: keyof Reuse): number => queries.reduce((total, query) => total + query[field], 0);
  return sum("cachedTokens") / sum("promptTokens");
}
