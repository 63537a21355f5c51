/** What a search makes of a cross-encoder's scores, and when it asks for them. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import type { TenantId } from "../../../db/ids.ts";
import { ApiError } from "../../../gateway/base/errors.ts";
import type { RetrieveRequest } from "../../../gateway/corpus/search/retrieve.ts";
import { errorOf } from "../../support/errors.ts";
import { createWorld, ingestText, type World } from "../world.ts";

const count = 60;
let world: World;
let tenantId: TenantId;
let store: ReturnType<World["corpus"]["corpora"]["create"]>;
/** Texts of each call; what is done before it answers. */
const calls: (readonly string[])[] = [];
let before: () => void | Promise<void> = () => undefined;
const searched: number[] = [];
const numberIn = (text: string): number => Number(/\d+/.exec(text)?.[0] ?? 0);

beforeAll(async () => {
  world = createWorld(undefined, {
    reranker: {
      // The last is the best, which words alone cannot know.
      rerank: async (_query, texts, onTokens) => {
        calls.push(texts);
        await before();
        onTokens?.(texts.length * 10);
        return texts.map((text) => numberIn(text) / count);
      },
    },
    onSearched: (_tenantId, tokens) => void searched.push(tokens),
  });
  tenantId = world.tenants.create("acme").id;
  store = world.corpus.corpora.create(tenantId, { name: "1", metadata: {} });
  for (let at = 0; at < count; at++) await ingestText(world, store, `${at}.txt`, `The whale of number ${at}.`);
});
beforeEach(() => {
  calls.length = 0;
  searched.length = 0;
  before = () => undefined;
});
afterAll(() => world.remove());

const ask = (change: Partial<RetrieveRequest> = {}) =>
  world.corpus.retrieve({ tenantId, vectorStoreIds: [store.id], query: "whale", maxResults: 3, ...change });

describe("a search with a cross-encoder", () => {
  test("has the best 20 scored, and gives the best of them with its scores", async () => {
    const plain = await ask({ rerank: false, maxResults: 20 });
    expect(calls).toEqual([]);
    const found = await ask();
    expect(calls.map((texts) => [...texts])).toEqual([plain.map(({ text }) => text)]);
    const numbers = plain.map(({ text }) => numberIn(text)).sort((a, b) => b - a);
    expect(found.map(({ text, score }) => [numberIn(text), score])).toEqual(
      numbers.slice(0, 3).map((number) => [number, number / count]),
    );
    expect(searched).toEqual([200]);
  });

  test("has as many scored as are wanted, so that all scores mean the same", async () => {
    const found = await ask({ maxResults: 50 });
    expect(calls.map(({ length }) => length)).toEqual([50]);
    expect(found).toHaveLength(50);
    expect(found.map(({ score }) => score)).toEqual(found.map(({ score }) => score).sort((a, b) => b - a));
  });

  test("holds its threshold against the new scores", async () => {
    const all = await ask({ maxResults: 50 });
    const threshold = all[9]?.score ?? 0;
    expect(await ask({ maxResults: 50, scoreThreshold: threshold })).toEqual(all.slice(0, 10));
  });

  test("asks for nothing where nothing was found", async () => {
    expect(await ask({ query: "octopus" })).toEqual([]);
    expect(calls).toEqual([]);
  });

  test("says when the cross-encoder fails, and shows nothing that was deleted meanwhile", async () => {
    before = () => {
      throw new ApiError("worker_lost");
    };
    expect(await errorOf(ask())).toMatchObject({ code: "worker_lost" });
    const [best] = await (async () => {
      before = () => undefined;
      return await ask();
    })();
    before = () => void world.corpus.files.delete(tenantId, best?.fileId ?? "");
    const found = await ask();
    expect(found.map(({ id }) => id)).not.toContain(best?.id);
    expect(found).toHaveLength(3);
    before = () => void world.corpus.corpora.delete(tenantId, store.id);
    expect(await errorOf(ask())).toMatchObject({ code: "not_found" });
  });
});
