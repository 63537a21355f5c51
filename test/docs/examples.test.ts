/**
 * The examples of the documents, run: what stands in README and docs as shell with curl and the command line, and as
 * TypeScript, against a server with the demo model.
 */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readSse } from "../../gateway/client/sse.ts";
import { cacheEvents, kvEvents } from "../../gateway/http/admin/cache-events.ts";
import { type Example, examples } from "../../gateway/http/openapi/examples.ts";
import type { Json, JsonObject } from "../../gateway/http/openapi/json.ts";
import { jobAnswer } from "../../gateway/http/transport/answer-schemas.ts";
import type { RouteAbout } from "../../gateway/http/transport/route.ts";
import { readText, repositoryRoot } from "../support/import-graph.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

setDefaultTimeout(120_000);

interface Block {
  readonly file: string;
  readonly language: string;
  readonly code: string;
}

/** Fenced blocks of a document, of the languages that are run. */
function blocksOf(file: string): readonly Block[] {
  const fences = readText(file).matchAll(/^```(sh|ts|python)\n([\s\S]*?)^```/gm);
  return [...fences].map(([, language = "", code = ""]) => ({ file, language, code }));
}

const blocks = ["README.md", "docs/quickstart-cpu.md", "docs/api.md"].flatMap(blocksOf);
/** Shell that asks a server; what installs or starts one is run by test/packages and test/cli. */
const shells = blocks.filter(
  ({ language, code }) => language === "sh" && /\$SPANGATE_URL\/|spangate (?:query|explain)/.test(code),
);
const scripts = blocks.filter(({ language }) => language === "ts");
const pythons = blocks.filter(({ language }) => language === "python");

interface World {
  readonly server: TestServer;
  readonly tenant: TestTenant;
  /** With the file that examples upload. */
  readonly folder: string;
  readonly fileId: string;
  readonly storeId: string;
}
const context: { world?: World } = {};

beforeAll(async () => {
  const server = await startTestServer();
  const tenant = await server.tenant("reader");
  const folder = mkdtempSync(join(tmpdir(), "spangate-examples-"));
  symlinkSync(join(repositoryRoot, "node_modules"), join(folder, "node_modules"));
  writeFileSync(join(folder, "handbook.md"), "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.\n");
  const form = new FormData();
  form.set("purpose", "assistants");
  form.set("file", new File(["Mara Ellison works as a cartographer."], "other.md"));
  const headers = { authorization: `Bearer ${tenant.apiKey}` };
  const uploaded = await fetch(`${server.url}/v1/files`, { method: "POST", headers, body: form });
  const { id: fileId } = (await uploaded.json()) as { id: string };
  const { id: storeId } = await tenant.client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "store" });
  context.world = { server, tenant, folder, fileId, storeId };
});
afterAll(async () => {
  if (context.world === undefined) return;
  await context.world.server[Symbol.asyncDispose]();
  rmSync(context.world.folder, { recursive: true, force: true });
});

/** @returns what it wrote, both streams together. @throws Error with that when it fails */
async function run(argv: readonly string[]): Promise<string> {
  const { server, tenant, folder } = context.world as World;
  const env = { ...process.env, SPANGATE_URL: server.url, SPANGATE_API_KEY: tenant.apiKey };
  const child = Bun.spawn([...argv], { cwd: folder, env, stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [out, errors, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0) throw new Error(`${code}: ${out}${errors}`);
  return out + errors;
}

/** The block as it is, but for this server's address and ids in place of those that a reader fills in. */
function runnable(code: string): string {
  const { fileId, storeId } = context.world as World;
  return code
    .replace(/^export SPANGATE_URL.*$/gm, "")
    .replaceAll("bun run spangate", `"${process.execPath}" "${join(repositoryRoot, "gateway/cli/main.ts")}"`)
    .replaceAll("vs_…", storeId)
    .replaceAll("file-…", fileId);
}

/** Routes whose answers have no schema: /docs shows what they answered to its example. */
const answered = [
  ...["POST /v1/chat/completions", "POST /v1/responses", "POST /v1/messages", "POST /v1/messages/count_tokens"],
  ...["POST /v1/completions", "POST /tokenize", "POST /detokenize", "POST /v1/embeddings", "POST /v1/rerank"],
  ...["POST /v1/query/execute", "POST /v1/query/prepare", "POST /v1/query/explain", "GET /admin/v1/cache"],
] as const;
const answersFile = join(repositoryRoot, "gateway/http/openapi/example-answers.json");

/** What the server answers to the route's example. */
async function answerOf(route: string): Promise<JsonObject> {
  const { server, tenant } = context.world as World;
  const [method = "", path = ""] = route.split(" ");
  const { json, text } = (examples as Readonly<Record<string, Example>>)[route] ?? {};
  const key = path.startsWith("/admin") ? server.adminKey : tenant.apiKey;
  const headers = { authorization: `Bearer ${key}`, "content-type": text?.type ?? "application/json" };
  const body = text?.body ?? JSON.stringify(json);
  const response = await fetch(server.url + path, { method, headers, ...(method === "GET" ? {} : { body }) });
  expect(response.status, route).toBe(200);
  return (await response.json()) as JsonObject;
}

/** Routes that stream events: /docs shows one of each name that the server sent. */
const streamed = {
  "GET /admin/v1/cache/events": cacheEvents,
  "GET /admin/v1/kv-events": kvEvents,
  "GET /admin/v1/jobs/:job_id/events": { job: { data: jobAnswer } },
} as const satisfies Readonly<Record<string, RouteAbout["events"]>>;
const streamRoutes = Object.keys(streamed) as readonly (keyof typeof streamed)[];

/**
 * The first event of each name, up to the one that says that all was told, or the stream's end; changes of the cache are
 * told by the second, so the first may come later. Each event must be as the description says.
 */
async function eventsOf(route: keyof typeof streamed, jobId: string): Promise<readonly JsonObject[]> {
  const { server, tenant } = context.world as World;
  const path = (route.split(" ")[1] ?? "").replace(":job_id", jobId);
  const key = path.includes("/jobs/") ? tenant.apiKey : server.adminKey;
  const response = await fetch(server.url + path, { headers: { authorization: `Bearer ${key}` } });
  expect(response.status, route).toBe(200);
  const found = new Map<string, JsonObject>();
  for await (const sent of readSse(response.body as ReadableStream<Uint8Array>)) {
    const event = { ...sent, data: JSON.parse(sent.data) as Json };
    expectDescribed(route, event);
    if (!found.has(sent.event)) found.set(sent.event, event);
    if (found.has("current") && (found.has("change") || !("change" in streamed[route]))) break;
  }
  return Object.keys(streamed[route])
    .map((name) => found.get(name))
    .filter((event) => event !== undefined);
}

function expectDescribed(route: keyof typeof streamed, event: JsonObject): void {
  const described: RouteAbout["events"] = streamed[route];
  const { data } = described?.[String(event.event)] ?? {};
  expect(data?.safeParse(event.data).error?.issues ?? [], `${route} ${event.event}`).toEqual([]);
  expect(data, `${route} ${event.event}`).toBeDefined();
}

/** As it is shown: without ids, long texts and long lists of numbers cut. */
function shown(value: Json): Json {
  if (typeof value === "string") {
    const named = value.replace(/(req|tenant|file|frag|vs)_?-?[0-9a-z]{24,32}/g, "$1_…");
    return named.length > 240 ? `${named.slice(0, 240)}…` : named;
  }
  if (Array.isArray(value)) return (value.length > 3 && isNumberOrKey(value[0]) ? value.slice(0, 3) : value).map(shown);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, shown(field)]));
}

