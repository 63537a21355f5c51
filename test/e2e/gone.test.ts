/** Deleted means gone: from search, from the workers' KV with all that was computed from it, and from the disk. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type OpenAI from "openai";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { type MintedKey, prepareStore } from "../../gateway/cli/support/operations.ts";
import {
  type ChatParams,
  type ChatStreamParams,
  createStore,
  errorOf,
  openaiClient,
  spangateOf,
} from "../support/openai.ts";
import { cacheOf } from "../support/operator.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

// A server starts here.
setDefaultTimeout(60_000);

const kvLimitMs = 5_000;
const canary = "quillfeather";
const secret = `The ${canary} is kept in the tower. Only Anna has the key of the tower. `.repeat(12);
const question = "Who has the key of the tower?";

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ model: "one-layer", env: { SPANGATE_DEVICES: "cpu,cpu", SPANGATE_THREADS: "1" } });
});
afterAll(async () => await server[Symbol.asyncDispose]());

interface Held {
  readonly blocks: number;
  readonly fragment_blocks: number;
}

const nothing: Held = { blocks: 0, fragment_blocks: 0 };
const isNothing = ({ blocks }: Held): boolean => blocks === 0;

/** What all workers hold of a tenant's. */
async function heldOf({ id }: TestTenant): Promise<Held> {
  const { blocks, fragment_blocks } = (await cacheOf(server, id)) ?? nothing;
  return { blocks, fragment_blocks };
}

/** Waits for as long as the product promises. What has not come by then is seen by what the test expects. */
async function within(isRight: () => boolean | Promise<boolean>): Promise<void> {
  const endMs = performance.now() + kvLimitMs;
  while (!(await isRight()) && performance.now() < endMs) await Bun.sleep(10);
}

async function untilHeld(tenant: TestTenant, isRight: (held: Held) => boolean): Promise<Held> {
  await within(async () => isRight(await heldOf(tenant)));
  return await heldOf(tenant);
}

/** Files of the data folder that hold the canary, as text or as what the stemmer makes of it: both have small letters. */
function traces(): string[] {
  return readdirSync(server.dataDir, { recursive: true, encoding: "utf8" }).filter((name) => {
    const path = join(server.dataDir, name);
    // Files go while they are looked at.
    if (statSync(path, { throwIfNoEntry: false })?.isFile() !== true) return false;
    return readIfThere(path).includes(canary.slice(0, -2));
  });
}

function readIfThere(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    if ((error as { code?: string }).code === "ENOENT") return Buffer.alloc(0);
    throw error;
  }
}

async function untilNoTraces(): Promise<string[]> {
  await within(() => traces().length === 0);
  return traces();
}

const chatOf = (content: string): ChatParams => ({
  model: server.model,
  messages: [{ role: "user", content }],
  max_tokens: 8,
  temperature: 0,
});

/** Asks over the store in every way that leaves KV behind. */
async function useAll({ client: http }: TestTenant, storeId: string): Promise<void> {
  for (const attention of ["span", "full"]) {
    const file_search = { vector_store_ids: [storeId], max_num_results: 4 };
    const body = { ...chatOf(question), file_search, spangate: { attention }, max_tokens: 8, ignore_eos: true };
    await http.json("POST", "/v1/chat/completions", body);
  }
  const retrieve = { retrieve: { vector_store_ids: [storeId], query: question, max_num_results: 4 } };
  const g = (input: unknown) => ({ g: { model: server.model, max_tokens: 8, temperature: 0, input } });
  const user = { user: question };
  const inSpans = g({ seq: [{ plus: [retrieve] }, user] });
  const inOrder = g({ seq: [retrieve, user] });
  for (const query of [inSpans, inOrder, g({ seq: [{ plus: [inSpans, inOrder] }, user] })]) {
    await http.json("POST", "/v1/query/execute", query);
  }
}

interface Case {
  readonly tenant: TestTenant;
  readonly client: OpenAI;
  readonly storeId: string;
  readonly fileId: string;
}

