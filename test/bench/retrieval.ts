/**
 * Search of one large corpus: words alone, vectors alone, both fused. The texts are drawn from a Zipf vocabulary, the
 * vectors are random, of a common sentence model's width; a question is some words of one fragment and a vector near
 * that fragment's, so that what is found can be checked.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Embedder } from "../../gateway/corpus/base/ports.ts";
import { createWorld, ingestText } from "../corpus/world.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { generator, zipfTexts } from "./support/zipf-texts.ts";

const dimensions = 384;
const questionCount = 60;
const bound = 20;

const random = generator(1);

function numberOf(text: string): number {
  return Number(/n(\d+)x/.exec(text)?.[1] ?? 0);
}

/** By the number that a text carries; a question's vector is off by noise as large as the vector itself. */
const embedder: Embedder = {
  card: () => Promise.resolve({ modelId: "bench", dimensions }),
  embed: (texts, role) =>
    Promise.resolve(
      texts.map((text) => {
        const own = generator(numberOf(text) + 7);
        return Float32Array.from({ length: dimensions }, () => {
          const value = own() + own() + own() - 1.5;
          return role === "document" ? value : value + random() + random() + random() - 1.5;
        });
      }),
    ),
};

const searches = {
  words: { embedding: 0, text: 1 },
  vectors: { embedding: 1, text: 0 },
  hybrid: { embedding: 1, text: 1 },
} as const;

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const fragmentCount = Number(option("fragments") ?? 100_000);
  const dir = mkdtempSync(join(tmpdir(), "spangate-retrieval-"));
  const world = createWorld(dir, { embedder });
  try {
    const tenantId = world.tenants.create("bench").id;
    const store = world.corpus.corpora.create(tenantId, { name: "bench", metadata: {} });
    const texts = zipfTexts(random, fragmentCount);
    const perFile = 5_000;
    for (let at = 0; at < texts.length; at += perFile) {
      say(`ingesting: ${at} of ${texts.length} fragments`);
      await ingestText(world, store, `${at}.txt`, texts.slice(at, at + perFile).join("\n\n"));
    }
    const count = world.db.client.query<{ n: number }, []>("select count(*) n from fragment_vectors").get()?.n ?? 0;
    const results: { name: string; p50Ms: number; p95Ms: number; recall: number }[] = [];
    for (const [name, weights] of Object.entries(searches)) {
      const times: number[] = [];
      let right = 0;
      for (let i = 0; i < questionCount; i++) {
        const target = Math.floor((i * texts.length) / questionCount);
        // Two of the fragment's own words among common ones.
        const own = (texts[target] ?? "").split(/[ .]+/).slice(2);
        const query = `Where is ${own[3]} and ${own[9]} w1 w2? n${target}xx`;
        const startMs = performance.now();
        const request = { tenantId, vectorStoreIds: [store.id], query, maxResults: 10, weights };
        const found = await world.corpus.retrieve(request);
        times.push(performance.now() - startMs);
        if (found.some(({ text }) => text.includes(`n${target}x `))) right++;
      }
      times.sort((a, b) => a - b);
      const at = (share: number) => times[Math.floor(share * (times.length - 1))] ?? Number.NaN;
      results.push({ name, p50Ms: at(0.5), p95Ms: at(0.95), recall: right / questionCount });
    }
    const hybrid = results.find(({ name }) => name === "hybrid");
    return {
      model: `random vectors of ${dimensions} dimensions`,
      header: ["search", "fragments", "p50 ms", "p95 ms", "found among 10"],
      rows: results.map(({ name, p50Ms, p95Ms, recall }) => [
        name,
        String(count),
        p50Ms.toFixed(1),
        p95Ms.toFixed(1),
        `${(100 * recall).toFixed(0)} %`,
      ]),
      bars: [
        atLeast("fragments with a vector", count, fragmentCount),
        atMost("hybrid search, p50 ms", hybrid?.p50Ms ?? Number.NaN, bound),
        atLeast("hybrid search, found among 10", hybrid?.recall ?? Number.NaN, 0.9),
      ],
      details: { fragmentCount: count, results },
    };
  } finally {
    await world.remove();
    rmSync(dir, { recursive: true, force: true });
  }
}

export const retrievalBench: Bench = {
  name: "retrieval",
  summary: "Search of one corpus of 100,000 fragments: words, vectors, and both fused",
  options: { fragments: "N  fragments of the corpus (100000)" },
  run,
};
