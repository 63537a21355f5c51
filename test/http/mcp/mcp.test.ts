import { expect, test } from "bun:test";
import { chatRig, post } from "../chat-rig.ts";

const toolCall = (name: string, fields: object) => ({
  ...{ jsonrpc: "2.0", id: 7, method: "tools/call" },
  params: { name, arguments: fields },
});
const accept = "application/json, text/event-stream";
const send = (rig: Pick<ReturnType<typeof chatRig>, "app">, body: unknown, init: Parameters<typeof post>[2] = {}) =>
  post(rig.app, body, { path: "/mcp", headers: { accept }, ...init });
const ask = toolCall("ask", { question: "Who is the manager of Anna?", vector_store_ids: ["vs_1"], max_tokens: 9 });

test("a question is one request of its tenant's, with the passages in its prompt, and the key's place until its end", async () => {
  const rig = chatRig({ answer: () => "Tom." });
  const text = await (await send(rig, ask)).text();
  expect(JSON.parse(text.slice(text.indexOf("{")))).toMatchObject({
    id: 7,
    result: {
      structuredContent: {
        sources: [{ filename: "people.md", score: 0.9 }, { text: "Tom lives in Oslo." }],
      },
    },
  });
  expect(rig.queries).toEqual(["Who is the manager of Anna?"]);
  expect(rig.submits()).toHaveLength(1);
  expect(rig.submits()[0]?.params.maxTokens).toBe(9);
  expect(rig.limiter.running("tenant_a")).toBe(0);
  // The fragments' KV is looked after as with any answer that used them.
  expect(rig.used).toEqual(["frag_1", "frag_2"]);
});

test("a client that leaves has its work ended, and its place given back", async () => {
  const rig = chatRig({ ticking: false });
  const client = new AbortController();
  const answer = Promise.resolve(send(rig, ask, { signal: client.signal })).catch(() => undefined);
  while (rig.submits().length === 0) await Bun.sleep(1);
  expect(rig.limiter.running("tenant_a")).toBe(1);
  client.abort();
  const told = () => rig.processes[0]?.core.received.some(({ type }) => type === "abort");
  while (!told()) await Bun.sleep(1);
  rig.processes[0]?.core.tick();
  await answer;
  while (rig.limiter.running("tenant_a") > 0) await Bun.sleep(1);
});

test("a tenant has so many places and no more", async () => {
  const rig = chatRig({ ticking: false, requestsPerTenant: 1 });
  const client = new AbortController();
  const first = Promise.resolve(send(rig, ask, { signal: client.signal })).catch(() => undefined);
  while (rig.submits().length === 0) await Bun.sleep(1);
  expect(await (await send(rig, ask)).text()).toContain("concurrency_limited: At most 1 requests");
  client.abort();
  rig.processes[0]?.core.tick();
  await first;
});

test("what fails within says nothing of the server", async () => {
  const rig = chatRig();
  const search = toolCall("search", { query: "Anna", vector_store_ids: ["vs_1"] });
  const text = await (await send(rig, search, { key: "key-reader" })).text();
  expect(text).toContain("internal: The server had an error.");
  expect(text).not.toContain("secret");
  const none = await (await send(rig, toolCall("ask", { question: "Anna?" }))).text();
  expect(none).toContain("There is no vector store yet");
});
