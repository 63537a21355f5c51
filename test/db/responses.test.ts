import { expect, test } from "bun:test";
import { newId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";
import { findResponse, insertResponse } from "../../db/responses.ts";
import { insertTenant, markTenantDeleting, removeSweptTenants } from "../../db/tenants.ts";

test("a tenant's responses go with it at once, and none comes after", () => {
  const db = openDb(":memory:");
  const [tenantId, otherId] = [newId("tenant"), newId("tenant")];
  for (const id of [tenantId, otherId]) insertTenant(db, { id, name: id, createdAt: 0 });
  const insert = (owner: typeof tenantId) => {
    const row = {
      id: newId("response"),
      tenantId: owner,
      body: { text: "x" },
      inputItems: [{ id: "m" }],
      createdAt: 5,
    };
    return { row, inserted: insertResponse(db, row, { perTenant: 2, since: 0 }) };
  };
  const mine = insert(tenantId).row;
  const theirs = insert(otherId).row;
  expect(findResponse(db, tenantId, mine.id, 0)).toMatchObject({ ...mine });
  expect(findResponse(db, otherId, mine.id, 0)).toBeUndefined();
  expect(markTenantDeleting(db, tenantId, 1)).toBe(true);
  expect(findResponse(db, tenantId, mine.id, 0)).toBeUndefined();
  expect(insert(tenantId).inserted).toBe(false);
  removeSweptTenants(db);
  expect(findResponse(db, otherId, theirs.id, 0)).toMatchObject({ ...theirs });
});
