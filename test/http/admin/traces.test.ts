/** Traces and statistics of the whole server, over a worker without a model: two tenants, two keys, an operator. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import type { z } from "zod";
import { statsAnswer, traceDetailsAnswer, traceListAnswer } from "../../../gateway/http/admin/trace-answers.ts";
import { type Caller, type FuzzWorld, model, openWorld } from "../../fuzz/world.ts";

let world: FuzzWorld;
let acme: Caller & { readonly member: string };
let beta: Caller;
let watcher: string;

beforeAll(async () => {
  world = await openWorld();
  const owner = await world.tenant("acme", ["inference", "tenant:admin"]);
  acme = { ...owner, member: await world.mint(owner.id, ["inference"]) };
  beta = await world.tenant("beta", ["inference", "tenant:admin"]);
  watcher = world.adminKey;
});
afterAll(async () => await world[Symbol.asyncDispose]());

const secret = "marzipan";

/** @returns the request's id */
async function ask(key: string, more: Readonly<Record<string, unknown>> = {}): Promise<string> {
  const body = { model, messages: [{ role: "user", content: `Who likes ${secret}?` }], max_tokens: 3, ...more };
  const answer = await world.call(key, "POST", "/v1/chat/completions", body);
  await answer.text();
  return answer.headers.get("x-request-id") ?? "";
}

async function read<Schema extends z.ZodType>(key: string, path: string, schema: Schema): Promise<z.infer<Schema>> {
  const answer = await world.call(key, "GET", `/admin/v1/${path}`);
  expect([path, answer.status]).toEqual([path, 200]);
  return schema.parse(await answer.json());
}
const list = (key: string, query = "") => read(key, `traces${query}`, traceListAnswer);
const listed = async (key: string, query = "") => (await list(key, query)).data.map(({ id }) => id);

/** What a caller is told of an id, without the ids themselves. */
async function answerTo(key: string, id: string): Promise<string> {
  const answer = await world.call(key, "GET", `/admin/v1/traces/${id}`);
  return `${answer.status} ${(await answer.text()).replaceAll(id, "<id>").replace(/req_[0-9a-f]{32}/g, "<own>")}`;
}

test("a request's stages lie in its time one after the other, and its fragments say where they were from", async () => {
  const documents = [
    { id: "first", text: `Anna likes ${secret}. `.repeat(30) },
    { id: "second", text: "Tom likes cake. ".repeat(30) },
  ];
  await ask(acme.apiKey, { documents: documents.slice(0, 1) });
  const id = await ask(acme.apiKey, { documents, stream: true });
  const trace = await read(acme.apiKey, `traces/${id}`, traceDetailsAnswer);
  expect(trace).toMatchObject({ id, tenant_id: acme.id, route: "POST /v1/chat/completions", status: 200, runs: 1 });
  expect(trace.failed).toBe(false);
  const names = ["lowering", "queue", "prefill", "first_token", "decode"];
  expect(trace.stages.map(({ name }) => name)).toEqual(names);
  expect(Object.keys(trace.stage_ms)).toEqual(names);
  for (const [at, stage] of trace.stages.entries()) {
    const before = trace.stages[at - 1];
    expect(stage.start_ms).toBeGreaterThanOrEqual((before?.start_ms ?? 0) + (before?.duration_ms ?? 0) - 0.05);
    expect(stage.start_ms + stage.duration_ms).toBeLessThanOrEqual(trace.duration_ms + 0.05);
    expect(stage.run).toBe(stage.name === "lowering" ? null : 0);
  }
  const [decode] = trace.stages.slice(-1);
  expect(Math.abs((trace.ttft_ms ?? 0) - (decode?.start_ms ?? -1))).toBeLessThan(0.05);
  expect(trace.queue_ms).toBe(trace.stage_ms.queue ?? -1);
  const [run] = trace.worker_runs;
  expect(run).toMatchObject({ run: 0, worker: "worker-0", finish_reason: "length", completion_tokens: 3 });
  expect([run?.prompt_tokens, run?.cached_tokens]).toEqual([trace.prompt_tokens, trace.cached_tokens]);
  expect(trace.fragments.map(({ id: name, source, worker }) => [name, source, worker])).toEqual([
    [null, "device", "worker-0"],
    [null, "computed", "worker-0"],
  ]);
  expect(trace.cached_tokens).toBeGreaterThan(0);
  // The list has the same sums.
  const { stages: _s, worker_runs: _w, fragments: _f, left_out: _l, ...head } = trace;
  expect((await list(acme.apiKey, "?limit=1")).data).toEqual([head]);
});

test("choices share their prompt, and parts beyond the bound are counted", async () => {
  const one = await read(acme.apiKey, `traces/${await ask(acme.apiKey)}`, traceDetailsAnswer);
  const many = await read(acme.apiKey, `traces/${await ask(acme.apiKey, { n: 16 })}`, traceDetailsAnswer);
  expect([many.runs, many.prompt_tokens, many.completion_tokens]).toEqual([16, one.prompt_tokens, 48]);
  expect([many.stages.length, many.left_out.stages, many.worker_runs.length]).toEqual([64, 16 * 4 + 1 - 64, 16]);
});

test("a request that fails is there with its status; one that only reads is not, nor one that is refused", async () => {
  const failed = await ask(acme.apiKey, { messages: [{ role: "user", content: "word ".repeat(200_000) }] });
  expect(await read(acme.apiKey, `traces/${failed}`, traceDetailsAnswer)).toMatchObject({ failed: true, status: 400 });
  const refused = await ask(acme.apiKey, { model: "no-such-model" });
  expect(await answerTo(acme.apiKey, refused)).toStartWith("404");
  expect((await list(acme.apiKey, "?limit=100")).data.every(({ route }) => route.startsWith("POST "))).toBe(true);
});

