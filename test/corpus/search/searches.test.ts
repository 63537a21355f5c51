/** Searches run in threads of their own: what that is for, and what it must not change. */
import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { readdirSync } from "node:fs";
import type { CorpusRow } from "../../../db/corpora.ts";
import type { TenantId } from "../../../db/ids.ts";
import { openReader } from "../../../db/open.ts";
import { rankFragments } from "../../../gateway/corpus/search/rank.ts";
import type { RetrieveRequest } from "../../../gateway/corpus/search/retrieve.ts";
import { Searches } from "../../../gateway/corpus/search/searches.ts";
import { TaskTimeout, ThreadPool } from "../../../gateway/threads/pool.ts";
import { Thread } from "../../../gateway/threads/thread.ts";
import { errorOf } from "../../support/errors.ts";
import { longestNormalizedRow, manyMarks } from "../../support/normalized.ts";
import { until } from "../../support/until.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;
const stores: CorpusRow[] = [];

beforeEach(async () => {
  const vector = Float32Array.of(1, 0, 0, 0);
  const embedder = {
    card: async () => ({ modelId: "one", dimensions: 4 }),
    embed: async (texts: readonly string[]) => texts.map(() => vector),
  };
  world = createWorld(undefined, { embedder, hybridByDefault: true });
  tenantId = world.tenants.create("acme").id;
  stores.length = 0;
  for (const name of ["a", "b"]) {
    const store = world.corpus.corpora.create(tenantId, { name, metadata: {} });
    await ingestText(world, store, `${name}.txt`, `The heron of ${name} stands in the reeds.`, { name });
    stores.push(store);
  }
});
afterEach(() => world.remove());

const search = (change: Partial<RetrieveRequest> = {}) => {
  const vectorStoreIds = stores.map(({ id }) => id);
  return world.corpus.retrieve({ tenantId, vectorStoreIds, query: "heron", maxResults: 8, ...change });
};

describe("a search", () => {
  test("reads no more through the event loop's connection than the texts that it gives", async () => {
    using statement = spyOn(world.db, "statement");
    const filters = { type: "in", key: "name", value: ["a", "b"] } as const;
    expect(await search({ filters })).toHaveLength(2);
    const names = new Set(statement.mock.calls.map(([name]) => name));
    expect([...names].sort()).toEqual(["findCorpus", "readHits"]);
  });

  test("reads each text once, though it stands in both rankings of each store", async () => {
    using statement = spyOn(world.db, "statement");
    expect(await search({ maxResults: 1 })).toHaveLength(1);
    const read = statement.mock.results.filter((_, at) => statement.mock.calls[at]?.[0] === "readHits");
    expect(read.map(({ value }) => (value as unknown[]).length)).toEqual([1]);
  });

  test("does not find what was deleted while it ran", async () => {
    const running = search();
    const [first] = world.corpus.corpusFiles.list(stores[0] as CorpusRow, { limit: 1, order: "asc" }).rows;
    world.corpus.files.delete(tenantId, first?.fileId ?? "");
    expect((await running).map(({ filename }) => filename)).toEqual(["b.txt"]);
  });

  test("ends when one of its stores is deleted while it runs", async () => {
    const running = search();
    world.corpus.corpora.delete(tenantId, stores[1]?.id ?? "");
    expect(await errorOf(running)).toMatchObject({ code: "not_found", param: "vector_store_ids" });
    expect(await search({ vectorStoreIds: [stores[0]?.id ?? ""] })).toHaveLength(1);
  });

  test("that takes too long fails by itself and says why", async () => {
    using run = spyOn(ThreadPool.prototype, "run").mockRejectedValueOnce(new TaskTimeout("too long"));
    expect(await errorOf(search())).toMatchObject({
      code: "deadline_exceeded",
      message:
        "The search took longer than 10 s, or waited too long behind others. Search by fewer words, or in fewer vector stores.",
    });
    expect(run.mock.calls.map(([name, , { tenantId: who, maxMs }]) => [name, who, maxMs])).toEqual([
      ["rank", tenantId, 10_000],
    ]);
  });

  test("by marks that no language has so many of holds nobody up", async () => {
    using rank = spyOn(Searches.prototype, "rank");
    await search({ query: manyMarks(16_000) });
    const [, asked] = rank.mock.calls[0] ?? [];
    if (asked === undefined) throw new Error("nothing was searched");
    using reader = Object.assign(openReader(`${world.dir}/spangate.db`), {
      [Symbol.dispose]: () => reader.close(),
    });
    expect(await longestNormalizedRow(() => rankFragments(reader, asked))).toBe(30);
  });
});

describe("a client that has gone", () => {
  test("is not searched for: what waits does not begin, and is refused at once", async () => {
    using run = spyOn(Thread.prototype, "run");
    const pause = await world.db.pauseReaders(60_000);
    const client = new AbortController();
    const waiting = Array.from({ length: 8 }, () => errorOf(search({ signal: client.signal })));
    // Each has embedded its question, and waits for a thread.
    await Bun.sleep(20);
    client.abort(new Error("gone"));
    expect((await Promise.all(waiting)).map(String)).toEqual(Array(8).fill("Error: gone"));
    pause?.[Symbol.dispose]();
    expect(await search()).toHaveLength(2);
    expect(run.mock.calls.map(([{ name }]) => name)).toEqual(["rank"]);
  });

  test("leaves its thread to the next where the search is short", async () => {
    await search();
    using end = spyOn(Thread.prototype, "end");
    using run = spyOn(Thread.prototype, "run");
    const client = new AbortController();
    const running = errorOf(search({ signal: client.signal }));
    while (run.mock.calls.length === 0) await Promise.resolve();
    client.abort(new Error("gone"));
    expect(String(await running)).toBe("Error: gone");
    expect(await search()).toHaveLength(2);
    expect(end.mock.calls.length).toBe(0);
  });
});

describe("a pause of the readers", () => {
  test("lets the log be emptied; a search that comes meanwhile is answered after it", async () => {
    await search();
    const running = Array.from({ length: 8 }, () => search());
    const pause = await world.db.pauseReaders(60_000);
    let isAnswered = false;
    const late = search().then(({ length }) => {
      isAnswered = true;
      return length;
    });
    await Bun.sleep(20);
    expect(isAnswered).toBe(false);
    expect(world.db.truncateLog()).toBe(true);
    pause?.[Symbol.dispose]();
    expect(await late).toBe(2);
    expect((await Promise.all(running)).map(({ length }) => length)).toEqual(Array(8).fill(2));
  });
});

test("the threads' connections are closed with the threads: no log is left", async () => {
  await search();
  await world.close();
  const files = () => readdirSync(world.dir).filter((name) => name.startsWith("spangate.db"));
  const isClosed = () => {
    // The event loop's own connection is closed once its statements are collected.
    Bun.gc(true);
    return files().length === 1;
  };
  await until(isClosed, "the database is closed");
  expect(files()).toEqual(["spangate.db"]);
  world = createWorld(world.dir);
});
