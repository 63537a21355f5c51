/** The audit log and the export of usage. */
import { afterAll, afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openDb } from "../../../db/open.ts";
import { countChoice } from "../../../gateway/generate/usage-counters.ts";
import { usageAnswer } from "../../../gateway/http/admin/usage.ts";
import { auditAnswer } from "../../../gateway/http/middleware/audit.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import { UsageLedger } from "../../../gateway/tenant/usage.ts";
import { type Answer, call, createStoreApp, type StoreApp, upload } from "../store-app.ts";

interface AuditEvent {
  readonly id: string;
  readonly actor: { readonly key_id: string; readonly tenant_id: string | null };
  readonly tenant_id: string | null;
  readonly action: string;
  readonly object_ids: Readonly<Record<string, string>>;
}

const dataOf = <Item>(answer: Answer): readonly Item[] => (answer.body as { data: readonly Item[] }).data;

describe("the audit log", () => {
  let store: StoreApp;
  beforeEach(() => {
    store = createStoreApp();
  });
  afterEach(() => store.world.remove());

  const events = async (key = store.adminKey, query = ""): Promise<readonly AuditEvent[]> => {
    const answer = await call(store.app, key, "GET", `/admin/v1/audit${query}`);
    expect(auditAnswer.safeParse(answer.body).error?.issues ?? []).toEqual([]);
    return dataOf(answer);
  };

  test("holds who changed what: tenants, keys, rotations, deletions; and nothing that was refused or only read", async () => {
    const { app, adminKey } = store;
    const tenant = await call(app, adminKey, "POST", "/admin/v1/tenants", { name: "canary-name" });
    const keys = `/admin/v1/tenants/${tenant.id}/keys`;
    const scopes = ["corpus:write", "corpus:read", "tenant:admin"];
    const minted = await call(app, adminKey, "POST", keys, { scopes, name: "canary-key-name" });
    const { key, id: keyId } = minted.body as { key: string; id: string };
    const fileId = await upload(app, key, "canary-file.txt", "canary text");
    await call(app, key, "POST", `/admin/v1/tenants/${tenant.id}/salt/rotate`);
    await call(app, key, "DELETE", `/v1/files/${fileId}`);
    await call(app, key, "DELETE", `/v1/files/${fileId}`);
    await call(app, key, "POST", "/admin/v1/tenants", { name: "not allowed" });
    await call(app, adminKey, "GET", keys);
    await call(app, adminKey, "DELETE", `/admin/v1/keys/${keyId}`);
    await call(app, adminKey, "DELETE", `/admin/v1/tenants/${tenant.id}`);
    const seen = await events(adminKey, "?order=asc");
    expect(seen.map(({ action, object_ids: ids }) => [action, ids])).toEqual([
      ["POST /admin/v1/tenants", { id: tenant.id }],
      ["POST /admin/v1/tenants/{tenant_id}/keys", { tenant_id: tenant.id, id: keyId }],
      ["POST /admin/v1/tenants/{tenant_id}/salt/rotate", { tenant_id: tenant.id }],
      ["DELETE /v1/files/{file_id}", { file_id: fileId, id: fileId }],
      ["DELETE /admin/v1/keys/{key_id}", { key_id: keyId, id: keyId, tenant_id: tenant.id }],
      ["DELETE /admin/v1/tenants/{tenant_id}", { tenant_id: tenant.id }],
    ]);
    expect(seen.map(({ actor }) => actor.tenant_id)).toEqual([null, null, tenant.id, tenant.id, null, null]);
    const stored = JSON.stringify(store.world.db.client.query("select * from audit_events").all());
    for (const secret of ["canary", key, adminKey]) expect(stored).not.toContain(secret);
  });

  test("a tenant's administrator sees what is its own, by pages; another's events are unknown cursors", async () => {
    const { app, adminKey } = store;
    const [one, two] = [store.tenant("one"), store.tenant("two")];
    for (let round = 0; round < 3; round++) {
      await call(app, one.key, "POST", `/admin/v1/tenants/${one.id}/salt/rotate`);
      await call(app, adminKey, "POST", `/admin/v1/tenants/${two.id}/salt/rotate`);
    }
    expect(await events()).toHaveLength(6);
    const own = await events(one.key);
    expect(own.map(({ tenant_id: id }) => id)).toEqual([one.id, one.id, one.id]);
    const first = await call(app, two.key, "GET", "/admin/v1/audit?limit=2");
    expect(first.body).toMatchObject({ has_more: true });
    const rest = await call(app, two.key, "GET", `/admin/v1/audit?limit=2&after=${first.ids[1]}`);
    expect(rest.body).toMatchObject({ has_more: false });
    expect(new Set([...first.ids, ...rest.ids]).size).toBe(3);
    const foreign = await call(app, two.key, "GET", `/admin/v1/audit?after=${own[0]?.id}`);
    const unknown = await call(app, two.key, "GET", `/admin/v1/audit?after=audit_${"0".repeat(24)}`);
    expect([foreign.status, foreign.body]).toEqual([404, unknown.body]);
    const reader = store.tenant("three", "corpus:read");
    expect((await call(app, reader.key, "GET", "/admin/v1/audit")).status).toBe(403);
  });
});

