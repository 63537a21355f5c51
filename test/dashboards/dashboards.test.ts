/** The Grafana board and the alert rules ask for what a server has: every query against the metrics of a real one. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { z } from "zod";
import { repositoryRoot } from "../support/import-graph.ts";
import { allReady, killWorker } from "../support/operator.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";
import { checkQuery, type Series, seriesOf } from "./promql.ts";

setDefaultTimeout(60_000);

const target = z.object({ expr: z.string(), legendFormat: z.string() });
const panel = z.looseObject({
  id: z.int(),
  type: z.string(),
  title: z.string(),
  description: z.string().optional(),
  targets: z.array(target).optional(),
  gridPos: z.object({ h: z.int(), w: z.int(), x: z.int(), y: z.int() }),
});
const variable = z.object({ name: z.string(), type: z.string(), definition: z.string().optional() });
const boardSchema = z.object({ panels: z.array(panel), templating: z.object({ list: z.array(variable) }) });
const rule = z.strictObject({
  alert: z.string(),
  expr: z.string(),
  for: z.string().optional(),
  labels: z.strictObject({ severity: z.enum(["critical", "warning", "info"]) }),
  annotations: z.strictObject({ summary: z.string(), description: z.string() }),
});
const rulesSchema = z.strictObject({ groups: z.tuple([z.strictObject({ name: z.string(), rules: z.array(rule) })]) });

const file = (path: string) => Bun.file(join(repositoryRoot, "deploy", path));
const board = boardSchema.parse(await file("grafana/spangate.json").json());
const { rules } = rulesSchema.parse(Bun.YAML.parse(await file("prometheus/alerts.yaml").text())).groups[0];
const graphs = board.panels.filter(({ type }) => type !== "row");
const queries = graphs.flatMap(({ title, targets = [] }) => targets.map((one) => ({ title, ...one })));

const context = { server: undefined as TestServer | undefined, series: new Map() as Series };

/** Answers, embeddings, and a run that fails: what the counters count from. */
beforeAll(async () => {
  const server = await startTestServer({ model: "one-layer", env: { SPANGATE_KV_DISK_BYTES: "64MiB" } });
  context.server = server;
  const { client, apiKey } = await server.tenant("acme");
  const ask = (content: string, tokens: number) =>
    client.json("POST", "/v1/chat/completions", {
      ...{ model: server.model, messages: [{ role: "user", content }] },
      ...{ max_tokens: tokens, min_tokens: tokens, ignore_eos: true },
    });
  await ask("Who is Anna?", 4);
  await client.json("POST", "/v1/embeddings", { model: server.model, input: "Anna" });
  const stream = await fetch(`${server.url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${apiKey}`, "content-type": "application/json" },
    body: JSON.stringify({
      ...{ model: server.model, messages: [{ role: "user", content: "Tell me a story." }] },
      ...{ stream: true, max_tokens: 1_000, min_tokens: 1_000, ignore_eos: true },
    }),
  });
  const reader = stream.body?.getReader();
  await reader?.read();
  await killWorker(server);
  // It ends with an error, which counts where nobody has left.
  while (!(await reader?.read())?.done);
  await allReady(server, 1);
  await ask("Who is Tom?", 4);
  await until(async () => {
    context.series = seriesOf(await metricsOf(server));
    const counted = ["spangate_kv_loads_total", "spangate_run_failures_total"];
    return counted.every((name) => (context.series.get(name) ?? []).length > 0);
  }, "the worker's figures and the failed run are counted");
});
afterAll(async () => await context.server?.[Symbol.asyncDispose]());