async function usedStore(name: string): Promise<Case> {
  const tenant = await server.tenant(name);
  const client = openaiClient(server.url, tenant.apiKey);
  const storeId = await createStore(client, "secrets", { "secret.txt": secret });
  const [file] = (await client.vectorStores.files.list(storeId)).data;
  if (file === undefined) throw new Error("the store has no file");
  await prepareStore(tenant.client, storeId, () => undefined);
  await useAll(tenant, storeId);
  const held = await heldOf(tenant);
  expect(held.fragment_blocks).toBeGreaterThan(0);
  expect(held.blocks).toBeGreaterThan(held.fragment_blocks + 10);
  expect(traces()).not.toEqual([]);
  return { tenant, client, storeId, fileId: file.id };
}

const searched = async ({ client, storeId }: Case): Promise<number> =>
  (await client.vectorStores.search(storeId, { query: canary })).data.length;

/** A chat over a store, by a client of a tenant that may read it. */
const askOver = (client: OpenAI, storeId: string, content: string) => {
  const file_search = { vector_store_ids: [storeId], max_num_results: 2 };
  return client.chat.completions.create({ ...chatOf(content), file_search } as ChatParams);
};

test("a document: at once from search; its KV, what was computed from it, and every byte in seconds", async () => {
  const it = await usedStore("deletes a file");
  expect(await searched(it)).toBeGreaterThan(0);
  await it.client.files.delete(it.fileId);
  expect(await searched(it)).toBe(0);
  expect(await untilHeld(it.tenant, isNothing)).toEqual(nothing);
  expect(await untilNoTraces()).toEqual([]);
});

test("a document of one store: its upload stays, and nothing else", async () => {
  const it = await usedStore("detaches a file");
  await it.client.vectorStores.files.delete(it.fileId, { vector_store_id: it.storeId });
  expect(await searched(it)).toBe(0);
  expect(await untilHeld(it.tenant, isNothing)).toEqual(nothing);
  await within(() => traces().length === 1);
  expect(traces()).toEqual([join("files", it.fileId)]);
  await it.client.files.delete(it.fileId);
  expect(await untilNoTraces()).toEqual([]);
});

test("a store, and a tenant with all that it said", async () => {
  const first = await usedStore("deletes a store");
  await first.client.vectorStores.delete(first.storeId);
  expect(await untilHeld(first.tenant, isNothing)).toEqual(nothing);
  await first.client.files.delete(first.fileId);
  const second = await usedStore("is deleted");
  await second.client.chat.completions.create(chatOf("Good morning. What is the time in the tower of the town?"));
  await server.admin.json("DELETE", `/admin/v1/tenants/${second.tenant.id}`);
  expect(await untilHeld(second.tenant, isNothing)).toEqual(nothing);
  expect(await untilNoTraces()).toEqual([]);
});

test("a document that a running answer is over: the answer goes on, and leaves nothing", async () => {
  const it = await usedStore("deletes meanwhile");
  const file_search = { vector_store_ids: [it.storeId], max_num_results: 4 };
  const long = { stream: true, max_tokens: 400, ignore_eos: true, file_search };
  const stream = await it.client.chat.completions.create({ ...chatOf(question), ...long } as ChatStreamParams);
  let pieces = 0;
  for await (const { choices } of stream) {
    if (!choices[0]?.delta.content) continue;
    pieces += 1;
    if (pieces === 2) await it.client.files.delete(it.fileId);
    if (pieces === 50) expect(await untilHeld(it.tenant, isNothing)).toEqual(nothing);
  }
  expect(pieces).toBeGreaterThan(100);
  expect(await heldOf(it.tenant)).toEqual(nothing);
});

