/**
 * Usage tells the truth: over random mixed work of two tenants, what all answers said adds up to the usage of each
 * tenant and day and to the operators' counters.
 */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { fc } from "../support/fast-check.ts";
import { createStore, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(120_000);

const names = ["prompt", "completion", "cached", "write", "embedding"] as const;
type Tokens = Record<(typeof names)[number], number>;
const nothing: Tokens = { prompt: 0, completion: 0, cached: 0, write: 0, embedding: 0 };
const plus = (a: Tokens, b: Tokens): Tokens =>
  Object.fromEntries(names.map((name) => [name, a[name] + b[name]])) as Tokens;

interface Details {
  readonly cached_tokens: number;
  readonly cache_write_tokens: number;
}
const tokensOf = (prompt: number, completion: number, found: Details): Tokens => {
  return { prompt, completion, cached: found.cached_tokens, write: found.cache_write_tokens, embedding: 0 };
};
type OpenAiUsage = Record<"prompt_tokens" | "completion_tokens", number> & { readonly prompt_tokens_details: Details };
const ofOpenAi = (usage: OpenAiUsage): Tokens =>
  tokensOf(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details);
type ResponsesUsage = Record<"input_tokens" | "output_tokens", number> & { readonly input_tokens_details: Details };
const ofResponses = (usage: ResponsesUsage): Tokens =>
  tokensOf(usage.input_tokens, usage.output_tokens, usage.input_tokens_details);

interface MessagesUsage {
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cache_read_input_tokens: number;
  readonly cache_creation_input_tokens: number;
}
const ofMessages = (usage: MessagesUsage): Tokens => {
  const { cache_read_input_tokens: cached, cache_creation_input_tokens: write } = usage;
  const prompt = usage.input_tokens + cached + write;
  return { prompt, completion: usage.output_tokens, cached, write, embedding: 0 };
};

/** The last event that has this field, of an answer that may be a stream. */
function fieldOf<Value>(text: string, field: string): Value {
  const events = text.includes("data: ")
    ? text.split("\n").flatMap((line) => line.match(/^data: (\{.*)$/)?.[1] ?? [])
    : [text];
  const found = events
    .map((event) => JSON.parse(event))
    .flatMap((event) => event[field] ?? event.response?.[field] ?? []);
  return found.at(-1) as Value;
}

/** One kind of work: a request, and what its answer says of tokens. */
interface Work {
  readonly path: string;
  readonly body: (model: string, text: string, stream: boolean) => object | string;
  readonly tokens: (text: string) => Tokens;
}
const user = (content: string) => ({ role: "user", content });
const say = (user: string) => ({ user });
const g = (model: string, input: object) => ({ g: { model, max_tokens: 2, temperature: 0, input } });
const usageIn = (text: string): Tokens => ofOpenAi(fieldOf(text, "usage"));
const answered = { include_usage: true };
const works: readonly Work[] = [
  {
    path: "/v1/chat/completions",
    body: (model, text, stream) => {
      const documents = [{ text }, { text: "- Mira Holt works as a baker." }];
      const streaming = stream ? { stream, stream_options: answered } : {};
      return { model, messages: [user("who?")], documents, max_tokens: 3, n: 2, ...streaming };
    },
    tokens: usageIn,
  },
  {
    path: "/v1/completions",
    body: (model, text, stream) => {
      const streaming = stream ? { stream, stream_options: answered } : {};
      return { model, prompt: [text, `${text} again`, text], max_tokens: 2, n: 2, ...streaming };
    },
    tokens: usageIn,
  },
  {
    path: "/v1/responses",
    body: (model, text, stream) => ({ model, input: text, max_output_tokens: 3, stream }),
    tokens: (text) => ofResponses(fieldOf(text, "usage")),
  },
  {
    path: "/v1/messages",
    body: (model, text, stream) => ({ model, max_tokens: 3, messages: [user(text)], stream }),
    tokens: (text) => ofMessages(fieldOf(text, "usage")),
  },
  {
    path: "/v1/query/execute",
    body: (model, text) => {
      const draft = g(model, { seq: [say(text)] });
      return g(model, { seq: [{ plus: [say(text), draft, { repeat: { n: 2, ...draft } }] }, say("which?")] });
    },
    tokens: usageIn,
  },
  {
    path: "/v1/query/prepare",
    body: (model, text) => g(model, { seq: [{ plus: [say(text), say("a fact")] }, say("which?")] }),
    tokens: usageIn,
  },
  {
    path: "/v1/query/bulk",
    body: (model, text) =>
      [1, 2, 3]
        .map((id) => JSON.stringify({ custom_id: String(id), query: g(model, say(`${text} ${id}`)) }))
        .join("\n"),
    tokens: (text) =>
      ofOpenAi(fieldOf<{ usage: OpenAiUsage }>(`data: ${text.trim().split("\n").at(-1)}`, "bulk").usage),
  },
  {
    path: "/v1/embeddings",
    body: (model, text) => ({ model, input: [text, "more"] }),
    tokens: (text) => ({ ...nothing, embedding: fieldOf<{ total_tokens: number }>(text, "usage").total_tokens }),
  },
  {
    path: "/v1/rerank",
    body: (model, text) => ({ model, query: text, documents: ["one", text] }),
    tokens: (text) => ({ ...nothing, embedding: fieldOf<{ total_tokens: number }>(text, "usage").total_tokens }),
  },
];

describe("over random mixed work", () => {
  let server: TestServer;
  let tenants: readonly TestTenant[];
  const told = new Map<string, Tokens>();

  beforeAll(async () => {
    server = await startTestServer({ model: "one-layer" });
    tenants = [await server.tenant("one"), await server.tenant("two")];
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  const admin = async (path: string): Promise<string> =>
    await (await fetch(server.url + path, { headers: { authorization: `Bearer ${server.adminKey}` } })).text();
  const counted = (metrics: string, name: string): number =>
    [...metrics.matchAll(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\d+)$`, "gm"))].reduce(
      (sum, [, n]) => sum + Number(n),
      0,
    );
  interface Day {
    readonly day: string;
    readonly tenant_id: string;
    readonly requests: number;
    readonly prompt_tokens: number;
    readonly completion_tokens: number;
    readonly cached_tokens: number;
    readonly cache_write_tokens: number;
    readonly embedding_tokens: number;
  }
  const usage = async (): Promise<readonly Day[]> => JSON.parse(await admin("/admin/v1/usage?limit=100")).data;
  const ofDays = (days: readonly Day[]): Tokens =>
    days
      .map(
        (day): Tokens => ({
          prompt: day.prompt_tokens,
          completion: day.completion_tokens,
          cached: day.cached_tokens,
          write: day.cache_write_tokens,
          embedding: day.embedding_tokens,
        }),
      )
      .reduce(plus, nothing);

  const send = async ({ id, apiKey }: TestTenant, work: Work, text: string, stream: boolean): Promise<void> => {
    const streams = stream && !/embeddings|rerank|prepare|bulk/.test(work.path);
    const embeds = /embeddings|rerank/.test(work.path);
    const body = work.body(embeds ? "embedding-model" : server.model, text, streams && !work.path.includes("query"));
    const query = streams && work.path.includes("query") ? "?stream=true" : "";
    const response = await fetch(server.url + work.path + query, {
      method: "POST",
      headers: {
        authorization: `Bearer ${apiKey}`,
        "content-type": typeof body === "string" ? "application/x-ndjson" : "application/json",
      },
      body: typeof body === "string" ? body : JSON.stringify({ ...body, ...(embeds ? { model: embeddingModel } : {}) }),
    });
    const answer = await response.text();
    if (response.status !== 200) throw new Error(`${work.path}: ${answer}`);
    told.set(id, plus(told.get(id) ?? nothing, work.tokens(answer)));
  };
  let embeddingModel = "";

  test("answers, usage by tenant and day, and counters say the same", async () => {
    const [first] = tenants;
    if (first === undefined) throw new Error("no tenant");
    const probe = await first.client
      .json<{ error?: object }>("POST", "/v1/embeddings", { model: "?", input: "a" })
      .then(
        () => "",
        (error: unknown) => String(error),
      );
    embeddingModel = /has ([^ ]+)\./.exec(probe)?.[1] ?? "";
    const plan = fc.sample(
      fc.record({
        tenant: fc.nat(1),
        work: fc.nat(works.length - 1),
        text: fc.constantFrom(
          "The extension of Jon Vale is 3057.",
          "Ada Quill is in the research team of the house.",
          "x",
        ),
        stream: fc.boolean(),
      }),
      { numRuns: 60, seed: 7 },
    );
    expect(new Set(plan.map(({ work }) => work)).size).toBe(works.length);
    // Some at a time, as callers come: prompts are found and computed across each other.
    for (let at = 0; at < plan.length; at += 6) {
      await Promise.all(
        plan.slice(at, at + 6).map(({ tenant, work, text, stream }) => {
          const [caller, kind] = [tenants[tenant], works[work]];
          if (caller === undefined || kind === undefined) throw new Error("no such work");
          return send(caller, kind, text, stream);
        }),
      );
    }
    const days = await usage();
    for (const { id } of tenants) {
      expect(ofDays(days.filter(({ tenant_id }) => tenant_id === id))).toEqual(told.get(id) ?? nothing);
      for (const name of names) expect([name, (told.get(id) ?? nothing)[name] > 0]).toEqual([name, true]);
    }
    const all = ofDays(days);
    const metrics = await admin("/metrics");
    expect({
      prompt: counted(metrics, "vllm:prompt_tokens_total"),
      completion: counted(metrics, "vllm:generation_tokens_total"),
      cached: counted(metrics, "spangate_cached_tokens_total"),
      write: counted(metrics, "spangate_cache_write_tokens_total"),
      embedding: counted(metrics, "spangate_embedding_tokens_total"),
    }).toEqual(all);
    expect(days.reduce((sum, { requests }) => sum + requests, 0)).toBe(
      counted(metrics, "vllm:request_success_total") + counted(metrics, "spangate_embedding_requests_total"),
    );
  });

  test("a stream whose reader left is counted too", async () => {
    const left = await server.tenant("left");
    const body = { model: server.model, messages: [user("Tell me.")], max_tokens: 64, ignore_eos: true, stream: true };
    const response = await fetch(`${server.url}/v1/chat/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${left.apiKey}`, "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    const reader = (response.body as ReadableStream<Uint8Array>).getReader();
    await reader.read();
    await reader.cancel();
    for (;;) {
      const [day] = (await usage()).filter(({ tenant_id }) => tenant_id === left.id);
      if (day === undefined) {
        await Bun.sleep(5);
        continue;
      }
      expect([day.requests, day.prompt_tokens > 0, day.completion_tokens <= 64]).toEqual([1, true, true]);
      return;
    }
  });

  test("a batch's lines count as the requests that they are", async () => {
    const owner = await server.tenant("batches");
    const client = openaiClient(server.url, owner.apiKey);
    const body = { model: server.model, messages: [user("who?")], max_tokens: 2, n: 2 };
    const lines = ["1", "2"].map((id) => ({ custom_id: id, method: "POST", url: "/v1/chat/completions", body }));
    const file = new File([lines.map((line) => JSON.stringify(line)).join("\n")], "lines.jsonl");
    const { id } = await client.files.create({ file, purpose: "batch" });
    const wanted = { input_file_id: id, endpoint: "/v1/chat/completions", completion_window: "24h" } as const;
    let batch = await client.batches.create(wanted);
    while (!batch.output_file_id) {
      await Bun.sleep(5);
      batch = await client.batches.retrieve(batch.id);
    }
    const answers = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n");
    const all = answers.map((line) => ofOpenAi(JSON.parse(line).response.body.usage)).reduce(plus, nothing);
    expect(ofDays((await usage()).filter(({ tenant_id }) => tenant_id === owner.id))).toEqual(all);
  });

  test("a job that prepares a corpus counts its spans for its tenant", async () => {
    const owner = await server.tenant("owner");
    const storeId = await createStore(openaiClient(server.url, owner.apiKey), "facts", {
      "facts.md": "# One\n\nThe extension of Jon Vale is 3057.\n\n# Two\n\nMira Holt works as a baker.",
    });
    const of = <T>(method: string, path: string) =>
      owner.client.json<T>(method as "GET", `/admin/v1/${path}`, method === "GET" ? undefined : {});
    const { id } = await of<{ id: string }>("POST", `vector_stores/${storeId}/prepare`);
    while ((await of<{ status: string }>("GET", `jobs/${id}`)).status !== "completed") await Bun.sleep(5);
    const { data } = await of<{ data: readonly { span_tokens: number }[] }>(
      "GET",
      `vector_stores/${storeId}/fragments`,
    );
    const tokens = data.reduce((sum, { span_tokens }) => sum + span_tokens, 0);
    const mine = (await usage()).filter(({ tenant_id }) => tenant_id === owner.id);
    expect(ofDays(mine)).toEqual({ ...nothing, prompt: tokens, write: tokens });
  });
});
