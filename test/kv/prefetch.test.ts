/** What a search has named comes nearer: from the bucket to the folder, from there to a worker, tenants in turn. */
import { expect, test } from "bun:test";
import { type FragmentId, newId, type TenantId } from "../../db/ids.ts";
import { KvPrefetch } from "../../gateway/kv/prefetch.ts";
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import { until } from "../support/until.ts";
import { FakeMover } from "./fake-mover.ts";
import { KvRig, saltA, spanOf } from "./rig.ts";

class PrefetchRig extends KvRig {
  readonly mover = new FakeMover(this.folder);
  readonly told: string[] = [];
  readonly held = new Set<string>();
  now = 0;
  readonly prefetch = new KvPrefetch({
    db: this.db,
    places: () => this.kv.places,
    isHeld: (spanKey) => this.held.has(spanKey),
    likelyWorker: () => "worker-1",
    send: (workerId, message: GatewayMessage) => {
      if (message.type === "prefetch") this.told.push(...message.objectIds.map((id) => `${workerId} ${id}`));
      return true;
    },
    nowMs: () => this.now,
  });

  /** Objects of one span each, in folder and bucket, and the fragments that they are of. */
  async fill(count: number): Promise<{ ids: string[]; fragments: FragmentId[]; spanKeys: string[] }> {
    const quotaBytesOf = () => undefined;
    const bucket = { address: "s3://b/kv", mostBytes: 2 ** 40, openMover: () => this.mover, quotaBytesOf };
    await this.start({ mostBytes: 2 ** 40, bucket });
    this.db.client.run("pragma foreign_keys = off");
    const froms = Array.from({ length: count }, (_, index) => 1 + 30 * index);
    for (const from of froms) await this.keep(saltA, from);
    await until(() => this.count("in_bucket = 2") === count, "all are in the bucket", 20_000);
    const spanKeys = froms.map((from) => spanOf(saltA, from, 20).blockKeys.at(-1) ?? "");
    const fragments = spanKeys.map((spanKey, index) => {
      const id = newId("fragment");
      const sql =
        "insert into fragments (id, corpus_file_seq, ordinal, text, first_char, end_char, token_count, prepared_span_key) values (?, 1, ?, '', 0, 0, 1, ?)";
      this.db.client.run(sql, [id, index, spanKey]);
      return id;
    });
    const rows = this.db.client.query<{ id: string }, []>("select id from kv_objects order by seq").all();
    return { ids: rows.map(({ id }) => id), fragments, spanKeys };
  }

  count(where: string): number {
    return (
      this.db.client.query<{ n: number }, []>(`select count(*) as n from kv_objects where ${where}`).get()?.n ?? -1
    );
  }

  get gets(): string[] {
    return this.mover.jobs.filter((job) => job.startsWith("get "));
  }
}

const tenant = (index: number): TenantId => `tenant_${index}`;

/** Resolves when what was wanted has been looked up, which takes a turn for each tenant. */
async function looked(): Promise<void> {
  for (let turn = 0; turn < 6; turn++) await new Promise<void>((resolve) => setImmediate(resolve));
}

test("what lies in the folder is told to a worker, what no worker has; what is in the bucket alone comes first", async () => {
  using rig = new PrefetchRig();
  const { ids, fragments, spanKeys } = await rig.fill(3);
  rig.held.add(spanKeys[0] ?? "");
  rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [ids[2] ?? ""]);
  rig.prefetch.want(tenant(1), [...fragments, newId("fragment")]);
  expect(rig.told).toEqual([]);
  await until(() => rig.told.length === 2, "both are told");
  expect(rig.told).toEqual([ids[1], ids[2]].map((id) => `worker-1 ${id}`));
  expect(rig.gets).toEqual([`get ${ids[2]}`]);
  expect(rig.count("on_disk = 1")).toBe(3);
});

test("no file makes room for it", async () => {
  using rig = new PrefetchRig();
  const { ids, fragments } = await rig.fill(2);
  rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [ids[0] ?? ""]);
  const { bytes } = rig.db.client.query<{ bytes: number }, []>("select bytes from kv_objects").get() ?? { bytes: 0 };
  // The first one would fit if the second made room, which was used before it.
  rig.quotas.set(rig.tenantIds[0], 2 * bytes + 1);
  rig.db.client.run("update kv_objects set used_at = 10 - seq");
  rig.prefetch.want(tenant(1), fragments);
  await until(() => rig.told.length === 1, "the other one is told");
  await Bun.sleep(5);
  expect([rig.told, rig.gets, rig.count("on_disk = 1")]).toEqual([[`worker-1 ${ids[1]}`], [], 1]);
});

test("of a slow bucket eight are asked for at once, tenants in turn, and nothing that has become old", async () => {
  using rig = new PrefetchRig();
  const { ids, fragments } = await rig.fill(14);
  rig.db.client.run("update kv_objects set on_disk = 0");
  const gate = Promise.withResolvers<void>();
  rig.mover.fault = (job) => (job.is === "get" ? gate.promise : undefined);
  rig.prefetch.want(tenant(1), fragments.slice(0, 11));
  rig.prefetch.want(tenant(2), fragments.slice(11, 13));
  await looked();
  await until(() => rig.gets.length === 8, "eight are asked for");
  rig.now = 5_000;
  rig.prefetch.want(tenant(3), fragments.slice(13));
  await looked();
  await Bun.sleep(5);
  expect(rig.gets).toHaveLength(8);
  // What was named first is too old by now.
  rig.now = 10_000;
  gate.resolve();
  await until(() => rig.told.length === 9, "the last one has come");
  expect(rig.gets.at(-1)).toBe(`get ${ids[13]}`);
});

test("tenants are served in turn", async () => {
  using rig = new PrefetchRig();
  const { ids, fragments } = await rig.fill(12);
  rig.db.client.run("update kv_objects set on_disk = 0");
  const gate = Promise.withResolvers<void>();
  rig.mover.fault = (job) => (job.is === "get" ? gate.promise : undefined);
  rig.prefetch.want(tenant(1), fragments.slice(0, 11));
  await until(() => rig.gets.length === 8, "eight are asked for");
  rig.prefetch.want(tenant(2), fragments.slice(11));
  await looked();
  gate.resolve();
  await until(() => rig.told.length === 12, "all have come");
  const at = rig.gets.indexOf(`get ${ids[11]}`);
  expect([8, 9]).toContain(at);
});
