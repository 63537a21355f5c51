import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ApiError } from "../../../gateway/base/errors.ts";
import type { Embedder } from "../../../gateway/corpus/base/ports.ts";
import { fuse, type RetrieveRequest } from "../../../gateway/corpus/search/retrieve.ts";
import { createWorld, ingestText, type World } from "../world.ts";

/** Words of one meaning share a dimension. */
const meanings = [
  ["whale", "orca"],
  ["bread", "loaf"],
  ["train", "railway"],
];

class MeaningEmbedder implements Embedder {
  readonly roles: string[] = [];
  readonly failures: ApiError[] = [];
  /** How often its process would have been started for its card. */
  opened = 0;
  readonly modelId: string;
  readonly dimensions = 8;

  constructor(modelId = "meanings-1") {
    this.modelId = modelId;
  }

  card() {
    this.opened += 1;
    return Promise.resolve({ modelId: this.modelId, dimensions: this.dimensions });
  }

  embed(texts: readonly string[], role: "query" | "document") {
    const failure = this.failures.shift();
    if (failure !== undefined) return Promise.reject(failure);
    this.roles.push(...texts.map(() => role));
    return Promise.resolve(
      texts.map((text) =>
        Float32Array.from({ length: this.dimensions }, (_, i) =>
          meanings[i]?.some((word) => text.toLowerCase().includes(word)) ? 1 : -0.1,
        ),
      ),
    );
  }
}

let dir = "";
let world: World;
let embedder: MeaningEmbedder;
let tenantId: `tenant_${string}`;
let store: ReturnType<World["corpus"]["corpora"]["create"]>;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-hybrid-"));
  embedder = new MeaningEmbedder();
  world = createWorld(dir, { embedder });
  tenantId = world.tenants.create("acme").id;
  store = world.corpus.corpora.create(tenantId, { name: "1", metadata: {} });
});
afterEach(() => world.remove());

const files = () =>
  Promise.all([
    ingestText(world, store, "sea.txt", "The whale swims.", { year: 2001 }),
    ingestText(world, store, "bakery.txt", "Fresh bread at six.", { year: 2010 }),
    ingestText(world, store, "station.txt", "The train is late.", { year: 2010 }),
  ]);
const hybrid = { embedding: 1, text: 1 };
const ask = (change: Partial<RetrieveRequest> = {}) =>
  world.corpus.retrieve({ tenantId, vectorStoreIds: [store.id], query: "orca", maxResults: 2, ...change });
const names = async (change?: Partial<RetrieveRequest>) => (await ask(change)).map(({ filename }) => filename);

describe("hybrid search", () => {
  test("finds what other words say; words alone do not", async () => {
    await files();
    expect(await names()).toEqual([]);
    expect((await names({ weights: hybrid }))[0]).toBe("sea.txt");
    expect((await names({ weights: { embedding: 1, text: 0 }, query: "loaf" }))[0]).toBe("bakery.txt");
    expect(await names({ weights: { embedding: 0, text: 1 }, query: "late" })).toEqual(["station.txt"]);
    expect(embedder.roles.filter((role) => role === "query")).toHaveLength(2);
    expect(embedder.roles.filter((role) => role === "document")).toHaveLength(3);
  });

  test("weights decide between words and meaning; the first of both scores 1", async () => {
    await files();
    // "late" is said at the station, "loaf" means the bakery.
    const query = "late loaf";
    expect((await names({ query, weights: { embedding: 100, text: 1 } }))[0]).toBe("bakery.txt");
    expect((await names({ query, weights: { embedding: 1, text: 9 } }))[0]).toBe("station.txt");
    const [best, next] = await ask({ query: "whale", weights: hybrid });
    expect(best).toMatchObject({ filename: "sea.txt", score: 1 });
    expect(next?.score).toBeLessThan(0.6);
    expect(await names({ query: "whale", weights: hybrid, scoreThreshold: 0.9 })).toEqual(["sea.txt"]);
  });

  test("filters hold in both rankings", async () => {
    await files();
    const filters = { type: "eq", key: "year", value: 2010 } as const;
    const found = await names({ query: "whale late", weights: hybrid, filters, maxResults: 10 });
    expect(found.toSorted()).toEqual(["bakery.txt", "station.txt"]);
    expect(found[0]).toBe("station.txt");
  });

  test("what is deleted is not found, and its vectors go", async () => {
    const [whale] = await files();
    world.corpus.files.delete(tenantId, whale.id);
    expect(await names({ weights: hybrid, maxResults: 10 })).not.toContain("sea.txt");
    await world.corpus.idle();
    const count = world.db.client.query<{ n: number }, []>("select count(*) n from fragment_vectors").get();
    expect(count?.n).toBe(2);
  });

  test("over several corpora, and never over another tenant's", async () => {
    await files();
    const second = world.corpus.corpora.create(tenantId, { name: "2", metadata: {} });
    await ingestText(world, second, "orcas.txt", "An orca.");
    const both = { vectorStoreIds: [store.id, second.id], weights: hybrid };
    expect((await names(both)).toSorted()).toEqual(["orcas.txt", "sea.txt"]);
    const stranger = world.tenants.create("stranger").id;
    await expect(names({ ...both, tenantId: stranger })).rejects.toThrow("No such vector store.");
  });
});

