import { expect, test } from "bun:test";
import { insertAuditEvent, listAuditEvents } from "../../db/audit.ts";
import { newId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";

function world() {
  const db = openDb(":memory:");
  let at = 0;
  const insert = (actorTenantId: string | null, maxRows: number) => {
    const fields = { requestId: "req", keyId: "key", tenantId: actorTenantId, action: "DELETE /x", objectIds: {} };
    return insertAuditEvent(db, { id: newId("auditEvent"), at: at++, actorTenantId, ...fields }, maxRows);
  };
  const rows = () => listAuditEvents(db, undefined, { limit: 1_000, order: "asc" }).rows;
  const of = (actor: string | null) => rows().filter(({ actorTenantId }) => actorTenantId === actor);
  return { db, insert, of };
}

test("what one tenant does removes its own oldest rows, never another's nor the platform's", () => {
  const { insert, of } = world();
  const platform = insert(null, 3);
  const other = insert("b", 3);
  const own = Array.from({ length: 20 }, () => insert("a", 3));
  expect(of("a").map(({ id }) => id)).toEqual(own.slice(-3).map(({ id }) => id));
  expect(of("b").map(({ id }) => id)).toEqual([other.id]);
  expect(of(null).map(({ id }) => id)).toEqual([platform.id]);
  for (let i = 0; i < 5; i++) insert(null, 3);
  expect(of(null).length).toBe(3);
  expect(of("b").length).toBe(1);
});

test("a surplus that is there already goes in small pieces, and a second bound than the first counts", () => {
  const { insert, of } = world();
  for (let i = 0; i < 100; i++) insert("a", 1_000);
  const lengths = Array.from({ length: 9 }, () => {
    insert("a", 10);
    return of("a").length;
  });
  // One comes, and at most 16 go.
  expect(lengths).toEqual([85, 70, 55, 40, 25, 10, 10, 10, 10]);
});
