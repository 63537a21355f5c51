/** Counted tokens are in memory before they are written, so a write of them is worth no sync. */
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";
import { UsageLedger } from "../../gateway/tenant/usage.ts";
import { syncedChanges } from "../support/synced-changes.ts";

test("what was counted is written without a sync of its own, and once", () => {
  const dir = mkdtempSync(join(tmpdir(), "spangate-test-"));
  const db = openDb(join(dir, "spangate.db"));
  try {
    const tenantId = newId("tenant");
    insertTenant(db, { id: tenantId, name: "acme", createdAt: 1 });
    const synced = syncedChanges(db);
    const ledger = new UsageLedger(db, () => undefined);
    ledger.add(tenantId, { requests: 1, promptTokens: 5 });
    ledger.stop();
    const rows = db.client.query("select requests, prompt_tokens as prompt from usage_days").all();
    expect(rows).toEqual([{ requests: 1, prompt: 5 }]);
    expect(synced).toEqual([]);
  } finally {
    db.close();
    rmSync(dir, { recursive: true });
  }
});
