/** A cross-encoder by its folder: searches, answers and rankings of a server that has one. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type OpenAI from "openai";
import { createStore, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { writeTinyCrossEncoder } from "../support/tiny-onnx.ts";

// A server starts in this file.
setDefaultTimeout(60_000);

const dir = mkdtempSync(join(tmpdir(), "spangate-rerank-"));
const folder = join(dir, "tiny-judge");
let server: TestServer;
let tenant: TestTenant;
let client: OpenAI;
let store = "";

beforeAll(async () => {
  // Of the words of the files it knows some, and finds harbours better than all others.
  writeTinyCrossEncoder(folder, { whale: [1], swims: [0.5], harbor: [3], bread: [-2] });
  server = await startTestServer({ model: "one-layer", env: { SPANGATE_RERANK_MODEL: folder } });
  tenant = await server.tenant("reranked");
  client = openaiClient(server.url, tenant.apiKey);
  const texts = {
    "sea.txt": "A whale swims.",
    "town.txt": "A whale in the harbor.",
    "shop.txt": "The whale of bread.",
  };
  store = await createStore(client, "texts", texts);
});
afterAll(async () => {
  await server?.[Symbol.asyncDispose]();
  rmSync(dir, { recursive: true, force: true });
});

const sigmoid = (logit: number): number => 1 / (1 + Math.exp(-logit));
const expected = [
  ["town.txt", sigmoid(1 * (1 + 3))],
  ["sea.txt", sigmoid(1 * (1 + 0.5))],
  ["shop.txt", sigmoid(1 * (1 - 2))],
] as const;

test("a search has the model's order and scores, unless it wants no ranker", async () => {
  const search = async (options: OpenAI.VectorStores.VectorStoreSearchParams["ranking_options"]) =>
    (await client.vectorStores.search(store, { query: "whale", ranking_options: options ?? {} })).data;
  for (const ranker of [undefined, "auto", "default-2024-11-15"] as const) {
    const found = await search(ranker === undefined ? {} : { ranker });
    expect(found.map(({ filename }) => filename)).toEqual(expected.map(([name]) => name));
    for (const [at, { score }] of found.entries()) expect(score).toBeCloseTo(expected[at]?.[1] ?? 0, 5);
  }
  expect((await search({ score_threshold: 0.5 })).map(({ filename }) => filename)).toEqual(["town.txt", "sea.txt"]);
  // Each holds all of the question, so words alone give each of them 1.
  expect((await search({ ranker: "none" })).map(({ score }) => score)).toEqual([1, 1, 1]);
});

test("answers are made from what it finds best", async () => {
  const answer = async (ranker: string) => {
    const file_search = { vector_store_ids: [store], max_num_results: 1, ranking_options: { ranker } };
    const messages = [{ role: "user" as const, content: "whale" }];
    const params = { model: server.model, messages, max_tokens: 1, ...{ file_search } };
    const said = (await client.chat.completions.create(params)) as unknown as {
      spangate: { retrieved: { filename: string }[] };
    };
    return said.spangate.retrieved.map(({ filename }) => filename);
  };
  expect(await answer("auto")).toEqual(["town.txt"]);
  expect(await answer("none")).toEqual(["sea.txt"]);
});

test("/v1/rerank takes it by its name, which the list of models says", async () => {
  const models = (await client.models.list()).data;
  expect(models.find(({ id }) => id === "tiny-judge")).toMatchObject({ max_model_len: 16 });
  const rank = (fields: object) =>
    tenant.client.json<{ model: string; results: object[]; usage: { total_tokens: number } }>("POST", "/v1/rerank", {
      ...{ model: "tiny-judge", query: "whale", documents: ["bread", "harbor", { text: "whale" }] },
      ...fields,
    });
  const ranked = await rank({ top_n: 2 });
  expect(ranked).toMatchObject({
    model: "tiny-judge",
    results: [
      { index: 1, relevance_score: expect.closeTo(sigmoid(3), 5), document: { text: "harbor" } },
      { index: 2, relevance_score: expect.closeTo(sigmoid(1), 5) },
    ],
    // Each pair has a word, a word and three tokens around them.
    usage: { total_tokens: 15 },
  });
  expect((await rank({ return_documents: false })).results).toHaveLength(3);
  const many = Array.from({ length: 1_024 }, () => "whale ".repeat(300));
  expect((await rank({ documents: many })).usage.total_tokens).toBe(1_024 * 16);
  await expect(rank({ model: "another" })).rejects.toThrow("this server has tiny-judge and");
  const usage = await server.admin.json<{ data: { embedding_tokens: number }[] }>(
    "GET",
    `/admin/v1/usage?tenant_id=${tenant.id}`,
  );
  expect(usage.data[0]?.embedding_tokens).toBe(15 + 15 + 1_024 * 16);
});

test("a start with a model that is none says so in a sentence", async () => {
  const start = (env: Record<string, string>) => startTestServer({ model: "one-layer", env });
  await expect(start({ SPANGATE_RERANK_MODEL: join(dir, "nowhere") })).rejects.toThrow(
    /SPANGATE_RERANK_MODEL names a folder that does not exist .*a cross-encoder \(model\.onnx/,
  );
  const classes = join(dir, "classes");
  writeTinyCrossEncoder(classes, { whale: [1] }, { columns: 2 });
  await expect(start({ SPANGATE_RERANK_MODEL: classes })).rejects.toThrow(/a cross-encoder gives one logit for each/);
});

test("doctor opens the cross-encoder and has it read, and says what is wrong with one", async () => {
  const doctor = async (model: string): Promise<string> => {
    const env = { PATH: Bun.env.PATH, HOME: dir, SPANGATE_DATA: join(dir, "data"), SPANGATE_RERANK_MODEL: model };
    const argv = [process.execPath, join(import.meta.dir, "../../gateway/cli/main.ts"), "doctor", "--url", server.url];
    const child = Bun.spawn(argv, { cwd: dir, env, stdout: "pipe", stderr: "ignore" });
    return (await new Response(child.stdout).text()).split("\n").find((line) => line.includes("search models")) ?? "";
  };
  expect(await doctor(folder)).toBe(`ok    search models: ${folder}`);
  const broken = join(dir, "broken");
  cpSync(folder, broken, { recursive: true });
  const [onnx = ""] = [...new Bun.Glob("**/*.onnx").scanSync(broken)];
  writeFileSync(join(broken, onnx), "no model");
  const said = await doctor(broken);
  expect(said).toStartWith("wrong search models: ");
  expect(said).toContain("SPANGATE_RERANK_MODEL");
});