const isNumberOrKey = (value: Json | undefined): boolean =>
  typeof value === "number" || (typeof value === "string" && /^[0-9a-f]{32}$/.test(value));

/** Names of fields and types of values; of a list those of its first entry. */
function shapeOf(value: Json): unknown {
  if (Array.isArray(value)) return value.length === 0 ? [] : [shapeOf(value[0] as Json)];
  if (typeof value !== "object" || value === null) return value === null ? "null" : typeof value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, shapeOf(field)]));
}

describe("examples of", () => {
  test("answers that /docs shows have the shape that the server gives them", async () => {
    const found: Record<string, Json> = {};
    for (const route of answered) found[route] = shown(await answerOf(route));
    const { tenant, storeId } = context.world as World;
    const prepare = `/admin/v1/vector_stores/${storeId}/prepare`;
    const { id: jobId } = await tenant.client.json<{ id: string }>("POST", prepare, {});
    for (const route of streamRoutes) found[route] = shown(await eventsOf(route, jobId));
    // SPANGATE_RECORD=1 takes over what the server says now; `bun run format` lays it out.
    if (process.env.SPANGATE_RECORD === "1") writeFileSync(answersFile, `${JSON.stringify(found, null, 2)}\n`);
    const kept = JSON.parse(readFileSync(answersFile, "utf8")) as JsonObject;
    for (const route of answered) expect(shapeOf(kept[route] ?? null), route).toEqual(shapeOf(found[route] ?? null));
    for (const route of streamRoutes) {
      const events = kept[route] as readonly JsonObject[];
      for (const event of events) expectDescribed(route, event);
      expect(events.map(({ event }) => event)).toEqual((found[route] as typeof events).map(({ event }) => event));
    }
    expect(Object.keys(kept)).toEqual([...answered, ...streamRoutes]);
  });

  test("the documents are found", () => {
    expect(shells.map(({ file }) => file)).toEqual([
      "README.md",
      "docs/quickstart-cpu.md",
      "docs/api.md",
      "docs/api.md",
      "docs/api.md",
    ]);
    expect([scripts.length, pythons.length]).toEqual([1, 2]);
  });

  for (const [index, { file, code }] of shells.entries()) {
    test(`${file}, shell ${index + 1}`, async () => {
      const strict = 'set -e\ncurl() { command curl --fail-with-body "$@"; }\n';
      const written = await run(["bash", "-c", strict + runnable(code)]);
      expect(written).toMatch(code.includes("extension of Jon Vale") ? /3057/ : /"(?:id|object)"|Mara Ellison/);
    });
  }

  for (const { file, code } of scripts) {
    test(`${file}, TypeScript`, async () => {
      const { folder } = context.world as World;
      writeFileSync(join(folder, "example.ts"), code);
      expect(await run([process.execPath, "example.ts"])).toContain("3057");
    });
  }

  for (const [index, { file, code }] of pythons.entries()) {
    const imported = code.includes("openai") ? "openai" : "json";
    const isThere = Bun.spawnSync(["python3", "-c", `import ${imported}`]).success;
    if (!isThere) process.stdout.write(`skipped: python3 with ${imported} is not on this machine\n`);
    test.skipIf(!isThere)(`${file}, Python ${index + 1}`, async () => {
      const { folder } = context.world as World;
      writeFileSync(join(folder, "example.py"), code);
      expect(await run(["python3", "example.py"])).toContain("3057");
    });
    // Without the package that it imports, it is at least Python.
    test.skipIf(isThere || Bun.which("python3") === null)(`${file}, Python ${index + 1}, read alone`, async () => {
      const { folder } = context.world as World;
      writeFileSync(join(folder, "example.py"), code);
      await run(["python3", "-m", "py_compile", "example.py"]);
    });
  }
});
