/** Scores of a cross-encoder, compared with its arithmetic in plain loops. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { parseConfig } from "../../gateway/config.ts";
import { EmbeddingService, openEmbedding } from "../../gateway/embedding/embedding-service.ts";
import { PairText } from "../../gateway/embedding/pair-text.ts";
import { readModelText } from "../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";
import { fc } from "../support/fast-check.ts";
import { writeTinyCrossEncoder, writeTinyEmbeddingModel } from "../support/tiny-onnx.ts";
import { yieldsDuring } from "../support/yields.ts";

const dir = mkdtempSync(join(tmpdir(), "spangate-reranker-"));
const tokenizer = new TextTokenizer(readModelText(demoModelFolder), { cacheBytes: 1_000 });
const services: EmbeddingService[] = [];
const words = { whale: [0.5, 0.1], shark: [0.2, -0.7], bread: [-1, 0.3], train: [0.1, 1.5] } as const;
const bias = -0.25;
const folder = join(dir, "tiny-judge");
/** The longest pair: 16 tokens, 3 of them special. */
const room = 13;

function open(rerank: string, embedding?: string): EmbeddingService {
  const models = { SPANGATE_RERANK_MODEL: rerank, ...(embedding ? { SPANGATE_EMBEDDING_MODEL: embedding } : {}) };
  const service = openEmbedding(parseConfig({ SPANGATE_THREADS: "1", ...models }), {}, tokenizer, () => undefined);
  services.push(service);
  return service;
}

beforeAll(() => writeTinyCrossEncoder(folder, words, { bias }));
afterAll(async () => {
  await Promise.all(services.map((service) => service.stop()));
  rmSync(dir, { recursive: true, force: true });
});

/** The twin: both texts cut as the model takes them, their words' rows summed, the product through a sigmoid. */
function plainScore(query: readonly string[], text: readonly string[]): number {
  const sumOf = (some: readonly string[]): readonly number[] =>
    [0, 1].map((at) => some.reduce((sum, word) => sum + (words[word as keyof typeof words]?.[at] ?? 0), 0));
  const first = query.slice(0, Math.floor(room / 2));
  const [a = 0, b = 0] = sumOf(first);
  const [c = 0, d = 0] = sumOf(text.slice(0, room - first.length));
  return 1 / (1 + Math.exp(-(a * c + b * d + bias)));
}

describe("a cross-encoder", () => {
  test("scores each text for the question as its twin does, of any length and in any company", async () => {
    const service = open(folder);
    expect(await service.rerankerCard()).toEqual({ modelName: "tiny-judge", maxTokens: 16 });
    const text = fc.array(fc.constantFrom(...Object.keys(words), "unknown"), { minLength: 1, maxLength: 24 });
    await fc.assert(
      fc.asyncProperty(text, fc.array(text, { minLength: 1, maxLength: 20 }), async (query, texts) => {
        const scores = await service.rerank(
          query.join(" "),
          texts.map((some) => some.join(" ")),
        );
        expect(scores).toHaveLength(texts.length);
        for (const [at, score] of scores.entries()) expect(score).toBeCloseTo(plainScore(query, texts[at] ?? []), 5);
      }),
      { numRuns: 40 },
    );
  });

  test("reads a pair as its tokenizer would make it, and says how many tokens it read", async () => {
    const pairs = await open(folder).encodePairs("whale shark", ["bread", "train train"]);
    expect(pairs?.map(({ tokenIds, secondFrom }) => [[...tokenIds], secondFrom])).toEqual([
      [[2, 4, 5, 3, 6, 3], 4],
      [[2, 4, 5, 3, 7, 7, 3], 4],
    ]);
    let tokens = 0;
    await open(folder).rerank("whale shark", ["bread", "train train"], (count) => {
      tokens += count;
    });
    expect(tokens).toBe(13);
  });

  test("stands beside an embedding model, and shares its process", async () => {
    const embedder = join(dir, "embedder");
    writeTinyEmbeddingModel(embedder, { whale: [1, 0], shark: [0, 2] });
    const service = open(folder, embedder);
    const [scores, vectors] = await Promise.all([
      service.rerank("whale", ["whale"]),
      service.embed(["shark"], "plain"),
    ]);
    expect([...(vectors[0] ?? [])]).toEqual([0, 1]);
    expect(scores[0]).toBeCloseTo(plainScore(["whale"], ["whale"]), 5);
  });

  test("a long text is encoded in slices, and not beyond what the model reads", async () => {
    const pairText = new PairText(folder);
    const long = "whale shark, ".repeat(50_000);
    const { result, yields } = await yieldsDuring(() => pairText.encode("bread", [long], 100_000));
    expect(result[0]?.tokenIds).toHaveLength(100_000);
    expect(yields).toBeGreaterThan(10);
    const short = await yieldsDuring(() => pairText.encode("bread", [long], 16));
    expect(short.result[0]?.tokenIds).toHaveLength(16);
    expect(short.yields).toBeLessThan(5);
  });

  test("a folder whose tokenizer or model is none of a cross-encoder is told of by its file", async () => {
    const failureOf = async (of: string) =>
      String(
        await open(of)
          .card()
          .catch((error: unknown) => error),
      );
    const classes = join(dir, "classes");
    writeTinyCrossEncoder(classes, words, { columns: 3 });
    expect(await failureOf(classes)).toMatch(/model\.onnx: its output has the shape \[2, 3\].*one logit/);
    const states = join(dir, "states");
    writeTinyEmbeddingModel(states, words);
    expect(await failureOf(states)).toMatch(/model\.onnx: its output has the shape \[2, 2, 2\]/);
    const unpaired = join(dir, "unpaired");
    writeTinyCrossEncoder(unpaired, words);
    const file = join(unpaired, "tokenizer.json");
    writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, "utf8")), post_processor: null }));
    expect(() => open(unpaired)).toThrow("tokenizer.json: does not say how two texts become one sequence");
    rmSync(file);
    expect(() => open(unpaired)).toThrow("tokenizer.json: no such file");
  });
});

test("a message's time is its own, not that of the messages before it", async () => {
  const program = join(dir, "slow.ts");
  writeFileSync(
    program,
    `let last = Promise.resolve();
    process.on("message", ({ id, pairs }) => {
      last = last.then(async () => {
        await Bun.sleep(20);
        process.send({ type: "scores", id, scores: pairs.map(() => 0) });
      });
    });
    process.on("disconnect", () => process.exit(0));
    process.send({ type: "ready", card: {}, reranker: { modelName: "slow", maxTokens: 16 } });`,
  );
  const service = new EmbeddingService({
    argv: [process.execPath, program],
    env: {},
    text: { encode: async () => new Int32Array() },
    messageMs: 1_000,
    maxWaiting: 1_000,
    log: () => undefined,
  });
  services.push(service);
  await service.card();
  const pair = { tokenIds: Int32Array.of(1), secondFrom: 1 };
  // Together they take two seconds.
  const all = Array.from({ length: 100 }, () => service.scorePairs([pair]));
  expect(new Set((await Promise.all(all)).flat())).toEqual(new Set([0.5]));
  const lost = Array.from({ length: 10 }, () => service.scorePairs([pair]).catch((error: unknown) => error));
  service.kill();
  const answers = await Promise.all(lost);
  expect(answers.slice(0, 2)).toMatchObject([{ code: "worker_lost" }, { code: "worker_lost" }]);
  // What had not been sent yet goes to the process that is started again.
  expect(answers.slice(2)).toEqual(Array.from({ length: 8 }, () => [0.5]));
});