test("one of two documents: what was computed without it stays", async () => {
  const it = await usedStore("keeps one");
  const kept = await createStore(it.client, "other", { "kept.txt": "The pelican sleeps on the roof. ".repeat(20) });
  const ask = () => askOver(it.client, kept, "Where does the pelican sleep?");
  const first = await ask();
  const before = await heldOf(it.tenant);
  await it.client.files.delete(it.fileId);
  const after = await untilHeld(it.tenant, ({ blocks }) => blocks <= before.blocks - 20);
  expect(after.blocks).toBeLessThan(before.blocks - 10);
  expect(after.fragment_blocks).toBeGreaterThan(0);
  const second = await ask();
  expect(spangateOf(second).spans.map(({ source }) => source)).toEqual(spangateOf(first).spans.map(() => "device"));
  expect(second.choices[0]?.message.content).toBe(first.choices[0]?.message.content ?? "");
});

test("a shared store: one copy of its KV, counted for its owner; the reader's chains go with its grant", async () => {
  const it = await usedStore("shares");
  const reader = await server.tenant("reads");
  const client = openaiClient(server.url, reader.apiKey);
  const made = { scopes: ["tenant:admin"] };
  const { key = "" } = await server.admin.json<MintedKey>("POST", `/admin/v1/tenants/${it.tenant.id}/keys`, made);
  const owner = new HttpClient({ url: server.url, apiKey: key });
  const grants = `/admin/v1/vector_stores/${it.storeId}/grants`;
  const before = await heldOf(it.tenant);
  const ownText = "The pelican sleeps on the roof of the harbour. ".repeat(20);
  await owner.json("POST", grants, { tenant_id: reader.id });
  await client.chat.completions.create(chatOf(ownText));
  const own = await heldOf(reader);
  const { spans } = spangateOf(await askOver(client, it.storeId, question));
  expect(spans.length).toBeGreaterThan(0);
  expect(spans.map(({ source }) => source)).toEqual(spans.map(() => "device"));
  const used = await heldOf(reader);
  expect(used.fragment_blocks).toBe(0);
  expect(used.blocks).toBeGreaterThan(own.blocks);
  await useAll(reader, it.storeId);
  expect((await heldOf(it.tenant)).blocks).toBe(before.blocks);

  // An answer that runs meanwhile leaves nothing either.
  const stream = await client.chat.completions.create({
    ...{ ...chatOf(question), stream: true, max_tokens: 400, ignore_eos: true },
    ...{ file_search: { vector_store_ids: [it.storeId], max_num_results: 2 } },
  } as ChatStreamParams);
  let pieces = 0;
  for await (const { choices } of stream) {
    if (!choices[0]?.delta.content) continue;
    pieces += 1;
    if (pieces === 2) await owner.json("DELETE", `${grants}/${reader.id}`);
  }
  expect(await untilHeld(reader, ({ blocks }) => blocks === own.blocks)).toEqual(own);
  expect(pieces).toBeGreaterThan(100);
  const revoked = await errorOf(askOver(client, it.storeId, question));
  const unknown = await errorOf(askOver(client, "vs_unknown", question));
  expect([revoked.status, revoked.param, revoked.message]).toEqual([404, unknown.param, unknown.message]);
  const { usage } = await client.chat.completions.create(chatOf(ownText));
  expect(usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThan(100);
  expect((await heldOf(it.tenant)).blocks).toBe(before.blocks);

  await owner.json("POST", grants, { tenant_id: reader.id });
  await askOver(client, it.storeId, question);
  await it.client.files.delete(it.fileId);
  expect(await untilHeld(reader, ({ blocks }) => blocks === own.blocks)).toEqual(own);
});

test("the KV of a tenant's own text, when its salt is rotated or its cache is purged", async () => {
  const tenant = await server.tenant("rotates");
  const client = openaiClient(server.url, tenant.apiKey);
  const ask = async () =>
    (await client.chat.completions.create(chatOf(secret))).usage?.prompt_tokens_details?.cached_tokens ?? 0;
  for (const [method, path] of [
    ["POST", "salt/rotate"],
    ["DELETE", "cache"],
  ] as const) {
    await ask();
    expect(await ask()).toBeGreaterThan(0);
    await server.admin.json(method, `/admin/v1/tenants/${tenant.id}/${path}`);
    expect(await untilHeld(tenant, isNothing)).toEqual(nothing);
    expect(await ask()).toBe(0);
  }
});
