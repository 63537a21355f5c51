/** A sentence of a synced document changes: what real workers hold of it before and after. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

setDefaultTimeout(120_000);

let server: TestServer;
let apiKey = "";

beforeAll(async () => {
  server = await startTestServer({ model: "one-layer" });
  apiKey = (await server.tenant("edits")).apiKey;
});
afterAll(async () => await server[Symbol.asyncDispose]());

async function spangate(...args: string[]): Promise<string> {
  const { SPANGATE_ADMIN_KEY: _admin, ...inherited } = process.env;
  const child = Bun.spawn([process.execPath, join(repositoryRoot, "gateway", "cli", "main.ts"), ...args], {
    env: { ...inherited, SPANGATE_URL: server.url, SPANGATE_API_KEY: apiKey },
    stdio: ["ignore", "pipe", "ignore"],
  });
  expect([args[0], await child.exited]).toEqual([args[0], 0]);
  return (await new Response(child.stdout).text()).trim();
}

/** How many fragments the store has, and how many of them no worker holds. */
async function fragments(store: string): Promise<{ all: number; missing: number }> {
  const counts = { all: 0, missing: 0 };
  for (let after = ""; ; ) {
    const path = `/admin/v1/vector_stores/${store}/fragments?limit=100${after}`;
    const answer = await fetch(server.url + path, { headers: { authorization: `Bearer ${apiKey}` } });
    const page = (await answer.json()) as {
      data: { id: string; resident: unknown[] }[];
      has_more: boolean;
    };
    counts.all += page.data.length;
    counts.missing += page.data.filter((one) => one.resident.length === 0).length;
    if (!page.has_more) return counts;
    after = `&after=${page.data.at(-1)?.id}`;
  }
}

test("all but at most 4 fragments keep their KV through a sync", async () => {
  const folder = mkdtempSync(join(tmpdir(), "spangate edits "));
  const guests = Array.from({ length: 400 }, (_, i) => `The guest in room ${i} came from town ${(i * 7_919) % 997}.`);
  const write = (sentences: readonly string[]) => writeFileSync(join(folder, "guests.md"), sentences.join(" "));
  write(guests);
  const store = (await spangate("sync", folder, "--new", "guests")).split("\n")[0] ?? "";
  await spangate("prepare", store);
  const before = await fragments(store);
  expect(before.all).toBeGreaterThan(20);
  expect(before.missing).toBe(0);
  write(guests.with(200, "Nobody stays in this room any more."));
  expect(await spangate("sync", folder, "--store", store)).toContain("1 changed");
  // The old version's KV is swept in the background, and perhaps more of it after the first.
  await until(async () => (await fragments(store)).missing > 0, "the old version's KV is swept");
  await Bun.sleep(300);
  const after = await fragments(store);
  expect(after.missing).toBeGreaterThanOrEqual(1);
  expect(after.missing).toBeLessThanOrEqual(4);
  await spangate("prepare", store);
  expect((await fragments(store)).missing).toBe(0);
});
