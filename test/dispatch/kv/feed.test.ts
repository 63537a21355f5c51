/** A follower that reads on knows what the workers hold, whenever it came and however slow it is. */
import { expect, test } from "bun:test";
import { type FedChange, KvFeed } from "../../../gateway/dispatch/kv/feed.ts";
import { Residency } from "../../../gateway/dispatch/kv/residency.ts";
import type { KvEvent } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";

const keysOf = (from: number, count: number): BlockKey[] =>
  Array.from({ length: count }, (_, index) => String(from + index).padStart(32, "0") as BlockKey);

function opened(maxKeys = 100, keysPerChange = 4) {
  const residency = new Residency();
  const feed = new KvFeed({ residency, maxKeys, keysPerChange });
  const tell = (worker: string, event: KvEvent): void => {
    residency.apply(worker, [event]);
    feed.apply(worker, [event]);
  };
  const stored = (worker: string, from: number, count: number): void => {
    const blockKeys = keysOf(from, count);
    const previousKeys = blockKeys.map(() => "root" as BlockKey);
    tell(worker, { sequence: 1, type: "stored", blockKeys, previousKeys, tokenCounts: blockKeys.map(() => 16) });
  };
  const removed = (worker: string, from: number, count: number): void =>
    tell(worker, { sequence: 1, type: "removed", blockKeys: keysOf(from, count) });
  const lost = (worker: string): void => {
    residency.forget(worker);
    feed.lost(worker);
  };
  return { residency, feed, tell, stored, removed, lost };
}

/** What a follower believes that workers hold. */
class Follower {
  readonly held = new Map<string, Map<BlockKey, number>>();
  lastId: string | undefined;
  changes = 0;
  restarts = 0;
  readonly #gone = new AbortController();
  readonly #events: AsyncGenerator<FedChange>;

  constructor(feed: KvFeed, lastId?: string) {
    this.#events = feed.follow(lastId, this.#gone.signal);
  }

  async read(): Promise<FedChange["change"]["type"] | undefined> {
    const { value } = await this.#events.next();
    if (value === undefined) return undefined;
    this.lastId = value.id ?? this.lastId;
    const { change } = value;
    if (change.type === "current") return "current";
    this.changes += 1;
    if (change.type === "cleared" && change.worker === null) {
      this.restarts += 1;
      this.held.clear();
    } else if (change.type === "cleared") this.held.delete(String(change.worker));
    else {
      const keys = this.held.get(change.worker) ?? new Map<BlockKey, number>();
      this.held.set(change.worker, keys);
      for (const [index, key] of change.blockKeys.entries()) {
        if (change.type === "removed") keys.delete(key);
        else keys.set(key, change.tokenCounts[index] ?? 0);
      }
    }
    return change.type;
  }

  async untilCurrent(): Promise<void> {
    while ((await this.read()) !== "current");
  }

  leave(): void {
    this.#gone.abort();
  }
}

const truth = (residency: Residency) =>
  new Map(
    residency.all().map(({ workerId, blockKeys, tokenCounts }) => {
      return [workerId, new Map(blockKeys.map((key, index) => [key, tokenCounts[index] ?? 0]))] as const;
    }),
  );
const filled = (held: ReturnType<typeof truth>) => new Map([...held].filter(([, keys]) => keys.size > 0));

test("names the tier of each block, in the account of all that is held and afterwards", async () => {
  const { feed, stored, tell } = opened();
  const below = { sequence: 2, tier: "host", blockKeys: keysOf(1, 1) } as const;
  stored("a", 1, 1);
  tell("a", { ...below, type: "stored", previousKeys: keysOf(0, 1), tokenCounts: [16] });
  const events = feed.follow(undefined, new AbortController().signal);
  const read = async (count: number) => {
    const changes: unknown[] = [];
    for (let left = count; left > 0; left--) changes.push((await events.next()).value?.change);
    return changes.map((change) => [(change as { type: string }).type, (change as { tier?: string }).tier]);
  };
  expect(await read(4)).toEqual([
    ["cleared", undefined],
    ["stored", "device"],
    ["stored", "host"],
    ["current", undefined],
  ]);
  tell("a", { ...below, type: "removed" });
  expect(await read(1)).toEqual([["removed", "host"]]);
  await events.return(undefined);
});

test("who comes first is told all that is held, in parts, and then every change", async () => {
  const { feed, residency, stored, removed, lost } = opened();
  stored("a", 0, 10);
  stored("b", 20, 3);
  const follower = new Follower(feed);
  await follower.untilCurrent();
  // "nothing is held", then 4 + 4 + 2 keys and 3.
  expect(follower.changes).toBe(5);
  expect(follower.held).toEqual(truth(residency));
  removed("a", 2, 5);
  stored("b", 30, 1);
  for (let change = 0; change < 3; change++) await follower.read();
  expect(follower.held).toEqual(truth(residency));
  lost("b");
  await follower.read();
  expect(filled(follower.held)).toEqual(truth(residency));
  expect(follower.restarts).toBe(1);
});

test("who comes back is told what has changed since, once", async () => {
  const { feed, residency, stored, removed } = opened();
  stored("a", 0, 4);
  const first = new Follower(feed);
  await first.untilCurrent();
  first.leave();
  removed("a", 0, 1);
  stored("a", 8, 2);
  const again = new Follower(feed, first.lastId);
  for (const [worker, keys] of first.held) again.held.set(worker, keys);
  expect([await again.read(), await again.read()]).toEqual(["removed", "stored"]);
  expect(again.held).toEqual(truth(residency));
  expect(again.restarts).toBe(0);
  const waiting = again.read();
  again.leave();
  expect(await waiting).toBeUndefined();
});

test("an id that is not known any more, or never was, brings the whole account", async () => {
  const { feed, residency, stored } = opened(8);
  stored("a", 0, 1);
  const follower = new Follower(feed);
  await follower.untilCurrent();
  const early = follower.lastId;
  for (let at = 1; at < 20; at++) stored("a", at, 1);
  const other = opened().feed;
  for (const id of [early, undefined, "", "x-1", `${early}99`, "0".repeat(16).concat("-1")]) {
    const late = new Follower(feed, id);
    await late.untilCurrent();
    expect([id, late.restarts, late.held.get("a")?.size]).toEqual([id, 1, 20]);
  }
  const stranger = new Follower(other, follower.lastId);
  await stranger.untilCurrent();
  expect(stranger.restarts).toBe(1);
  expect(truth(residency).get("a")?.size).toBe(20);
});

test("a slow follower is told anew what it has missed, also while it is told", async () => {
  const { feed, residency, stored, removed } = opened(8, 1);
  stored("a", 0, 6);
  const follower = new Follower(feed);
  for (let change = 0; change < 3; change++) await follower.read();
  for (let at = 10; at < 40; at++) stored("a", at, 1);
  removed("a", 0, 20);
  await follower.untilCurrent();
  expect(follower.held).not.toEqual(truth(residency));
  await follower.untilCurrent();
  expect(follower.held).toEqual(truth(residency));
  expect(follower.restarts).toBe(2);
});
