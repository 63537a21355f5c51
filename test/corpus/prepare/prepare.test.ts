import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { TenantId } from "../../../db/ids.ts";
import type { JobRow } from "../../../db/jobs.ts";
import { ApiError } from "../../../gateway/base/errors.ts";
import type { KvTier } from "../../../worker/contract/tiers.ts";
import { syncedChanges } from "../../support/synced-changes.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;
let store: ReturnType<World["corpus"]["corpora"]["create"]>;
let total = 0;

beforeEach(async () => {
  world = createWorld();
  tenantId = world.tenants.create("acme").id;
  store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
  await ingestText(world, store, "a.txt", Array.from({ length: 60 }, (_, i) => `Fact ${i} is so and so.`).join(" "));
  total = (await world.corpus.fragments.list(tenantId, store.id, { limit: 100, order: "asc" })).rows.length;
});
afterEach(() => world.remove());

const allPrepared = async (): Promise<boolean> => {
  const { rows } = await world.corpus.fragments.list(tenantId, store.id, { limit: 100, order: "asc" });
  return rows.every(({ row, span }) => row.preparedSpanKey === span?.spanKey && span?.residentWorkers.length === 1);
};

async function follow(job: JobRow, signal = new AbortController().signal): Promise<JobRow[]> {
  const states: JobRow[] = [];
  for await (const state of world.corpus.prepare.watchers.follow(job, signal)) states.push(state);
  return states;
}

