import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newId, type ResponseId, type TenantId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import {
  deleteResponse,
  findResponse,
  insertResponse,
  type ResponseHead,
  type Retention,
  readResponse,
  retireOldResponses,
  storedResponseBytes,
  sweepResponses,
} from "../../db/responses.ts";
import { insertTenant, listTenants, markTenantDeleting, removeSweptTenants } from "../../db/tenants.ts";

let dir = "";
let db: Db;
let tenantId: TenantId;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-responses-"));
  db = openDb(join(dir, "spangate.db"));
  tenantId = newTenant();
});
afterEach(() => {
  db.close();
  rmSync(dir, { recursive: true, force: true });
});

const newTenant = () => insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 0 }).id;
const many: Retention = { rows: 100, bytes: 2 ** 30 };

interface Given {
  readonly previous?: ResponseHead;
  readonly text?: string;
  readonly retention?: Retention;
  readonly createdAt?: number;
  readonly owner?: TenantId;
}

function insert({ previous, text = "x", retention = many, createdAt = 5, owner = tenantId }: Given = {}): ResponseHead {
  const fields = { id: newId("response"), tenantId: owner, createdAt, previousId: previous?.id ?? null };
  const usedSeqs = previous === undefined ? [] : [previous.seq];
  insertResponse(db, { ...fields, usedSeqs, body: JSON.stringify({ text }), inputItems: "[]" }, retention);
  const head = findResponse(db, owner, fields.id, { since: 0 });
  if (head === undefined) throw new Error("not inserted");
  return head;
}

const isKept = ({ id }: { id: ResponseId }, owner = tenantId) =>
  findResponse(db, owner, id, { since: 0 }) !== undefined;
const isThere = ({ seq }: ResponseHead) => readResponse(db, seq, "body") !== undefined;
const sweep = () => {
  let count = 0;
  while (sweepResponses(db, 1)) count++;
  return count;
};
const traces = (text: string) =>
  readdirSync(dir).filter((name) => readFileSync(join(dir, name)).toString("latin1").includes(text));

describe("stored responses", () => {
  test("go with their tenant, at once for who asks, and none comes after", () => {
    const otherId = newTenant();
    const mine = insert();
    const theirs = insert({ owner: otherId });
    expect(findResponse(db, otherId, mine.id, { since: 0 })).toBeUndefined();
    expect(markTenantDeleting(db, tenantId, 1)).toBe(true);
    expect(isKept(mine)).toBe(false);
    expect(storedResponseBytes(db, tenantId)).toBe(0);
    expect(() => insert()).toThrow("not inserted");
    removeSweptTenants(db);
    // Its row is there until its responses are swept.
    expect(db.client.query("select id from tenants where id = ?").all(tenantId).length).toBe(1);
    sweep();
    removeSweptTenants(db);
    expect(listTenants(db, { limit: 9, order: "asc" }).rows.map(({ id }) => id)).toEqual([otherId]);
    expect(db.client.query("select id from tenants where id = ?").all(tenantId)).toEqual([]);
    expect(isKept(theirs, otherId)).toBe(true);
  });

  test("beyond the retention stay as long as a kept one goes on from them, and go with it", () => {
    const retention = { rows: 2, bytes: 2 ** 30 };
    const turns: ResponseHead[] = [];
    for (let i = 0; i < 5; i++) {
      const previous = turns.at(-1);
      turns.push(insert({ retention, ...(previous === undefined ? {} : { previous }) }));
    }
    const alone = insert({ retention });
    expect([...turns, alone].map((row) => isKept(row))).toEqual([false, false, false, false, true, true]);
    sweep();
    expect(turns.map(isThere)).toEqual([true, true, true, true, true]);
    // One that nothing goes on from goes at once.
    insert({ retention });
    insert({ retention });
    expect(sweep()).toBe(6);
    expect([...turns, alone].map(isThere)).toEqual([false, false, false, false, false, false]);
    expect(db.client.query("select * from response_uses").all()).toEqual([]);
  });

  test("are bounded by bytes as well as by number; the newest stays whatever it has", () => {
    const retention = { rows: 100, bytes: 3_000 };
    const rows = Array.from({ length: 4 }, () => insert({ text: "y".repeat(900), retention }));
    expect(rows.map((row) => isKept(row))).toEqual([false, true, true, true]);
    const large = insert({ text: "z".repeat(9_000), retention });
    expect([...rows, large].map((row) => isKept(row))).toEqual([false, false, false, false, true]);
    expect(sweep()).toBe(4);
    expect(storedResponseBytes(db, tenantId)).toBe(large.byteCount);
  });

  test("that are too old go in pieces of so many", () => {
    const rows = Array.from({ length: 5 }, (_, at) => insert({ createdAt: at }));
    expect([retireOldResponses(db, 3, 2), retireOldResponses(db, 3, 2), retireOldResponses(db, 3, 2)]).toEqual([
      2, 1, 0,
    ]);
    expect(rows.map((row) => isKept(row))).toEqual([false, false, false, true, true]);
  });

  test("that were deleted leave no byte behind, also where another goes on from them", () => {
    const first = insert({ text: `canary-first ${"a".repeat(20_000)}` });
    const second = insert({ text: "canary-second", previous: first });
    expect(deleteResponse(db, tenantId, first.id)).toBe(true);
    expect(deleteResponse(db, tenantId, first.id)).toBe(false);
    sweep();
    db.truncateLog();
    expect([traces("canary-first"), traces("canary-second")]).toEqual([[], ["spangate.db"]]);
    expect(findResponse(db, tenantId, first.id, false)).toBeUndefined();
    expect(isKept(second)).toBe(true);
  });

  test("a piece of the sweep has no more bytes than it may, and one row at least", () => {
    const rows = [4_000, 100, 100, 100].map((length) => insert({ text: "w".repeat(length) }));
    for (const { id } of rows) deleteResponse(db, tenantId, id);
    const left = () => rows.filter(isThere).length;
    const counts = [left()];
    while (sweepResponses(db, 260)) counts.push(left());
    expect(counts).toEqual([4, 3, 1, 0]);
  });
});

test("those that an earlier version stored are read, counted and retired like others", () => {
  const migrationsDir = join(dir, "migrations");
  cpSync(join(import.meta.dir, "..", "..", "migrations"), migrationsDir, { recursive: true });
  for (const name of readdirSync(migrationsDir)) if (name > "0013") rmSync(join(migrationsDir, name));
  const path = join(dir, "old.db");
  const old = openDb(path, { migrationsDir });
  insertTenant(old, { id: tenantId, name: "t", createdAt: 0 });
  const id = newId("response");
  old.client
    .query("insert into responses (id, tenant_id, body, input_items, created_at) values (?, ?, ?, ?, 7)")
    .run(id, tenantId, '{"a":"é"}', "[]");
  old.close();
  db.close();
  db = openDb(path);
  const head = findResponse(db, tenantId, id, { since: 0 });
  expect(head).toMatchObject({ id, previousId: null, byteCount: 12, createdAt: 7, state: "kept" });
  expect(readResponse(db, head?.seq ?? 0, "body")).toBe('{"a":"é"}');
  const next = insert({ ...(head === undefined ? {} : { previous: head }), retention: { rows: 1, bytes: 99 } });
  expect([isKept({ id }), isKept(next)]).toEqual([false, true]);
  expect(findResponse(db, tenantId, id, false)?.state).toBe("retired");
});