test("a key sees its own, a tenant's administrator the tenant's, an operator all; nobody sees a text", async () => {
  const [mine, members, theirs] = [await ask(acme.apiKey), await ask(acme.member), await ask(beta.apiKey)];
  expect((await listed(acme.apiKey)).slice(0, 2)).toEqual([members, mine]);
  expect(await listed(acme.member)).toEqual([members]);
  expect((await listed(watcher)).slice(0, 3)).toEqual([theirs, members, mine]);
  expect((await listed(watcher, `?tenant_id=${beta.id}`)).includes(mine)).toBe(false);
  const random = `req_${"0".repeat(32)}`;
  for (const [key, id] of [
    [beta.apiKey, mine],
    [beta.apiKey, members],
    [acme.member, mine],
    [acme.apiKey, theirs],
  ] as const) {
    expect(await answerTo(key, id)).toBe(await answerTo(key, random));
    const cursor = async (after: string) => (await world.call(key, "GET", `/admin/v1/traces?after=${after}`)).status;
    expect([await cursor(id), await cursor(random)]).toEqual([404, 404]);
  }
  expect(await listed(beta.apiKey, `?tenant_id=${acme.id}`)).toEqual([]);
  for (const id of [mine, members, theirs]) {
    const text = JSON.stringify(await read(watcher, `traces/${id}`, traceDetailsAnswer));
    expect(text).not.toContain(secret);
  }
});

test("pages, and the slowest first", async () => {
  for (let at = 0; at < 3; at++) await ask(acme.apiKey);
  const all = await listed(acme.apiKey, "?limit=100");
  const pages: string[] = [];
  for (let after = ""; ; ) {
    const page = await list(acme.apiKey, `?limit=2${after}`);
    pages.push(...page.data.map(({ id }) => id));
    if (!page.has_more) break;
    after = `&after=${page.last_id}`;
  }
  expect(pages).toEqual(all);
  const slowest = (await list(acme.apiKey, "?order=slowest&limit=100")).data.map((trace) => trace.duration_ms);
  expect(slowest).toEqual(slowest.toSorted((a, b) => b - a));
  expect(slowest).toHaveLength(all.length);
  const wrong = await world.call(acme.apiKey, "GET", `/admin/v1/traces?order=slowest&after=${all[0]}`);
  expect([wrong.status, ((await wrong.json()) as { error: { param: string } }).error.param]).toEqual([400, "after"]);
});

test("statistics are a tenant's own, a key's own, or everybody's; how busy the server is, operators alone learn", async () => {
  const gamma = await world.tenant("gamma", ["inference", "tenant:admin"]);
  const member = await world.mint(gamma.id, ["inference"]);
  const stats = (key: string, query = "") => read(key, `stats${query}`, statsAnswer);
  expect((await stats(gamma.apiKey)).total).toMatchObject({ requests: 0, ttft_ms: null, queue_ms: null });
  const before = (await stats(watcher)).total;
  await ask(gamma.apiKey);
  await ask(gamma.apiKey);
  await ask(member);
  const traces = (await list(gamma.apiKey)).data;
  const sum = (field: "prompt_tokens" | "cached_tokens" | "completion_tokens") =>
    traces.reduce((total, trace) => total + trace[field], 0);
  for (const resolution of ["minute", "quarter_hour"]) {
    const own = await stats(gamma.apiKey, `?resolution=${resolution}`);
    expect(own).toMatchObject({ tenant_id: gamma.id, resolution, covers: "all", now: null });
    expect(own.total).toMatchObject({ requests: 3, failed: 0, prompt_tokens: sum("prompt_tokens") });
    expect([own.total.cached_tokens, own.total.completion_tokens]).toEqual([
      sum("cached_tokens"),
      sum("completion_tokens"),
    ]);
    expect(own.data.reduce((total, { requests }) => total + requests, 0)).toBe(3);
    expect(own.total.ttft_ms?.p50).toBeGreaterThan(0);
  }
  expect(await stats(member)).toMatchObject({ covers: "recent", total: { requests: 1 }, now: null });
  const all = await stats(watcher);
  expect([all.tenant_id, all.total.requests, all.now?.waiting_requests]).toEqual([null, before.requests + 3, 0]);
  expect((await stats(watcher, `?tenant_id=${gamma.id}`)).total.requests).toBe(3);
  // Another tenant's are those of a tenant that does not exist.
  const asked = await stats(beta.apiKey, `?tenant_id=${gamma.id}`);
  const unknown = await stats(beta.apiKey, "?tenant_id=tenant_000000000000000000000000");
  expect(asked).toEqual(unknown);
  expect(asked.total.requests).toBe(0);
});

test("a tenant that is deleted leaves no trace", async () => {
  const gone = await world.tenant("gone", ["inference"]);
  const id = await ask(gone.apiKey);
  expect(await answerTo(watcher, id)).toStartWith("200");
  await world.call(watcher, "DELETE", `/admin/v1/tenants/${gone.id}`);
  expect(await answerTo(watcher, id)).toStartWith("404");
  expect((await read(watcher, `stats?tenant_id=${gone.id}`, statsAnswer)).total.requests).toBe(0);
});

test("where there is no memory for them, there are none", async () => {
  await using bare = await openWorld({ settings: { SPANGATE_TRACE_BYTES: "0" } });
  const answer = await bare.call(bare.caller.apiKey, "GET", "/admin/v1/traces");
  expect([answer.status, ((await answer.json()) as { data: unknown[] }).data]).toEqual([200, []]);
});
