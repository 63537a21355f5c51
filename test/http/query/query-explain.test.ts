import { describe, expect, test } from "bun:test";
import { yieldsDuring } from "../../support/yields.ts";
import { ask, post, queryRig, readyRig, refusalOf } from "../query-rig.ts";

const user = (text: string) => ({ user: text });
const g = (input: unknown, fields: object = {}) => ({
  g: { model: "", max_tokens: 4, temperature: 0, ...fields, input },
});
const judge = g({ seq: [{ plus: [g(user("a")), g(user("b"))] }, user("Which?")] });
const retrieve = (store: string) => ({ retrieve: { vector_store_ids: [store], query: "Anna", max_num_results: 2 } });

interface Explained {
  readonly query: unknown;
  readonly steps: readonly {
    readonly rule: string;
    readonly path: string;
    readonly before: unknown;
    readonly after: unknown;
  }[];
  readonly rewritten: unknown;
  readonly plan: readonly {
    readonly path: string;
    readonly place: string;
    readonly prompt_tokens: number;
    readonly runs: readonly {
      readonly kind: string;
      readonly span_id: string | null;
      readonly tokens: number;
      readonly block_keys: readonly string[];
      readonly known: boolean;
      readonly cached_tokens: number;
      readonly worker: string | null;
    }[];
  }[];
  readonly drawing: Readonly<Record<"before" | "after", { readonly text: string; readonly svg: string }>>;
}

async function explain(rig: Awaited<ReturnType<typeof readyRig>>, query: unknown, key = "key-a"): Promise<Explained> {
  const response = await post(rig, "explain", query, { key });
  expect(response.status).toBe(200);
  return (await response.json()) as Explained;
}

