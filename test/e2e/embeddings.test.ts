import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { errorOf, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { writeTinyEmbeddingModel } from "../support/tiny-onnx.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ model: "one-layer" });
});
afterAll(async () => await server[Symbol.asyncDispose]());

const clientOf = async (of: TestServer, name: string) => openaiClient(of.url, (await of.tenant(name)).apiKey);
const dot = (a: readonly number[] = [], b: readonly number[] = []) =>
  a.reduce((sum, value, at) => sum + value * (b[at] ?? 0), 0);

test("the client's base64 and plain floats are the same vectors", async () => {
  const client = await clientOf(server, "embeds");
  const input = ["The shop opens at six.", "When does the shop open?", "A red van left the harbor."];
  const params = { model: server.model, input };
  // Without a format the client asks for base64 and decodes it.
  const { data, usage } = await client.embeddings.create(params);
  const plain = await client.embeddings.create({ ...params, encoding_format: "float" });
  expect(data.map(({ index }) => index)).toEqual([0, 1, 2]);
  expect(plain.data.map(({ embedding }) => Float32Array.from(embedding))).toEqual(
    data.map(({ embedding }) => Float32Array.from(embedding)),
  );
  const [fact, question, other] = data.map(({ embedding }) => embedding);
  expect(dot(fact, fact)).toBeCloseTo(1, 4);
  expect(dot(fact, question)).toBeGreaterThan(dot(fact, other));
  expect(usage.prompt_tokens).toBe(usage.total_tokens);
  expect(usage.prompt_tokens).toBeGreaterThan(10);
});

test("refusals name the field", async () => {
  const client = await clientOf(server, "refused");
  const dimensions = client.embeddings.create({ model: server.model, input: "a", dimensions: 5 });
  expect(await errorOf(dimensions)).toMatchObject({ status: 400, param: "dimensions" });
  const model = client.embeddings.create({ model: "text-embedding-3-small", input: "a" });
  expect(await errorOf(model)).toMatchObject({ status: 404, param: "model" });
});

test("a sentence-embedding model by its folder", async () => {
  const dir = mkdtempSync(join(tmpdir(), "spangate-onnx-"));
  const folder = join(dir, "tiny-embedder");
  writeTinyEmbeddingModel(folder, { whale: [1, 0], shark: [1, 1], bread: [0, 1] });
  try {
    await using other = await startTestServer({ model: "one-layer", env: { SPANGATE_EMBEDDING_MODEL: folder } });
    const { client, apiKey } = await other.tenant("onnx");
    const openai = openaiClient(other.url, apiKey);
    const { data } = await openai.embeddings.create({ model: "tiny-embedder", input: ["whale", "bread bread"] });
    expect(data.map(({ embedding }) => [...embedding])).toEqual([
      [1, 0],
      [0, 1],
    ]);
    const body = { model: "tiny-embedder", query: "whale", documents: ["bread", "shark", "whale"], top_n: 2 };
    const ranked = await client.json<{ results: { index: number }[] }>("POST", "/v1/rerank", body);
    expect(ranked.results.map(({ index }) => index)).toEqual([2, 1]);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

test("a folder that is none stops the start, and says why", async () => {
  const start = startTestServer({
    model: "one-layer",
    env: { SPANGATE_EMBEDDING_MODEL: join(tmpdir(), "no-such-folder-of-a-model") },
  });
  await expect(start).rejects.toThrow(/SPANGATE_EMBEDDING_MODEL names a folder that does not exist .* \(model\.onnx/);
});