async function metricsOf({ adminKey, url }: TestServer): Promise<string> {
  const answer = await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${adminKey}` } });
  expect(answer.status).toBe(200);
  return await answer.text();
}

describe("the board", () => {
  test("asks for metrics and labels that a server has", () => {
    expect(queries.length).toBeGreaterThan(30);
    const wrong = queries.flatMap(({ title, expr }) =>
      checkQuery(expr, context.series).problems.map((what) => [title, what]),
    );
    expect(wrong).toEqual([]);
    const asked = queries.flatMap(({ expr }) => checkQuery(expr, context.series).selectors.map(({ name }) => name));
    expect(new Set(asked).size).toBeGreaterThan(25);
  });

  test("names in its legends labels that its queries keep", () => {
    for (const { title, expr, legendFormat } of queries) {
      const { resultLabels, selectors } = checkQuery(expr, context.series);
      const named = [...legendFormat.matchAll(/\{\{(\w+)\}\}/g)].map(([, label = ""]) => label);
      const kept =
        resultLabels ??
        selectors.flatMap(({ name }) => ["job", "instance", ...Object.keys(context.series.get(name)?.[0] ?? {})]);
      expect([title, named.filter((label) => !kept.includes(label))]).toEqual([title, []]);
    }
  });

  test("fills its variables from labels that there are, and uses no others", () => {
    const names = board.templating.list.map(({ name }) => name);
    const text = JSON.stringify(board.panels);
    const used = new Set([...text.matchAll(/\$\{?([a-z]+)\}?/g)].map(([, name = ""]) => name));
    expect([...used].sort()).toEqual(names.toSorted());
    for (const { definition = "" } of board.templating.list.filter(({ type }) => type === "query")) {
      const [, query = "", label = ""] = /^label_values\((.*), (\w+)\)$/.exec(definition) ?? [];
      const { problems, selectors } = checkQuery(query, context.series);
      const labels = ["job", ...Object.keys(context.series.get(selectors[0]?.name ?? "")?.[0] ?? {})];
      expect([definition, problems, labels.includes(label)]).toEqual([definition, [], true]);
    }
  });

  test("has panels side by side, each with a sentence that says what it shows", () => {
    expect(new Set(board.panels.map(({ id }) => id)).size).toBe(board.panels.length);
    for (const { title, description = "", targets = [] } of graphs) {
      expect([title, description.length > 20, targets.length > 0]).toEqual([title, true, true]);
    }
    const cells = board.panels.flatMap(({ gridPos: { h, w, x, y } }) =>
      Array.from({ length: h * w }, (_, index) => `${x + (index % w)},${y + Math.floor(index / w)}`),
    );
    expect(new Set(cells).size).toBe(cells.length);
    expect(board.panels.every(({ gridPos: { x, w } }) => x + w <= 24)).toBe(true);
  });
});

describe("the alert rules", () => {
  test("ask for metrics and labels that a server has", () => {
    expect(rules.length).toBeGreaterThanOrEqual(8);
    expect(
      rules.flatMap(({ alert, expr }) => checkQuery(expr, context.series).problems.map((what) => [alert, what])),
    ).toEqual([]);
  });

  test("name in their sentences labels that are left", () => {
    for (const { alert, expr, annotations } of rules) {
      const { resultLabels = ["job", "instance", "worker"] } = checkQuery(expr, context.series);
      const named = [
        ...Object.values(annotations)
          .join(" ")
          .matchAll(/\$labels\.(\w+)/g),
      ].map(([, label = ""]) => label);
      expect([alert, named.filter((label) => !resultLabels.includes(label))]).toEqual([alert, []]);
    }
  });

  test("have names of their own", () => {
    expect(new Set(rules.map(({ alert }) => alert)).size).toBe(rules.length);
  });
});

describe("the check itself", () => {
  const page = 'a_bucket{le="1"} 2\na_bucket{le="+Inf"} 2\nb{worker="w",tier="disk"} 1\nc 1\n# TYPE e gauge\n';
  const problems = (query: string) => checkQuery(query, seriesOf(page)).problems;

  test.each([
    "sum(rate(b[5m]))",
    'sum by (worker) (rate(b{tier="disk",job=~"$job"}[$__rate_interval])) / on(worker) b > 2',
    "histogram_quantile(0.9, sum by (le) (rate(a_bucket[5m])))",
    'b{worker=~"$worker"} or vector(0)',
    "c",
    'sum(e{job="a"})',
  ])("lets through %p", (query) => expect(problems(query)).toEqual([]));

  test.each([
    ["d", "no metric d"],
    ["sum(rate(b[5m])", "no PromQL"],
    ['b{wroker="w"}', "no label wroker"],
    ['b{tier="dsik"}', 'no tier="dsik"'],
    ["sum by (wroker) (b)", "no series has the label wroker"],
    ["sum(b) + sum(d)", "no metric d"],
    ['e{tier="disk"}', "e has no label tier"],
    ["1 + 1", "asks for no metric"],
    ["histogram_quantile(0.9, sum(rate(a_bucket[5m])))", "no buckets by le"],
    ["histogram_quantile(0.9, sum by (le) (rate(b[5m])))", "no buckets by le"],
  ])("finds what is wrong with %p", (query, problem) => expect(problems(query).join("\n")).toContain(problem));

  test("finds every metric of the board that is renamed", () => {
    const names = new Set(
      queries.flatMap(({ expr }) => checkQuery(expr, context.series).selectors.map(({ name }) => name)),
    );
    for (const name of names) {
      const without = new Map([...context.series].filter(([other]) => other !== name));
      expect([name, queries.some(({ expr }) => checkQuery(expr, without).problems.length > 0)]).toEqual([name, true]);
    }
  });
});