describe("the embedder", () => {
  test("that fails is tried again; until then words are searched", async () => {
    embedder.failures.push(new ApiError("worker_lost"));
    await files();
    await world.corpus.idle();
    expect((await names({ weights: hybrid }))[0]).toBe("sea.txt");
    expect(world.logged.some((line) => line.includes("embedding of fragments is held up"))).toBe(true);
  });

  test("of another model: all fragments are embedded again at the next start", async () => {
    await files();
    await world.close();
    const other = new MeaningEmbedder("meanings-2");
    world = createWorld(dir, { embedder: other, hybridByDefault: true });
    await world.corpus.start();
    await world.corpus.idle();
    expect(other.roles).toHaveLength(3);
    expect((await names())[0]).toBe("sea.txt");
    const models = world.db.client.query("select distinct model_seq from fragment_vectors").all();
    expect(models).toHaveLength(1);
  });

  test("a start opens none where no fragment was ever stored, and one where an index of deleted ones is left", async () => {
    await world.corpus.start();
    await world.corpus.idle();
    expect(embedder.opened).toBe(0);
    const made = await files();
    expect(embedder.opened).toBeGreaterThan(0);
    for (const { id } of made) world.corpus.corpusFiles.detach(store, id, { deleteUnused: true });
    await world.corpus.idle();
    await world.close();
    const next = new MeaningEmbedder();
    world = createWorld(dir, { embedder: next });
    await world.corpus.start();
    await world.corpus.idle();
    expect(next.opened).toBe(1);
  });

  test("that is missing: words alone by default, and asking for more is refused by name", async () => {
    await files();
    await world.close();
    world = createWorld(dir, { hybridByDefault: true });
    expect(await names({ query: "whale" })).toEqual(["sea.txt"]);
    await expect(ask({ weights: hybrid })).rejects.toMatchObject({ param: "ranking_options.hybrid_search" });
  });
});

test("fuse: shares of the best possible rank, ties by age", () => {
  const hit = (seq: number) => ({ seq });
  const fused = fuse([
    { weight: 1, hits: [hit(1), hit(2)] },
    { weight: 3, hits: [hit(2), hit(3)] },
    { weight: 0, hits: [hit(9)] },
  ]);
  expect(fused.map(({ hit: { seq } }) => seq)).toEqual([2, 3, 1]);
  const best = 4 / 61;
  const scores = [(1 / 62 + 3 / 61) / best, 3 / 62 / best, 1 / 61 / best];
  for (const [index, { score }] of fused.entries()) expect(score).toBeCloseTo(scores[index] ?? 0, 12);
  const ties = fuse([
    { weight: 1, hits: [hit(5)] },
    { weight: 1, hits: [hit(4)] },
  ]);
  expect(ties.map((one) => one.hit.seq)).toEqual([4, 5]);
});
