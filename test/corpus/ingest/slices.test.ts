/** What one tenant deletes is done in small pieces, between which everybody else has a turn. */
import { afterEach, beforeEach, describe, expect, mock, spyOn, test } from "bun:test";
import type { TenantId } from "../../../db/ids.ts";
import { holdLongWork, memoryRoom } from "../../../gateway/base/pace.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;
/** Turns of the event loop so far. */
let turns = 0;
let counting = true;

beforeEach(() => {
  world = createWorld();
  tenantId = world.tenants.create("acme").id;
  counting = true;
  const count = (): void => {
    turns += 1;
    if (counting) setImmediate(count);
  };
  count();
});
afterEach(async () => {
  counting = false;
  mock.restore();
  await world.remove();
});

/** From here on each look at the clock is a turn's time later: whoever lets others run at all does it now. */
function slowClock(): void {
  let nowMs = performance.now();
  spyOn(performance, "now").mockImplementation(() => {
    nowMs += 10;
    return nowMs;
  });
}

const indexCount = (): number =>
  world.db.client.query<{ n: number }, []>("select count(*) n from sqlite_schema where sql like '%using fts5%'").get()
    ?.n ?? 0;

/** Turns in which the transaction was made, one entry for each time. */
function turnsOf(name: string, each: () => void = () => undefined): number[] {
  const transaction = world.db.transaction.bind(world.db);
  const seen: number[] = [];
  spyOn(world.db, "transaction").mockImplementation((given, work) => {
    if (given === name) {
      seen.push(turns);
      each();
    }
    return transaction(given, work);
  });
  return seen;
}

describe("a tenant with many empty stores", () => {
  const storeCount = 30;
  beforeEach(() => {
    for (let n = 0; n < storeCount; n++) world.corpus.corpora.create(tenantId, { name: `s${n}`, metadata: {} });
  });

  test("is deleted one index a turn; the workers hear of all in one message", async () => {
    const told = spyOn(world.spans, "evictCorpora");
    const dropped = turnsOf("dropDeletedIndexes");
    slowClock();
    world.tenants.delete(tenantId);
    await world.corpus.tenantDeleted(tenantId);
    expect(told).toHaveBeenCalledTimes(1);
    expect(told.mock.calls[0]?.[0]).toHaveLength(storeCount);
    await world.corpus.idle();
    expect(dropped).toHaveLength(storeCount);
    expect(new Set(dropped).size).toBe(storeCount);
    expect(indexCount()).toBe(0);
  });

  test("that was deleted by halves when the server ended is deleted whole by the next", async () => {
    const dropped = turnsOf("dropDeletedIndexes", () => {
      if (dropped.length === storeCount / 2) void world.corpus.stop();
    });
    slowClock();
    world.tenants.delete(tenantId);
    world.corpus.tenantDeleted(tenantId);
    await world.corpus.idle();
    expect(indexCount()).toBe(storeCount / 2);
    mock.restore();
    const { dir } = world;
    await world.close();
    world = createWorld(dir);
    await world.corpus.start();
    await world.corpus.idle();
    expect(indexCount()).toBe(0);
    expect(world.db.client.query("select 1 from corpora").all()).toEqual([]);
    expect(world.db.client.query("select 1 from tenants").all()).toEqual([]);
  });
});

test("a large file is ingested while there is memory for it; a small one does not wait", async () => {
  let [asked, tightLooks] = [0, 3];
  const isTight = (): boolean => {
    asked += 1;
    return asked <= tightLooks;
  };
  const never = (): boolean => false;
  holdLongWork(never, isTight);
  try {
    const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
    await ingestText(world, store, "small.txt", "A few words.");
    expect(asked).toBe(0);
    await ingestText(world, store, "large.txt", "a b c d. ".repeat(30_000), {}, 4_096);
    expect(asked).toBeGreaterThan(tightLooks);
    const { rows } = world.corpus.corpusFiles.list(store, { limit: 2, order: "asc" });
    expect(rows.map(({ status }) => status)).toEqual(["completed", "completed"]);
    // A memory that stays full ends no file: one that is deleted meanwhile waits no more.
    [asked, tightLooks] = [0, Number.POSITIVE_INFINITY];
    const aborted = new AbortController();
    const room = memoryRoom(aborted.signal);
    aborted.abort();
    await room;
    expect(asked).toBeLessThan(5);
  } finally {
    holdLongWork(never, never);
  }
});

test("a large file goes from its store in pieces of a few thousand characters", async () => {
  const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
  const text = Array.from({ length: 3_000 }, (_, n) => `Line ${n} of a long file. `).join("");
  const file = await ingestText(world, store, "large.txt", text);
  const charsLeft = (): number =>
    world.db.client.query<{ n: number | null }, []>("select sum(length(text)) n from fragments").get()?.n ?? 0;
  const left: number[] = [];
  const removed = turnsOf("removeFragments", () => left.push(charsLeft()));
  const { spans } = world;
  const charsByTurn = new Map<number, number>();
  const lowerSpan = spans.lowerSpan.bind(spans);
  spyOn(spans, "lowerSpan").mockImplementation((span) => {
    charsByTurn.set(turns, (charsByTurn.get(turns) ?? 0) + span.text.length);
    return lowerSpan(span);
  });
  slowClock();
  world.corpus.files.delete(tenantId, file.id);
  await world.corpus.idle();
  expect(charsLeft()).toBe(0);
  const pieces = left.map((chars, index) => chars - (left[index + 1] ?? 0));
  expect(pieces.length).toBeGreaterThan(10);
  expect(Math.max(...pieces)).toBeLessThanOrEqual(4_096);
  expect(new Set(removed).size).toBe(removed.length);
  expect(Math.max(...charsByTurn.values())).toBeLessThanOrEqual(4_096);
});
