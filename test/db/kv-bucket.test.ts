/** What a bucket of KV asks of the database for each file: answers and the rows that are looked at. */
import { expect, spyOn, test } from "bun:test";
import { insertCorpus } from "../../db/corpora.ts";
import { newId, type TenantId } from "../../db/ids.ts";
import { addKvBucketRemovals, inBucket, kvBucketUses, nextKvUpload, oldestInKvBucket } from "../../db/kv-bucket.ts";
import { insertKvObject } from "../../db/kv-objects.ts";
import { Db, openDb } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";

const createdAt = 1;

function world() {
  const db = openDb(":memory:");
  const tenants = ["a", "b", "c"].map((name) => insertTenant(db, { id: newId("tenant"), name, createdAt }).id);
  const corpora = new Map(
    tenants.map((tenantId) => {
      const fields = { name: "", description: null, metadata: {}, tenantId, createdAt };
      return [tenantId, insertCorpus(db, { id: newId("corpus"), ...fields })?.id ?? newId("corpus")] as const;
    }),
  );
  const keep = (id: string, tenantId: TenantId, usedAt: number, place: object = {}): void => {
    const corpusId = corpora.get(tenantId) ?? newId("corpus");
    const scope = { name: tenantId, tenantId, corpusId, saltEpoch: 0, sealedKey: Buffer.alloc(1) };
    const keys = { rootKey: "root", previousKey: "root", lastKey: id, spanKey: id, position: 0 };
    const size = { tokenCount: 16, blockCount: 1, bytes: 4_096, pinned: 0, onDisk: 1, inBucket: inBucket.no };
    const same = { id, sealedKey: Buffer.alloc(1), modelDigest: "m", format: "f", tenantId };
    insertKvObject(db, scope, { ...same, ...keys, ...size, usedAt, ...place });
  };
  const [a, b, c] = tenants;
  if (a === undefined || b === undefined || c === undefined) throw new Error("no tenants");
  return { db, a, b, c, keep };
}

/** How SQLite goes about the statement that `ask` prepares. */
function planOf({ client }: Db, ask: (db: Db) => unknown): string {
  using prepared = spyOn(client, "prepare");
  // One that has compiled nothing yet.
  const db = new Db(client, 0);
  ask(db);
  const [sql = ""] = prepared.mock.calls[0] ?? [];
  const params = Array(sql.split("?").length - 1).fill(0);
  const steps = db.client.query<{ detail: string }, number[]>(`explain query plan ${sql}`).all(...params);
  return steps.map(({ detail }) => detail).join("; ");
}

test("the file to copy next is the one used last, but of a tenant that has enough, too large or still to be deleted", () => {
  const { db, a, b, c, keep } = world();
  for (let at = 0; at < 30; at++) keep(`a${at}`, a, 100 + at);
  keep("b1", b, 10);
  keep("b2", b, 20);
  keep("b3", b, 30, { inBucket: inBucket.yes });
  keep("b4", b, 40, { onDisk: 0, inBucket: inBucket.perhaps });
  keep("c1", c, 15);
  keep("c2", c, 50, { bytes: 2 ** 20 });
  keep("c3", c, 60);
  addKvBucketRemovals(db, ["c3"]);
  const rested = nextKvUpload(db, 8_192, [a], ["b2"])?.id;
  expect(rested).toBe("c1");
  const next = (...full: TenantId[]) => nextKvUpload(db, 8_192, full, [])?.id;
  expect([next(), next(a), next(a, b), next(b, c), next(a, b, c)]).toEqual(["a29", "b2", "c1", "a29", undefined]);
});

test("it is found without a look at the files of who has enough", () => {
  const { db, a, keep } = world();
  keep("a", a, 1);
  const plan = planOf(db, (db) => nextKvUpload(db, 8_192, [a], ["other"]));
  expect(plan).toContain("kv_objects_of_tenant_to_upload (tenant_id=?)");
  expect(plan).not.toMatch(/SCAN kv_objects(?! USING COVERING INDEX kv_objects_of_tenant_to_upload)/);
});

test("what makes room in a tenant's part is found without a look at others'", () => {
  const { db, a, b, keep } = world();
  const there = { inBucket: inBucket.yes };
  keep("a2", a, 2, there);
  keep("a1", a, 1, there);
  keep("a0", a, 0, { ...there, pinned: 1 });
  keep("b0", b, 0, there);
  const oldest = (tenantId?: TenantId) => oldestInKvBucket(db, tenantId, 10, 10).map(({ id }) => id);
  expect([oldest(a), oldest()]).toEqual([
    ["a1", "a2"],
    ["b0", "a1", "a2"],
  ]);
  const plan = planOf(db, (db) => oldestInKvBucket(db, a, 10, 10));
  expect(plan).toBe("SEARCH kv_objects USING INDEX kv_objects_of_tenant_in_bucket (tenant_id=? AND used_at<?)");
});

test("a start counts what each tenant has there", () => {
  const { db, a, b, keep } = world();
  keep("a1", a, 1, { inBucket: inBucket.yes });
  keep("a2", a, 2, { inBucket: inBucket.perhaps, blockCount: 3 });
  keep("a3", a, 3);
  keep("b1", b, 1, { inBucket: inBucket.yes });
  const uses = kvBucketUses(db).toSorted((one, other) => other.objects - one.objects);
  expect(uses).toEqual([
    { tenantId: a, objects: 2, blocks: 4, bytes: 8_192 },
    { tenantId: b, objects: 1, blocks: 1, bytes: 4_096 },
  ]);
});