describe("prepare jobs", () => {
  test("prepare every fragment, tell of progress that only rises, and end", async () => {
    expect(total).toBeGreaterThan(8);
    const job = world.corpus.prepare.create(tenantId, store.id);
    expect(job).toMatchObject({ status: "queued", done: 0, total });
    const states = await follow(job);
    expect(states[0]?.status).toBe("queued");
    expect(states.at(-1)).toMatchObject({ status: "completed", done: total, total });
    const done = states.map((state) => state.done);
    expect(done).toEqual([...done].sort((a, b) => a - b));
    expect(world.spans.prepared).toHaveLength(total);
    expect(await allPrepared()).toBe(true);
    // Who comes late sees the end at once.
    expect(await follow(world.corpus.prepare.get(tenantId, job.id))).toHaveLength(1);
  });

  test("sync what they are asked for, and none of their progress, which the next start makes again", async () => {
    const synced = syncedChanges(world.db);
    const job = world.corpus.prepare.create(tenantId, store.id);
    expect(synced).toHaveLength(1);
    expect((await follow(job)).at(-1)).toMatchObject({ status: "completed", done: total });
    expect(await allPrepared()).toBe(true);
    expect(synced).toHaveLength(1);
  });

  test("asked twice while open it is one job; afterwards it is a new one", async () => {
    const first = world.corpus.prepare.create(tenantId, store.id);
    expect(world.corpus.prepare.create(tenantId, store.id).id).toBe(first.id);
    await world.corpus.idle();
    expect(world.corpus.prepare.create(tenantId, store.id).id).not.toBe(first.id);
    await world.corpus.idle();
  });

  test("with targets are jobs of their own; what the server has no place for is refused by name", async () => {
    const create = (target?: KvTier) => world.corpus.prepare.create(tenantId, store.id, target);
    expect(() => create("disk")).toThrow('This server keeps no KV in "disk": it has "device".');
    world.spans.tiers = ["device", "disk"];
    const refused = (): unknown => {
      try {
        return create("s3");
      } catch (error) {
        return error;
      }
    };
    expect(refused()).toMatchObject({ code: "invalid_value", param: "target" });
    const jobs = [create(), create("disk"), create("device"), create("disk"), create()];
    expect(jobs.map(({ target }) => target)).toEqual([null, "disk", "device", "disk", null]);
    expect(new Set(jobs.map(({ id }) => id)).size).toBe(3);
    await world.corpus.idle();
    const goals = world.spans.goals.map((goal) => goal?.tier);
    expect(new Set(goals)).toEqual(new Set([undefined, "disk", "device"]));
    const there = world.spans.goals.map((goal) => goal?.tokensThere ?? 0);
    expect([Math.min(...there), Math.max(...there) > 0]).toEqual([0, true]);
    expect(world.spans.goals.every((goal) => goal === undefined || Math.abs(goal.sinceMs - Date.now()) < 60_000)).toBe(
      true,
    );
  });

  test("cancelled: stops, stays cancelled, and a follower sees it", async () => {
    const held = Promise.withResolvers<void>();
    world.spans.gate = () => (world.spans.prepared.length < 10 ? Promise.resolve() : held.promise);
    const job = world.corpus.prepare.create(tenantId, store.id);
    const followed = follow(job);
    while (world.spans.prepared.length < 10) await new Promise((resolve) => setImmediate(resolve));
    expect(world.corpus.prepare.cancel(tenantId, job.id)).toMatchObject({ status: "cancelled", done: 8 });
    held.resolve();
    expect((await followed).at(-1)?.status).toBe("cancelled");
    await world.corpus.idle();
    expect(world.spans.prepared.length).toBe(10);
    expect(world.corpus.prepare.cancel(tenantId, job.id).status).toBe("cancelled");
  });

  test("a worker that is lost or not ready is waited for; a plan it refuses fails the job with its code", async () => {
    world.spans.failures.push(new ApiError("not_ready"), new ApiError("worker_lost"));
    const patient = world.corpus.prepare.create(tenantId, store.id);
    await world.corpus.idle();
    expect(world.corpus.prepare.get(tenantId, patient.id)).toMatchObject({ status: "completed", done: total });
    world.spans.failures.push(new ApiError("context_length_exceeded"));
    const failed = world.corpus.prepare.create(tenantId, store.id);
    await world.corpus.idle();
    expect(world.corpus.prepare.get(tenantId, failed.id)).toMatchObject({
      status: "failed",
      errorCode: "context_length_exceeded",
    });
    expect(world.corpus.prepare.get(tenantId, failed.id).finishedAt).not.toBeNull();
  });

  test("a group is computed while the one before is written, and counts when it is", async () => {
    const written = Promise.withResolvers<void>();
    world.spans.written = () => written.promise;
    const job = world.corpus.prepare.create(tenantId, store.id);
    const state = () => world.corpus.prepare.get(tenantId, job.id);
    while (world.spans.prepared.length < 9) await new Promise((resolve) => setImmediate(resolve));
    expect(state()).toMatchObject({ status: "running", done: 0 });
    written.resolve();
    await world.corpus.idle();
    expect(state()).toMatchObject({ status: "completed", done: total });
    expect(world.spans.prepared).toHaveLength(total);
  });

  test("what could not be written is tried again, as often as other work; for good, it fails the job", async () => {
    const failures = [new ApiError("worker_lost"), new ApiError("not_ready")];
    const [first] = (await world.corpus.fragments.list(tenantId, store.id, { limit: 1, order: "asc" })).rows;
    const failing = async ({ id }: { readonly id: string }): Promise<void> => {
      const failure = id === first?.row.id ? failures.shift() : undefined;
      if (failure !== undefined) throw failure;
    };
    world.spans.written = failing;
    const patient = world.corpus.prepare.create(tenantId, store.id);
    const states = await follow(patient);
    expect(states.at(-1)).toMatchObject({ status: "completed", done: total });
    expect(states.map(({ done }) => done)).toEqual(states.map(({ done }) => done).sort((a, b) => a - b));
    // The first group twice more, each time with the one that was computed meanwhile.
    expect(world.spans.prepared.length).toBeGreaterThan(total + 16);
    failures.push(new ApiError("quota_exceeded"));
    const failed = world.corpus.prepare.create(tenantId, store.id);
    expect((await follow(failed)).at(-1)).toMatchObject({ status: "failed", errorCode: "quota_exceeded", done: 0 });
  });

  test("a stopped server's job is run again from its start", async () => {
    const held = Promise.withResolvers<void>();
    world.spans.gate = () => (world.spans.prepared.length < 10 ? Promise.resolve() : held.promise);
    const job = world.corpus.prepare.create(tenantId, store.id);
    while (world.spans.prepared.length < 10) await new Promise((resolve) => setImmediate(resolve));
    const closing = world.close();
    held.resolve();
    await closing;
    world = createWorld(world.dir);
    expect(world.corpus.prepare.get(tenantId, job.id)).toMatchObject({ status: "running", done: 8 });
    await world.corpus.start();
    await world.corpus.idle();
    expect(world.corpus.prepare.get(tenantId, job.id)).toMatchObject({ status: "completed", done: total });
    expect(world.spans.prepared).toHaveLength(total);
    expect(await allPrepared()).toBe(true);
  });

  test("one tenant's job does not wait for another's", async () => {
    const held = Promise.withResolvers<void>();
    const blocked = new Set<string>();
    for (const { row } of (await world.corpus.fragments.list(tenantId, store.id, { limit: 100, order: "asc" })).rows)
      blocked.add(row.id);
    const prepareSpans = world.spans.prepareSpans.bind(world.spans);
    world.spans.prepareSpans = async function* (spans, signal) {
      if (spans.some(({ id }) => blocked.has(id))) await held.promise;
      yield* prepareSpans(spans, signal);
    };
    const slow = world.corpus.prepare.create(tenantId, store.id);
    const other = world.tenants.create("other").id;
    const otherStore = world.corpus.corpora.create(other, { name: "o", metadata: {} });
    // Not through ingestText: idle would wait for the job that is held.
    const bytes = new TextEncoder().encode("Short text.");
    const file = await world.corpus.files.upload(other, {
      filename: "o.txt",
      purpose: "assistants",
      mediaType: "",
      bytes,
    });
    const chunking = { maxTokens: 32, overlapTokens: 0 };
    await world.corpus.corpusFiles.attach(otherStore, [{ fileId: file.id, attributes: {}, chunking }], "file_id");
    while (world.corpus.corpusFiles.get(otherStore, file.id).status !== "completed")
      await new Promise((resolve) => setImmediate(resolve));
    const quick = await follow(world.corpus.prepare.create(other, otherStore.id));
    expect(quick.at(-1)).toMatchObject({ status: "completed", done: 1 });
    expect(world.corpus.prepare.get(tenantId, slow.id).status).toBe("running");
    held.resolve();
    await world.corpus.idle();
    expect(world.corpus.prepare.get(tenantId, slow.id).status).toBe("completed");
  });

  test("deleting the corpus ends the job, its followers, and leaves no KV", async () => {
    const held = Promise.withResolvers<void>();
    world.spans.gate = () => (world.spans.prepared.length < 10 ? Promise.resolve() : held.promise);
    const job = world.corpus.prepare.create(tenantId, store.id);
    const followed = follow(job);
    while (world.spans.prepared.length < 10) await new Promise((resolve) => setImmediate(resolve));
    world.corpus.corpora.delete(tenantId, store.id);
    held.resolve();
    await followed;
    await world.corpus.idle();
    expect(() => world.corpus.prepare.get(tenantId, job.id)).toThrow("No such object.");
    expect(world.spans.resident.size).toBe(0);
  });

  test("a file deleted while its fragments are computed leaves no KV", async () => {
    const held = Promise.withResolvers<void>();
    const entered = Promise.withResolvers<void>();
    world.spans.gate = () => {
      entered.resolve();
      return held.promise;
    };
    const [first] = (await world.corpus.fragments.list(tenantId, store.id, { limit: 1, order: "asc" })).rows;
    world.corpus.prepare.create(tenantId, store.id);
    await entered.promise;
    world.corpus.files.delete(tenantId, first?.row.fileId ?? "");
    const fragmentCount = () => world.db.client.query<{ n: number }, []>("select count(*) n from fragments").get()?.n;
    while (fragmentCount() !== 0) await new Promise((resolve) => setImmediate(resolve));
    held.resolve();
    await world.corpus.idle();
    expect(world.spans.prepared.length).toBeGreaterThan(0);
    expect(world.spans.resident.size).toBe(0);
  });

  test("a follower that goes away is forgotten", async () => {
    const held = Promise.withResolvers<void>();
    world.spans.gate = () => held.promise;
    const job = world.corpus.prepare.create(tenantId, store.id);
    const gone = new AbortController();
    const followed = follow(job, gone.signal);
    gone.abort();
    expect((await followed).length).toBeLessThanOrEqual(1);
    held.resolve();
    await world.corpus.idle();
  });
});

