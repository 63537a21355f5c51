import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { FileId, TenantId } from "../../../db/ids.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;

beforeEach(() => {
  world = createWorld();
  tenantId = world.tenants.create("acme").id;
});
afterEach(() => world.remove());

const text = (name: string) => Array.from({ length: 6 }, (_, i) => `${name} ${i} is a thing. `.repeat(6)).join("\n\n");

async function populated() {
  const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
  const file = await ingestText(world, store, "a.txt", text("apple"));
  const { rows } = await world.corpus.fragments.list(tenantId, store.id, { limit: 50, order: "asc" });
  const ids = rows.map(({ row }) => row.id);
  return { store, file, ids, first: ids[0] ?? "", second: ids[1] ?? "" };
}

function keysOf(storeId: string, ...ids: string[]): BlockKey[] {
  const found = world.corpus.readFragments(tenantId, ids);
  expect(storeId).not.toBe("");
  return found.flatMap((fragment) => (fragment === undefined ? [] : world.spans.lowerSpan(fragment).blockKeys));
}

const pinnedKeys = () => [...world.spans.pinned.keys()].sort();

describe("a pinned fragment", () => {
  test("is computed, and evicted last, until it is pinned no more", async () => {
    const { store, first, second } = await populated();
    expect(world.corpus.pins.pin(tenantId, first).row.pinnedTier).toBe("device");
    expect(world.corpus.pins.pin(tenantId, first).row.pinnedTier).toBe("device");
    await world.corpus.idle();
    expect(pinnedKeys()).toEqual(keysOf(store.id, first).sort());
    expect(new Set(world.spans.pinned.values())).toEqual(new Set([tenantId]));
    expect([...world.spans.resident].sort()).toEqual(pinnedKeys());
    const listed = (await world.corpus.fragments.list(tenantId, store.id, { limit: 50, order: "asc" })).rows;
    expect(listed.filter(({ row }) => row.pinnedTier !== null).map(({ row }) => row.id as string)).toEqual([first]);
    world.corpus.pins.pin(tenantId, second);
    expect(world.corpus.pins.unpin(tenantId, first).row.pinnedTier).toBeNull();
    await world.corpus.idle();
    expect(pinnedKeys()).toEqual(keysOf(store.id, second).sort());
    // It may stay; it is only not held.
    expect(world.spans.resident.has(keysOf(store.id, first)[0] as BlockKey)).toBe(true);
  });

  test("in files takes no place among those of the workers, and stays when it is pinned elsewhere", async () => {
    const { store, first, second } = await populated();
    const { pins } = world.corpus;
    expect(() => pins.pin(tenantId, first, "disk")).toThrow('it has "device". SPANGATE_KV_DISK_BYTES gives');
    expect(() => pins.pin(tenantId, first, "host")).toThrow("SPANGATE_KV_HOST_BYTES");
    world.spans.tiers = ["device", "host", "disk"];
    expect(pins.pin(tenantId, first, "host").row.pinnedTier).toBe("host");
    await world.corpus.idle();
    expect([pinnedKeys(), [...world.spans.pinnedBelow.keys()].sort()]).toEqual([[], keysOf(store.id, first).sort()]);
    expect(pins.pin(tenantId, first, "disk").row.pinnedTier).toBe("disk");
    pins.pin(tenantId, second);
    await world.corpus.idle();
    expect(pinnedKeys()).toEqual(keysOf(store.id, second).sort());
    const spanKeys = [first, second].map((id) => keysOf(store.id, id).at(-1));
    expect(world.spans.pinnedSpans).toEqual(new Set(spanKeys as BlockKey[]));
    // A pin goes to another tier as a whole, and each tier has its own room.
    const own = world.corpus.pins.pin(tenantId, second).span?.blockCount ?? 0;
    world.spans.mostPinned = own;
    expect(() => pins.pin(tenantId, second, "disk")).toThrow("1 fragments of");
    pins.unpin(tenantId, first);
    expect(pins.pin(tenantId, second, "disk").row.pinnedTier).toBe("disk");
    await world.corpus.idle();
    expect([pinnedKeys(), [...world.spans.pinnedSpans]]).toEqual([[], [spanKeys[1] as BlockKey]]);
  });

  test("that is evicted is pinned no more, and gone", async () => {
    const { store, first } = await populated();
    world.corpus.pins.pin(tenantId, first);
    await world.corpus.idle();
    const facts = world.corpus.pins.evict(tenantId, first);
    expect([facts.row.pinnedTier, facts.span?.residentWorkers]).toEqual([null, []]);
    await world.corpus.idle();
    expect([world.spans.resident.size, world.spans.pinned.size]).toEqual([0, 0]);
    expect(keysOf(store.id, first).length).toBeGreaterThan(0);
  });

  test("is computed again when a worker begins with nothing, and after a restart; nothing else is", async () => {
    const { store, first } = await populated();
    world.corpus.prepare.create(tenantId, store.id);
    world.corpus.pins.pin(tenantId, first);
    await world.corpus.idle();
    world.spans.resident.clear();
    world.corpus.pins.wake();
    await world.corpus.idle();
    const keys = keysOf(store.id, first).sort();
    expect([...world.spans.resident].sort()).toEqual(keys);
    await world.close();
    world = createWorld(world.dir);
    world.spans.ready = false;
    await world.corpus.start();
    world.corpus.pins.wake();
    await world.corpus.idle();
    expect(world.spans.pinned.size).toBe(0);
    world.spans.ready = true;
    world.corpus.pins.wake();
    await world.corpus.idle();
    expect([[...world.spans.resident].sort(), pinnedKeys()]).toEqual([keys, keys]);
  });

  test("has other keys after its corpus's salt is rotated", async () => {
    const { store, first } = await populated();
    world.corpus.pins.pin(tenantId, first);
    await world.corpus.idle();
    const before = pinnedKeys();
    world.corpus.corpora.rotateSalt(tenantId, store.id);
    await world.corpus.idle();
    expect(pinnedKeys()).toEqual(keysOf(store.id, first).sort());
    expect(pinnedKeys()).not.toEqual(before);
    expect([...world.spans.resident].sort()).toEqual(pinnedKeys());
  });

  test("goes with its file, its corpus and its tenant", async () => {
    const { store, file, first } = await populated();
    world.corpus.pins.pin(tenantId, first);
    await world.corpus.idle();
    world.corpus.corpusFiles.detach(store, file.id as FileId);
    expect(() => world.corpus.pins.unpin(tenantId, first)).toThrow("No such object.");
    await world.corpus.idle();
    expect([world.spans.pinned.size, world.spans.resident.size]).toEqual([0, 0]);

    const again = await populated();
    world.corpus.pins.pin(tenantId, again.first);
    await world.corpus.idle();
    world.corpus.corpora.delete(tenantId, again.store.id);
    await world.corpus.idle();
    expect([world.spans.pinned.size, world.spans.resident.size]).toEqual([0, 0]);

    const last = await populated();
    world.corpus.pins.pin(tenantId, last.first);
    await world.corpus.idle();
    world.tenants.delete(tenantId);
    world.corpus.tenantDeleted(tenantId);
    await world.corpus.idle();
    expect(world.db.client.query("select * from fragment_pins").all()).toEqual([]);
    expect(world.spans.pinned.size).toBe(0);
  });
});

