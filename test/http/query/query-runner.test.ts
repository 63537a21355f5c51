/** Queries of a bulk request on the real engine: what they answer, how they end, and what the planner is told of them. */

import { describe, expect, test } from "bun:test";
import type { TenantId } from "../../../db/ids.ts";
import type { BulkRunner } from "../../../gateway/execute/bulk/bulk.ts";
import { queryRunner } from "../../../gateway/http/query/query.ts";
import { parseQuery } from "../../../gateway/query/parse.ts";
import { engineCard } from "../../contract/engine-link.ts";
import { ask, type QueryRig, readyRig } from "../query-rig.ts";

const user = (text: string) => ({ user: text });
const stored = (id: string) => ({ fragment: { id } });
const g = (input: unknown, fields: object = {}) => ({
  g: { model: "", max_tokens: 4, temperature: 0, ...fields, input },
});
const judge = g({ seq: [{ plus: [g(user("a")), g(user("b"))] }, user("Which?")] });
const over = (ids: readonly string[], question: string) => g({ seq: [{ plus: ids.map(stored) }, user(question)] });

const never = new AbortController().signal;
const runnerOf = ({ queries, limiter, metrics }: QueryRig, tenantId: TenantId = "tenant_a"): BulkRunner =>
  queryRunner({ queries, limiter, metrics, nowMs: () => 7_000, log: () => undefined }, tenantId);
const fragmentsOf = (rig: QueryRig, query: unknown, tenantId?: TenantId) =>
  runnerOf(rig, tenantId).fragments(parseQuery(query), never);

describe("a query of a bulk request", () => {
  test("answers as execute does, and counts all of its runs", async () => {
    const { choices, spangate, usage } = await ask(await readyRig(), judge);
    const rig = await readyRig();
    const answer = await runnerOf(rig).run(parseQuery(judge), "req_bulk.0", never);
    expect(answer.response).toMatchObject({ id: "chatcmpl-req_bulk.0", created: 7, choices, usage });
    expect(answer.response).toMatchObject({
      spangate: { generates: spangate.generates.map(({ path }) => ({ path })) },
    });
    expect(answer.usage).toMatchObject({
      promptTokens: usage.prompt_tokens,
      completionTokens: 12,
      cachedTokens: usage.prompt_tokens_details.cached_tokens,
    });
    expect(rig.metrics.render()).toContain('vllm:request_success_total{finished_reason="length"} 3');
  });

  test("that is aborted is no answer, and nothing of it runs on", async () => {
    const rig = await readyRig();
    const client = new AbortController();
    const long = g({ seq: [{ plus: [g(user("a"), { max_tokens: 1_500 })] }, user("Which?")] });
    const running = runnerOf(rig).run(parseQuery(long), "req_bulk.0", client.signal);
    const isRunning = () => rig.submits().some(({ params }) => params.maxTokens === 1_500);
    while (!isRunning()) await new Promise(setImmediate);
    client.abort();
    expect(await running.catch((error: unknown) => error)).toBeInstanceOf(Error);
    expect(rig.aborts().length).toBeGreaterThan(0);
  });

  test("fails by the path of what is wrong", async () => {
    const run = runnerOf(await readyRig()).run(parseQuery(over(["frag_9"], "Which?")), "req_bulk.0", never);
    expect(await run.catch((error: unknown) => error)).toMatchObject({
      code: "not_found",
      param: "$.g.input.seq[0].plus[0].fragment.id",
    });
  });
});

describe("what the planner is told", () => {
  test("a fragment has one key in every query, and the tokens of its blocks", async () => {
    const rig = await readyRig();
    const first = await fragmentsOf(rig, over(["frag_1", "frag_2"], "Who?"));
    const second = await fragmentsOf(rig, over(["frag_3", "frag_1"], "Where?"));
    const keys = new Set(first.map(({ key }) => key));
    const shared = second.filter(({ key }) => keys.has(key));
    expect(shared.length).toBe(1);
    // Two fragments and what stands behind them.
    expect([keys.size, second.length]).toEqual([3, 3]);
    for (const { tokens } of [...first, ...second]) {
      expect(tokens).toBeGreaterThan(0);
      expect(tokens % engineCard.blockTokens).toBe(0);
    }
    expect(rig.submits()).toEqual([]);
  });

  test("what depends on an output that is not there is left out; the prompts that lead to it are not", async () => {
    const rig = await readyRig();
    const inner = over(["frag_1"], "Who?");
    const alone = await fragmentsOf(rig, inner);
    const nested = await fragmentsOf(rig, g({ seq: [{ plus: [inner] }, user("Which?")] }));
    expect(nested.map(({ key }) => key).sort()).toEqual(alone.map(({ key }) => key).sort());
  });

  test("a search for what is still to be generated tells nothing; other errors are the query's own", async () => {
    const rig = await readyRig();
    const search = { retrieve: { vector_store_ids: ["vs_1"], query: g(user("a")), max_num_results: 1 } };
    expect(await fragmentsOf(rig, g({ seq: [search, user("Which?")] }))).toEqual([]);
    const foreign = await fragmentsOf(rig, over(["frag_1"], "Who?"), "tenant_b").catch((error: unknown) => error);
    expect(foreign).toMatchObject({ code: "not_found" });
  });
});
