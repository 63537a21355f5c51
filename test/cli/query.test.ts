/** `spangate query` and `spangate explain` as processes, against a server that answers what the test says. */
import { afterAll, beforeEach, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { q } from "spangate/query";

const main = join(import.meta.dir, "..", "..", "gateway", "cli", "main.ts");
const dir = await mkdtemp(join(tmpdir(), "spangate-query-"));
const seen: { path: string; body: unknown }[] = [];
let answer: () => Response;
const server = Bun.serve({
  port: 0,
  async fetch(request) {
    const { pathname, search } = new URL(request.url);
    seen.push({ path: pathname + search, body: await request.json() });
    return answer();
  },
});
afterAll(async () => {
  await server.stop(true);
  await rm(dir, { recursive: true });
});
beforeEach(() => {
  seen.length = 0;
});

async function run(args: readonly string[], stdin = "") {
  const env = { PATH: process.env.PATH ?? "", SPANGATE_URL: server.url.origin, SPANGATE_API_KEY: "sk-test" };
  const child = Bun.spawn([process.execPath, main, ...args], {
    cwd: dir,
    env,
    stdin: new TextEncoder().encode(stdin),
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdout, stderr, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { stdout, stderr, code };
}

const facts = {
  usage: { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10, prompt_tokens_details: { cached_tokens: 5 } },
  spangate: {
    ...{ request_id: "r", worker: "worker-0", queue_ms: 0, prefill_ms: 1, ttft_ms: 2, spans: [] },
    prepared: { tokens: 4, computed_tokens: 1 },
    generates: [
      {
        path: "$.g",
        index: 0,
        prompt_tokens: 7,
        completion_tokens: 3,
        cached_tokens: 5,
        ttft_ms: 2,
        finish_reason: "stop",
      },
    ],
  },
};
const whole = (texts: readonly string[]) =>
  Response.json({
    object: "chat.completion",
    choices: texts.map((content, index) => ({ index, message: { role: "assistant", content }, finish_reason: "stop" })),
    ...facts,
  });
const query = q.g({ model: "m" }, q.user("hello"));
const sent = { g: { model: "m", max_tokens: 0, temperature: 0.6, input: { user: "hello" } } };

test("runs a YAML file, and says with --stats what it took", async () => {
  answer = () => whole(["Hi.", "Ho."]);
  await Bun.write(join(dir, "q.yaml"), "g:\n  model: m\n  input: {user: hello}\n");
  const { stdout, stderr, code } = await run(["query", "q.yaml", "--stats"]);
  expect(code).toBe(0);
  expect(stdout).toBe("Hi.\n\n--- 2 ---\nHo.\n");
  expect(stderr).toContain(
    "prompt 7 tokens, 5 cached · answer 3 tokens · prepared 4 tokens, 1 computed · worker-0\n$.g #0",
  );
  expect(seen).toEqual([{ path: "/v1/query/execute?stream=false", body: sent }]);
});

test("streams from stdin", async () => {
  const chunk = (index: number, content: string, finish: string | null) =>
    `data: ${JSON.stringify({ object: "chat.completion.chunk", choices: [{ index, delta: { content }, finish_reason: finish }] })}\n\n`;
  const last = `data: ${JSON.stringify({ object: "chat.completion.chunk", choices: [], ...facts })}\n\ndata: [DONE]\n\n`;
  answer = () =>
    new Response([chunk(1, "Ho", null), chunk(0, "Hi", "stop"), chunk(1, ".", "stop"), last].join(""), {
      headers: { "content-type": "text/event-stream" },
    });
  const { stdout, stderr, code } = await run(["query", "-", "--stream"], JSON.stringify(query));
  expect({ stdout, stderr, code }).toEqual({ stdout: "Hi\n\n--- 2 ---\nHo.\n", stderr: "", code: 0 });
  expect(seen).toEqual([{ path: "/v1/query/execute?stream=true", body: sent }]);
});

test("a query that is wrong is refused here, with file and path; a wrong flag is wrong usage", async () => {
  await Bun.write(join(dir, "bad.json"), JSON.stringify(q.g({ max_tokens: -1 }, "x")));
  const refused = await run(["query", "bad.json"]);
  expect(refused).toMatchObject({ code: 1, stdout: "" });
  expect(refused.stderr).toStartWith("spangate query: bad.json: $.g.max_tokens: must be a whole number from 0");
  expect(await run(["query", "-", "--format", "xml"])).toMatchObject({ code: 2 });
  expect(seen).toEqual([]);
});

test("the server's refusal is one sentence; so is its absence", async () => {
  const error = { message: "$.g.model: no such model.", code: "model_not_found", param: "$.g.model" };
  answer = () => Response.json({ error }, { status: 404 });
  const refused = await run(["query", "-"], JSON.stringify(query));
  expect(refused).toMatchObject({ code: 1, stdout: "" });
  expect(refused.stderr).toBe("spangate query: the server answered 404 (model_not_found): $.g.model: no such model.\n");
  const absent = await run(["query", "-", "--url", "http://127.0.0.1:9"], JSON.stringify(query));
  expect(absent.stderr).toBe(
    'spangate query: no server answers at http://127.0.0.1:9; start one with "bun run spangate serve --dev", or name another with --url\n',
  );
});

test("explain draws before and after, names the rules, and writes SVG", async () => {
  const drawing = { before: { text: "g\n└─ a", svg: "<svg>1</svg>" }, after: { text: "g\n└─ b", svg: "<svg>2</svg>" } };
  answer = () =>
    Response.json({ query: sent, steps: [{ rule: "sort", path: "$.g" }], rewritten: sent, plan: [], drawing });
  const { stdout, code } = await run(
    ["explain", "-", "--svg", "after.svg", "--svg-before", "before.svg"],
    JSON.stringify(query),
  );
  expect(code).toBe(0);
  expect(stdout).toBe("Query\ng\n└─ a\n\nRules\n  sort  $.g\n\nRewritten\ng\n└─ b\n");
  expect(await Bun.file(join(dir, "after.svg")).text()).toBe("<svg>2</svg>");
  expect(await Bun.file(join(dir, "before.svg")).text()).toBe("<svg>1</svg>");
  expect(seen).toEqual([{ path: "/v1/query/explain", body: sent }]);
});