describe("what cannot be pinned", () => {
  test("another tenant's fragment is as unknown as one that there is not", async () => {
    const { first } = await populated();
    const other = world.tenants.create("other").id;
    for (const id of [first, `frag_${"0".repeat(24)}`, "nonsense", ""]) {
      for (const action of ["pin", "unpin", "evict"] as const) {
        expect(() => world.corpus.pins[action](other, id)).toThrow("No such object.");
      }
    }
  });

  test("more than the tenant may pin; what is pinned already may be pinned again", async () => {
    const { first, second } = await populated();
    const { span } = world.corpus.pins.pin(tenantId, first);
    world.spans.mostPinned = span?.blockCount ?? 0;
    expect(() => world.corpus.pins.pin(tenantId, second)).toThrow("may pin");
    world.corpus.pins.pin(tenantId, first);
    world.corpus.pins.unpin(tenantId, first);
    world.spans.mostPinned += 100;
    world.corpus.pins.pin(tenantId, second);
  });

  test("anything while no model is known", async () => {
    const { first } = await populated();
    world.spans.ready = false;
    expect(() => world.corpus.pins.pin(tenantId, first)).toThrow();
    world.corpus.pins.unpin(tenantId, first);
    world.corpus.pins.evict(tenantId, first);
  });
});
