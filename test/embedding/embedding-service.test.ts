import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { parseConfig } from "../../gateway/config.ts";
import { EmbedderError, type EmbeddingService, openEmbedding } from "../../gateway/embedding/embedding-service.ts";
import { readModelText } from "../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";
import { writeTinyEmbeddingModel } from "../support/tiny-onnx.ts";
import { yieldsDuring } from "../support/yields.ts";

const dir = mkdtempSync(join(tmpdir(), "spangate-embedding-"));
const tokenizer = new TextTokenizer(readModelText(demoModelFolder), { cacheBytes: 1_000 });
const logged: string[] = [];
const services: EmbeddingService[] = [];

function open(folder?: string): EmbeddingService {
  const env = folder === undefined ? {} : { SPANGATE_EMBEDDING_MODEL: folder };
  const log = (_level: string, message: string) => void logged.push(message);
  const service = openEmbedding(parseConfig({ SPANGATE_THREADS: "1", ...env }), {}, tokenizer, log);
  services.push(service);
  return service;
}

const dot = (a: Float32Array | undefined, b: Float32Array | undefined) =>
  [...(a ?? [])].reduce((sum, value, at) => sum + value * (b?.[at] ?? 0), 0);

const tiny = join(dir, "tiny");
beforeAll(() => writeTinyEmbeddingModel(tiny, { whale: [1, 0], shark: [0, 2], bread: [-1, 0] }));
afterAll(async () => {
  await Promise.all(services.map((service) => service.stop()));
  rmSync(dir, { recursive: true, force: true });
});

describe("a sentence-embedding model", () => {
  test("the mean of its tokens' states, of unit length, padding left out", async () => {
    const service = open(tiny);
    expect(await service.card()).toMatchObject({ modelName: "tiny", dimensions: 2, maxTokens: 16, vocabSize: 7 });
    const [both, one, bread] = await service.embed(["Whale shark", "shark", "bread bread bread bread"], "plain");
    const norm = Math.hypot(1, 2);
    expect(both?.[0]).toBeCloseTo(1 / norm, 6);
    expect(both?.[1]).toBeCloseTo(2 / norm, 6);
    expect([...(one ?? [])]).toEqual([0, 1]);
    expect([...(bread ?? [])]).toEqual([-1, 0]);
    expect([...(await service.encode("whale"))]).toEqual([2, 4, 3]);
  });

  test("what is too long loses its end", async () => {
    const [long] = await open(tiny).embed([`${"whale ".repeat(14)}${"shark ".repeat(50)}`], "plain");
    expect([...(long ?? [])]).toEqual([1, 0]);
  });

  test("a long text is encoded in slices, with the special tokens around it once", async () => {
    const service = open(tiny);
    const text = "whale shark, ".repeat(4_000);
    const short = [...(await service.encode("whale shark, "))];
    const expected = [2, ...Array.from({ length: 4_000 }, () => short.slice(1, -1)).flat(), 3];
    const { result, yields } = await yieldsDuring(() => service.encode(text));
    expect([...result]).toEqual(expected);
    expect(yields).toBeGreaterThan(4);
    expect([...(await service.encode(text, "document", 16))]).toEqual([...expected.slice(0, 15), 3]);
  });

  test("prompts for queries and documents", async () => {
    const folder = join(dir, "prompts");
    writeTinyEmbeddingModel(folder, { whale: [1, 0], shark: [0, 1] });
    writeFileSync(join(folder, "config_sentence_transformers.json"), '{"prompts": {"query": "shark "}}');
    const service = open(folder);
    const [query] = await service.embed(["whale"], "query");
    const [document] = await service.embed(["whale"], "document");
    expect(query?.[1]).toBeCloseTo(Math.SQRT1_2, 6);
    expect([...(document ?? [])]).toEqual([1, 0]);
  });

  test("says what is wrong with a folder", async () => {
    expect(() => open(join(dir, "nowhere"))).toThrow("tokenizer.json: no such file");
    const folder = join(dir, "broken");
    writeTinyEmbeddingModel(folder, { whale: [1] });
    writeFileSync(join(folder, "model.onnx"), "no protocol buffer");
    const failure = await open(folder)
      .card()
      .catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(EmbedderError);
    expect(String(failure)).toContain("model.onnx: cannot be opened by onnxruntime");
  });
});

describe("the loaded model's token embeddings", () => {
  test("texts of like words are near each other, the same text always in the same place", async () => {
    const service = open();
    const texts = ["The bakery opens at six.", "When does the bakery open?", "The truck left the harbor."];
    const [fact, question, other] = await service.embed(texts, "plain");
    expect(dot(fact, fact)).toBeCloseTo(1, 5);
    expect(dot(fact, question)).toBeGreaterThan(dot(fact, other) + 0.1);
    expect(await service.embed(texts.slice(0, 1), "plain")).toEqual([fact ?? new Float32Array()]);
  });

  test("many texts keep their order; too many at once are refused", async () => {
    const service = open();
    const texts = Array.from({ length: 100 }, (_, i) => `number ${i}`);
    const [all, last] = await Promise.all([service.embed(texts, "plain"), service.embed(texts.slice(-1), "plain")]);
    expect(all).toHaveLength(100);
    expect(all[99]).toEqual(last[0] ?? new Float32Array());
    const tooMany = Array.from({ length: 10_000 }, () => Int32Array.of(1));
    expect(service.embedTokens(tooMany)).rejects.toMatchObject({ code: "overloaded" });
  });
});

test("a lost process fails what waits and is started again", async () => {
  const folder = join(dir, "lost");
  writeTinyEmbeddingModel(folder, { whale: [1, 0] });
  const service = open(folder);
  await service.card();
  // An id that the table does not have fails that call alone.
  expect(service.embedTokens([Int32Array.of(99)])).rejects.toMatchObject({ code: "internal" });
  expect(await service.embed(["whale"], "plain")).toHaveLength(1);
  const waiting = service.embed(["whale"], "plain").catch((error: unknown) => error);
  await service.card();
  service.kill();
  expect(await waiting).toMatchObject({ code: "worker_lost" });
  expect(await service.embed(["whale"], "plain")).toHaveLength(1);
  expect(logged.some((line) => line.includes("embedder has ended"))).toBe(true);
  await service.stop();
  expect(service.card()).rejects.toMatchObject({ code: "server_shutdown" });
});