describe("other tenants' jobs", () => {
  /** A store of another tenant's with so many fragments at least. */
  async function storeOf(name: string, sentences: number) {
    const id = world.tenants.create(name).id;
    const made = world.corpus.corpora.create(id, { name, metadata: {} });
    const text = Array.from({ length: sentences }, (_, i) => `${name} has fact ${i} of many more.`).join(" ");
    await ingestText(world, made, `${name}.txt`, text);
    return made;
  }
  /** Whose groups were given to the workers, in their order. */
  function recorded(before: (tenant: string) => Promise<void> | void = () => undefined): string[] {
    const groups: string[] = [];
    const prepareSpans = world.spans.prepareSpans.bind(world.spans);
    world.spans.prepareSpans = async function* (spans, signal, facts?: { readonly tenantId?: string }) {
      const tenant = facts?.tenantId ?? "";
      groups.push(tenant);
      await before(tenant);
      yield* prepareSpans(spans, signal);
    };
    return groups;
  }

  test("one with many large stores has one group at a time, and another's fragment is next", async () => {
    const stores = [store];
    for (let i = 0; i < 10; i++) {
      const more = world.corpus.corpora.create(tenantId, { name: `${i}`, metadata: {} });
      await ingestText(world, more, `${i}.txt`, Array.from({ length: 60 }, (_, n) => `It ${i} is ${n}.`).join(" "));
      stores.push(more);
    }
    const small = await storeOf("small", 1);
    let running = 0;
    let most = 0;
    const groups = recorded(async (tenant) => {
      if (tenant !== tenantId) return;
      running += 1;
      most = Math.max(most, running);
      await new Promise((resolve) => setImmediate(resolve));
      running -= 1;
    });
    for (const { id } of stores) world.corpus.prepare.create(tenantId, id);
    while (groups.length < 3) await new Promise((resolve) => setImmediate(resolve));
    const before = groups.length;
    const states = await follow(world.corpus.prepare.create(small.tenantId, small.id));
    expect(states.at(-1)).toMatchObject({ status: "completed" });
    expect(groups.slice(before).indexOf(small.tenantId)).toBeLessThanOrEqual(2);
    expect(most).toBe(1);
    await world.corpus.idle();
    expect(stores.map(({ id }) => world.corpus.prepare.create(tenantId, id).status)).toEqual(
      stores.map(() => "queued"),
    );
  });

  test("those that the workers refuse for now give their lanes back", async () => {
    const waiting: string[] = [];
    for (let i = 0; i < 20; i++) waiting.push((await storeOf(`waiting ${i}`, 1)).id);
    const groups = recorded((tenant) => {
      if (tenant !== tenantId) throw new ApiError("rate_limited", { retryAfterS: 3_600 });
    });
    const jobs = waiting.map((storeId) => {
      const owner = world.corpus.corpora.ownerOf(storeId);
      return { owner, id: world.corpus.prepare.create(owner, storeId).id };
    });
    while (new Set(groups).size < waiting.length) await new Promise((resolve) => setImmediate(resolve));
    const states = await follow(world.corpus.prepare.create(tenantId, store.id));
    expect(states.at(-1)).toMatchObject({ status: "completed", done: total });
    for (const { owner, id } of jobs) {
      expect(world.corpus.prepare.get(owner, id).status).toBe("running");
    }
    // Cancelled while it waits: it is not tried again.
    const tries = groups.length;
    for (const { owner, id } of jobs) world.corpus.prepare.cancel(owner, id);
    await world.corpus.idle();
    expect(groups.length).toBe(tries);
  });
});
