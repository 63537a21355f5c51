/** The cache page in a browser: whose KV lies where, and an eviction while somebody looks. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { happeningsOf } from "../../gateway/console/client/cache/cache.ts";
import type { TestTenant } from "../support/server.ts";
import { type ConsoleRig, chromiumPath, openRig, tenantAdminScopes, themes } from "./rig.ts";

setDefaultTimeout(120_000);

test("a second's changes are lines: what went, what came, what is held", () => {
  const block = {
    tenant_id: "tenant_a",
    worker: "worker-0",
    tier: "device",
    stored: 8,
    removed: 24,
    loaded: 0,
    held: 3,
  };
  const files = { ...block, worker: null, tier: "disk", stored: 0, removed: 0, loaded: 7, held: 9 };
  const pin = { tenant_id: "tenant_a", tier: "device", pinned: 0, unpinned: 2 };
  const lines = happeningsOf("x", {
    at: 5,
    blocks: [block, { ...block, removed: 0, tier: "host" }, files, { ...files, tier: "s3" }],
    pins: [pin],
  });
  expect(lines.map(({ place, text }) => [place, text])).toEqual([
    ["worker-0, pool", "24 removed, 8 stored; 3 held"],
    ["worker-0, memory", "8 stored; 3 held"],
    ["files", "7 loaded; 9 held"],
    ["bucket", "7 loaded; 9 held"],
    ["pool", "2 no longer pinned"],
  ]);
  expect(new Set(lines.map(({ key }) => key)).size).toBe(5);
  expect(
    happeningsOf("y", { at: 5, blocks: [], pins: [], others: { stored: 1, removed: 2, loaded: 3 } })[0]?.text,
  ).toBe("2 removed, 1 stored, 3 loaded");
});

describe.skipIf(chromiumPath === undefined)("the cache in the console", () => {
  let rig: ConsoleRig;
  beforeAll(async () => {
    rig = await openRig({ model: "one-layer" });
  });
  afterAll(async () => await rig?.[Symbol.asyncDispose]());

  const ask = async ({ client }: TestTenant, word: string): Promise<void> => {
    const messages = [{ role: "user", content: `${word} `.repeat(80) }];
    await client.json("POST", "/v1/chat/completions", { model: rig.server.model, messages, max_tokens: 1 });
  };

  test.each(themes)("an eviction is on the page within two seconds, %s", async (theme) => {
    const tenant = await rig.server.tenant(`<b>Holder</b> ${theme}`);
    const neighbour = await rig.server.tenant(`Neighbour ${theme}`);
    const own = await rig.key(tenant.id, tenantAdminScopes);
    await ask(tenant, "mine");
    await ask(neighbour, "theirs");
    await using look = await rig.signIn(own.key, theme);
    const { page } = look;
    await look.go("#/cache");
    await page.getByText("live", { exact: true }).waitFor();
    const place = page.getByRole("row", { name: "worker-0, pool" });
    await place.waitFor();
    await look.check("cache");
    // Nothing of others: not their names, nor how much there is in all.
    const text = (await page.locator("main").textContent()) ?? "";
    expect(text).not.toContain(neighbour.id);
    expect(text).not.toContain("free");
    await page.getByRole("button", { name: "Evict the KV of your tenant" }).click();
    await look.check("cache-evict");
    const startMs = performance.now();
    await page.getByRole("button", { name: "Evict all of it" }).click();
    await page.getByText(/\d+ removed; 0 held/).waitFor();
    const tookMs = performance.now() - startMs;
    await place.waitFor({ state: "detached" });
    process.stdout.write(`an eviction was on the page after ${Math.round(tookMs)} ms\n`);
    expect(tookMs).toBeLessThan(5_000);
    expect(look.problems).toEqual([]);
  });

  test("the operator sees whose KV fills each worker, and no text", async () => {
    const tenant = await rig.server.tenant("Ærø & Søn");
    await ask(tenant, "marzipan");
    for (const theme of themes) {
      await using look = await rig.signIn(rig.server.adminKey, theme);
      await look.go("#/cache");
      const pool = look.page.getByRole("region", { name: "Pool of worker-0" });
      await pool.getByText("Ærø & Søn").waitFor();
      await pool.getByText("free").waitFor();
      await look.page.getByRole("row", { name: "Ærø & Søn" }).waitFor();
      await look.check("cache-operator");
      expect(await look.page.locator("main").textContent()).not.toContain("marzipan");
      expect(look.problems).toEqual([]);
    }
  });

  test("a fragment is pinned, let go and evicted", async () => {
    const tenant = await rig.server.tenant("Pinner");
    const own = await rig.key(tenant.id, tenantAdminScopes);
    const form = new FormData();
    form.set("file", new File(["Jon Vale lives in Fairhaven. ".repeat(20)], "<i>jon</i>.md"));
    form.set("purpose", "assistants");
    const headers = { authorization: `Bearer ${own.key}` };
    const uploaded = await fetch(`${rig.server.url}/v1/files`, { method: "POST", headers, body: form });
    const { id: fileId } = (await uploaded.json()) as { id: string };
    await tenant.client.json("POST", "/v1/vector_stores", { name: "people", file_ids: [fileId] });
    await using look = await rig.signIn(own.key);
    const { page } = look;
    const button = (name: string) => page.getByRole("button", { name: `${name} fragment 1 of <i>jon</i>.md` });
    await look.go("#/cache");
    // The file may still be read when the page is there.
    while (!(await button("Pin").isVisible())) {
      await look.go("#/audit");
      await look.go("#/cache");
    }
    await button("Pin").click();
    await button("Unpin").waitFor();
    await look.check("cache-pinned");
    await button("Unpin").click();
    await button("Pin").waitFor();
    await button("Evict").click();
    await page.getByText("Fragment 1: its KV is gone.").waitFor();
    expect(look.problems).toEqual([]);
  });
});