describe("usage", () => {
  const dir = mkdtempSync(join(tmpdir(), "spangate-usage-"));
  afterAll(() => rmSync(dir, { recursive: true, force: true }));

  const run = (promptTokens: number, cachedTokens: number, completionTokens: number) => ({
    reason: "stop" as const,
    completionTokens,
    report: {
      workerId: "worker-0",
      timings: { queueMs: 1, prefillMs: 1, ttftMs: 1 },
      times: { queueMs: 1, firstTokenMs: 2, totalMs: 3 },
      usage: { promptTokens, cachedTokens, cacheWriteTokens: promptTokens - cachedTokens },
    } as never,
  });

  test("sums are those of the counters, over days, tenants and restarts", () => {
    const db = openDb(join(dir, "spangate.db"));
    const clock = { nowMs: Date.UTC(2026, 0, 31, 23, 59) };
    const log = () => undefined;
    const usage = new UsageLedger(db, log, () => clock.nowMs);
    const metrics = new Metrics(usage);
    countChoice(metrics, "tenant_a", run(100, 40, 7), true);
    countChoice(metrics, "tenant_a", run(100, 100, 9), true);
    usage.stop();
    const next = new UsageLedger(db, log, () => clock.nowMs);
    const laterMetrics = new Metrics(next);
    clock.nowMs += 120_000;
    countChoice(laterMetrics, "tenant_a", run(10, 0, 1), true);
    countChoice(laterMetrics, "tenant_b", run(20, 5, 2), true);
    next.list({ tenantId: undefined, firstDay: "2026-01-01", lastDay: "2026-12-31", after: undefined, limit: 1 });
    countChoice(laterMetrics, "tenant_b", run(20, 5, 2), true);
    const all = { tenantId: undefined, firstDay: "2026-01-31", lastDay: "2026-02-01" };
    const { rows } = next.list({ ...all, after: undefined, limit: 10 });
    expect(rows.map(({ day, tenantId, requests }) => [day, tenantId, requests])).toEqual([
      ["2026-02-01", "tenant_a", 1],
      ["2026-02-01", "tenant_b", 2],
      ["2026-01-31", "tenant_a", 2],
    ]);
    const total = (pick: (row: (typeof rows)[number]) => number) => rows.reduce((sum, row) => sum + pick(row), 0);
    const text = metrics.render() + laterMetrics.render();
    const counted = (name: string) =>
      [...text.matchAll(new RegExp(`^${name}\\{[^}]*\\} (\\d+)$`, "gm"))].reduce((sum, [, n]) => sum + Number(n), 0);
    expect(counted("vllm:prompt_tokens_total")).toBe(250);
    expect(total((row) => row.promptTokens)).toBe(counted("vllm:prompt_tokens_total"));
    expect(total((row) => row.completionTokens)).toBe(counted("vllm:generation_tokens_total"));
    expect(total((row) => row.cachedTokens)).toBe(counted("spangate_cached_tokens_total"));
    expect(total((row) => row.cacheWriteTokens)).toBe(counted("spangate_cache_write_tokens_total"));
    expect(total((row) => row.requests)).toBe(counted("vllm:request_success_total"));
    // Page by page it is the same.
    const pages: (typeof rows)[number][] = [];
    for (let after: (typeof rows)[number] | undefined; ; ) {
      const page = next.list({ ...all, after, limit: 1 });
      pages.push(...page.rows);
      after = page.rows.at(-1);
      if (!page.hasMore) break;
    }
    expect(pages).toEqual([...rows]);
    next.stop();
    db.close();
  });

  test("what the disk refuses is kept and written later", () => {
    const db = openDb(":memory:");
    const lines: string[] = [];
    const usage = new UsageLedger(db, (level) => void lines.push(level));
    usage.add("tenant_a", { requests: 1, promptTokens: 5, cachedTokens: 0, cacheWriteTokens: 5, completionTokens: 1 });
    db.client.run("alter table usage_days rename to away");
    usage.stop();
    expect(lines).toEqual(["error"]);
    db.client.run("alter table away rename to usage_days");
    const range = { tenantId: "tenant_a", firstDay: "2000-01-01", lastDay: "2999-01-01", after: undefined, limit: 5 };
    expect(usage.list(range).rows).toMatchObject([{ promptTokens: 5 }]);
    db.close();
  });

  test("each tenant sees its own, the platform all; bad dates are named", async () => {
    const store = createStoreApp();
    const [one, two] = [store.tenant("one"), store.tenant("two")];
    const counts = { requests: 1, promptTokens: 5, cachedTokens: 0, cacheWriteTokens: 5, completionTokens: 1 };
    for (const { id } of [one, two]) store.usage.add(id, counts);
    const get = (key: string, query = "") => call(store.app, key, "GET", `/admin/v1/usage${query}`);
    const tenantsOf = (answer: Answer) => dataOf<{ tenant_id: string }>(answer).map(({ tenant_id: id }) => id);
    const all = await get(store.adminKey);
    expect(usageAnswer.safeParse(all.body).error?.issues ?? []).toEqual([]);
    expect(tenantsOf(all).sort()).toEqual([one.id, two.id].sort());
    expect(tenantsOf(await get(store.adminKey, `?tenant_id=${two.id}`))).toEqual([two.id]);
    expect(tenantsOf(await get(one.key))).toEqual([one.id]);
    const foreign = await get(one.key, `?tenant_id=${two.id}`);
    expect(foreign.body).toEqual((await get(one.key, "?tenant_id=tenant_unknown")).body);
    expect(await get(one.key, "?from=2026-13-01")).toMatchObject({ status: 400, body: { error: { param: "from" } } });
    expect(await get(one.key, "?from=2026-02-02&to=2026-02-01")).toMatchObject({
      status: 400,
      body: { error: { param: "from" } },
    });
    expect(await get(one.key, "?after=x")).toMatchObject({ status: 400, body: { error: { param: "after" } } });
    store.usage.stop();
    await store.world.remove();
  });
});