describe("who may", () => {
  test("a key without the scope may not, and one for preparing may prepare alone", async () => {
    const rig = await readyRig();
    const statuses = async (key: string) => {
      const paths = ["execute", "prepare", "explain"];
      return await Promise.all(paths.map(async (path) => (await post(rig, path, judge, { key })).status));
    };
    expect(await statuses("key-reader")).toEqual([403, 403, 403]);
    expect(await statuses("key-preparer")).toEqual([403, 200, 403]);
    expect(await statuses("no-key")).toEqual([401, 401, 401]);
  });

  test("no worker was ever ready: 503", async () => {
    const rig = queryRig({ openLink: () => ({ pid: 1, send: () => true, kill: () => undefined }) });
    const { status, code } = await refusalOf(post(rig, "execute", judge));
    expect([status, code]).toEqual([503, "not_ready"]);
  });

  test("more than a tenant's share at the same time: 429", async () => {
    const rig = await readyRig({ requestsPerTenant: 1 });
    const both = await Promise.all([post(rig, "execute", judge), post(rig, "execute", judge)]);
    expect(both.map(({ status }) => status).toSorted()).toEqual([200, 429]);
  });

  test("another tenant's stores and fragments are unknown, and its caches are not met", async () => {
    const rig = await readyRig();
    for (const input of [retrieve("vs_1"), { fragment: { id: "frag_1" } }]) {
      const theirs = await refusalOf(post(rig, "execute", g(input), { key: "key-b" }));
      expect(theirs.code).toBe("not_found");
      expect((await post(rig, "execute", g(input))).status).toBe(200);
    }
    const mine = await ask(rig, judge);
    const again = await ask(rig, judge);
    const theirs = await ask(rig, judge, "", "key-b");
    expect(again.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(
      mine.usage.prompt_tokens_details.cached_tokens,
    );
    expect(theirs.usage.prompt_tokens_details.cached_tokens).toBe(mine.usage.prompt_tokens_details.cached_tokens);
    expect(theirs.choices).toEqual(mine.choices);
    const explained = await explain(rig, judge, "key-b");
    const foreign = await explain(rig, judge);
    const keysOf = ({ plan }: Explained) => plan.flatMap(({ runs }) => runs.flatMap(({ block_keys }) => block_keys));
    expect(keysOf(explained).filter((key) => keysOf(foreign).includes(key))).toEqual([]);
  });
});

test.each(["prepare", "explain"])("%s stops when the caller has gone, without an error", async (path) => {
  const rig = await readyRig({ requestsPerTenant: 1 });
  const answer = await post(rig, path, judge, { signal: AbortSignal.abort() });
  expect([answer.status, await answer.text()]).toEqual([200, ""]);
  expect(rig.submits()).toEqual([]);
  // The tenant's only place is free again.
  expect((await post(rig, path, judge)).status).toBe(200);
});

describe("prepare", () => {
  test("makes resident what the query's prompts hold, and generates nothing; execute finds it", async () => {
    const rig = await readyRig();
    const query = g({ seq: [{ system: "Answer." }, retrieve("vs_1"), user("Who manages Anna?")] });
    const body = (await (await post(rig, "prepare", query)).json()) as {
      object: string;
      spans: { id: string; source: string; worker: string }[];
      tokens: number;
      computed_tokens: number;
    };
    expect(body.object).toBe("query.prepared");
    expect(body.spans.map(({ id, source, worker }) => [id, source, worker]).toSorted()).toEqual([
      ["frag_1", "computed", "worker-0"],
      ["frag_2", "computed", "worker-0"],
    ]);
    expect(body.computed_tokens).toBe(body.tokens);
    expect(rig.submits().map(({ params }) => params.maxTokens)).toEqual([0]);
    const answer = await ask(rig, query);
    expect(answer.usage.prompt_tokens_details.cached_tokens).toBe(body.tokens);
    const again = (await (await post(rig, "prepare", query)).json()) as typeof body;
    expect(again.computed_tokens).toBe(0);
  });

  test("generates nothing for a span that is only warmed either, and computes what leads to it", async () => {
    const rig = await readyRig();
    const read = g({ seq: [g(user("Inner.")), user("Read.")] }, { max_tokens: 1 });
    const query = g({ seq: [{ monad: { plus: [read] } }, user("Outer.")] });
    expect((await post(rig, "prepare", query)).status).toBe(200);
    expect(rig.submits().filter(({ params }) => params.maxTokens > 0)).toEqual([]);
    const explained = await explain(rig, query);
    const inner = explained.plan.find(({ path }) => path.endsWith("plus[0].g.input.seq[0]"));
    expect(inner?.runs[0]).toMatchObject({ known: true, cached_tokens: inner?.runs[0]?.tokens ?? 0 });
    const answer = await ask(rig, query);
    expect(answer.spangate.generates.map(({ path }) => path).toSorted()).toEqual(
      explained.plan.map(({ path }) => path).toSorted(),
    );
  });

  test("cannot search for what a generate would say", async () => {
    const rig = await readyRig();
    const searching = g({ retrieve: { vector_store_ids: ["vs_1"], query: g(user("Ask.")) } });
    for (const path of ["prepare", "explain"]) {
      const refusal = await refusalOf(post(rig, path, searching));
      expect(refusal).toMatchObject({ status: 400, param: "$.g.input.retrieve.query" });
    }
    const answer = await ask(rig, searching);
    expect(answer.spangate.generates.map(({ path }) => path)).toEqual(["$.g.input.retrieve.query", "$"]);
    expect(rig.searches.length).toBe(1);
  });
});

test("a search is given up when the client goes", async () => {
  const client = new AbortController();
  const seen: boolean[] = [];
  const onSearch = (signal: AbortSignal): void => {
    seen.push(signal.aborted);
    client.abort();
    seen.push(signal.aborted);
  };
  await post(await readyRig({ onSearch }), "explain", g(retrieve("vs_1")), { signal: client.signal });
  expect(seen).toEqual([false, true]);
});

describe("explain", () => {
  test("shows the query, each step, the plans and what is held, and runs nothing", async () => {
    const rig = await readyRig();
    const cold = await explain(rig, judge);
    expect(rig.submits()).toEqual([]);
    expect(cold.query).toEqual(judge);
    expect(cold.steps.map(({ rule }) => rule)).toContain("distribute-plus");
    expect(cold.plan.map(({ path }) => path).toSorted()).toEqual([
      "$",
      "$.g.input.seq[0].plus[0]",
      "$.g.input.seq[0].plus[1]",
    ]);
    const runs = cold.plan.at(-1)?.runs ?? [];
    expect(runs.filter(({ known }) => !known).length).toBeGreaterThanOrEqual(3);
    expect(runs.every(({ block_keys }) => block_keys.every((key) => /^[0-9a-f]{8}$/.test(key)))).toBe(true);
    expect(runs.every(({ cached_tokens, worker }) => cached_tokens === 0 && worker === null)).toBe(true);
    for (const { text, svg } of [cold.drawing.before, cold.drawing.after]) {
      expect(text.split("\n").length).toBeGreaterThan(4);
      expect(svg).toStartWith("<svg");
    }
    await ask(rig, judge);
    const warm = await explain(rig, judge);
    expect(warm.rewritten).toEqual(cold.rewritten);
    const held = warm.plan[0]?.runs[0];
    expect(held).toMatchObject({ cached_tokens: held?.tokens ?? 0, worker: "worker-0" });
    expect(warm.drawing.after.text).toContain(`${held?.tokens} held`);
  });

  test("shows the tree of judges where the server makes one", async () => {
    const rig = await readyRig({ reduceArity: 2 });
    const wide = g({ seq: [{ plus: ["a", "b", "c", "d"].map(user) }, user("Which?")] });
    const { steps, plan } = await explain(rig, wide);
    expect(plan.length).toBeGreaterThan(1);
    expect((await explain(await readyRig(), wide)).plan.length).toBe(1);
    expect(steps.length).toBeGreaterThan(0);
    expect((await ask(rig, wide)).spangate.generates.length).toBe(plan.length);
  });
});

test("a query at its limits is explained in slices with other work", async () => {
  const rig = await readyRig();
  const children = Array.from({ length: 400 }, (_, index) => g(user(`q${index}`)));
  const { result, yields } = await yieldsDuring(() => explain(rig, { plus: children }));
  const { plan, steps } = result;
  expect(plan.length + steps.length).toBeGreaterThanOrEqual(2);
  // One for each plan at least, and for each pass, print and drawing.
  expect(yields).toBeGreaterThan(plan.length + 8);
});
