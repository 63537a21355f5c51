/** Hostile lines of batches: each ends with an answer or an error of its own, and nothing of the server fails. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { fc } from "../support/fast-check.ts";
import { bodyOf } from "./bodies.ts";
import { jsonText } from "./json-text.ts";
import { hostileJson } from "./requests.ts";
import { type FuzzWorld, openWorld } from "./world.ts";

setDefaultTimeout(120_000);

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

interface Batch {
  readonly id: string;
  readonly status: string;
  readonly output_file_id: string | null;
  readonly error_file_id: string | null;
  readonly errors: { readonly data: readonly { readonly message: string; readonly line: number | null }[] } | null;
  readonly request_counts: { readonly total: number; readonly completed: number; readonly failed: number };
}

async function runBatch(endpoint: string, lines: readonly string[]): Promise<Batch> {
  const { apiKey } = world.caller;
  const form = new FormData();
  form.set("file", new File([lines.join("\n")], "lines.jsonl"));
  form.set("purpose", "batch");
  const { id } = (await (await world.call(apiKey, "POST", "/v1/files", form)).json()) as Batch;
  const wanted = { input_file_id: id, endpoint, completion_window: "24h" };
  const made = (await (await world.call(apiKey, "POST", "/v1/batches", wanted)).json()) as Batch;
  for (;;) {
    const batch = (await (await world.call(apiKey, "GET", `/v1/batches/${made.id}`)).json()) as Batch;
    if (["completed", "failed", "expired", "cancelled"].includes(batch.status)) return batch;
    await Bun.sleep(10);
  }
}

interface Result {
  readonly custom_id: string;
  readonly response: { readonly status_code: number; readonly body: object } | null;
  readonly error: object | null;
}

async function resultsOf({ output_file_id: output, error_file_id: errors }: Batch): Promise<readonly Result[]> {
  const read = async (file: string | null): Promise<readonly Result[]> => {
    if (file === null) return [];
    const text = await (await world.call(world.caller.apiKey, "GET", `/v1/files/${file}/content`)).text();
    return text
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line) as Result);
  };
  return [...(await read(output)), ...(await read(errors))];
}

/** What the file's check lets through, with the caller's ids in it. */
function usable(text: string): string | undefined {
  const filled = text.replace(/\{(\w+)\}/g, (all, name: string) => world.ids[name] ?? all);
  try {
    const body = JSON.parse(filled) as unknown;
    if (typeof body !== "object" || body === null || Array.isArray(body)) return undefined;
    return (body as { stream?: unknown }).stream === true ? undefined : filled;
  } catch {
    return undefined;
  }
}

test.each(["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"])("%s", async (endpoint) => {
  const route = world.routes.find(({ method, path }) => method === "POST" && path === endpoint);
  const kind = route === undefined ? undefined : bodyOf(route);
  if (kind === undefined) throw new Error(`no body for ${endpoint}`);
  const bodies = fc
    .sample(hostileJson(kind.value), { numRuns: 150 })
    .map((tree) => usable(jsonText(tree)))
    .filter((text) => text !== undefined && text.length < 100_000);
  const lines = bodies.map(
    (body, index) => `{"custom_id":"line-${index}","method":"POST","url":"${endpoint}","body":${body}}`,
  );
  const checked = await runBatch(endpoint, lines);
  // Lines that fail the file, as too costly JSON does, are named all together: the rest is then tried without them.
  const wrong = new Set((checked.errors?.data ?? []).map(({ line }) => line));
  const right = lines.filter((_, index) => !wrong.has(index + 1));
  expect(right.length).toBeGreaterThan(lines.length / 2);
  const batch = wrong.size === 0 ? checked : await runBatch(endpoint, right);
  expect([batch.status, batch.errors?.data.slice(0, 3) ?? []]).toEqual(["completed", []]);
  expect(batch.request_counts.total).toBe(right.length);
  const results = await resultsOf(batch);
  expect(new Set(results.map(({ custom_id: id }) => id)).size).toBe(right.length);
  const failed = results.filter(({ response }) => (response?.status_code ?? 500) >= 500);
  expect(failed.map(({ custom_id: id, error }) => [lines[Number(id.slice(5))]?.slice(0, 300), error])).toEqual([]);
  expect(world.faults).toEqual([]);
});

test("a line that is none, goes elsewhere or streams fails the file, by its number", async () => {
  const endpoint = "/v1/completions";
  const line = (fields: object) =>
    JSON.stringify({
      custom_id: "a",
      method: "POST",
      url: endpoint,
      body: { model: "fake-model", prompt: "a" },
      ...fields,
    });
  const wrong: readonly string[] = [
    ...["", "{", "null", "[]", '"x"', "{}", "\u0000", "[".repeat(50_000), `{"a":${"[".repeat(40_000)}`],
    line({ url: "/admin/v1/tenants" }),
    line({ url: `http://127.0.0.1:1${endpoint}` }),
    line({ url: `${endpoint}/../../admin/v1/tenants` }),
    line({ url: `${endpoint}?key=x` }),
    line({ method: "DELETE" }),
    line({ method: "POST /admin" }),
    line({ custom_id: "" }),
    line({ custom_id: "x".repeat(10_000) }),
    line({ custom_id: 5 }),
    line({ body: [] }),
    line({ body: null }),
    line({ body: { stream: true } }),
    line({ headers: { authorization: "Bearer x" } }),
  ];
  for (const text of wrong) {
    const batch = await runBatch(endpoint, [text]);
    expect([text.slice(0, 60), batch.status, batch.errors?.data.length]).toEqual([text.slice(0, 60), "failed", 1]);
    expect(batch.errors?.data[0]?.message.length ?? 0).toBeLessThan(300);
  }
  expect(world.faults).toEqual([]);
});
