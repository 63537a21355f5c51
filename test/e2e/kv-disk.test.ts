/** KV in files of a real server: there after kill -9, gone with its text, off when it is told to be. */

import { Database } from "bun:sqlite";
import { expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { addFile, askChat, listAll, prepareStore, waitForFile } from "../../gateway/cli/support/operations.ts";
import { isLong } from "../support/effort.ts";
import { folderMaker } from "../support/new-folder.ts";
import { firstWorkerOf, killWorker } from "../support/operator.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

// Servers are started more than once in each of these tests.
setDefaultTimeout(120_000);

const newFolder = folderMaker("spangate-kv-");

const objectsIn = (dataDir: string): string[] => readdirSync(join(dataDir, "kv")).filter((name) => name !== "owner");

function rowsIn(dataDir: string): { objects: number; bytes: number; scopes: number } {
  const db = new Database(join(dataDir, "spangate.db"), { readonly: true });
  try {
    const sum = (what: string, table: string): number =>
      db.query<{ n: number }, []>(`select ${what} as n from ${table}`).get()?.n ?? -1;
    const bytes = sum("coalesce(sum(bytes), 0)", "kv_objects");
    return { objects: sum("count(*)", "kv_objects"), bytes, scopes: sum("count(*)", "kv_scopes") };
  } finally {
    db.close();
  }
}

const text = Array.from(
  { length: 80 },
  (_, i) => `Sentence ${i} tells of amber, birch and cedar in hall ${i * 7}.`,
).join("\n\n");

interface Prepared {
  readonly apiKey: string;
  readonly tenantId: string;
  readonly storeId: string;
  readonly fileId: string;
}

async function prepare(server: TestServer, target?: "device"): Promise<Prepared> {
  const { client, apiKey, id: tenantId } = await server.tenant("keeper");
  const { id: storeId } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "s" });
  const fileId = await addFile(client, storeId, "a.txt", new Blob([text]));
  await waitForFile(client, storeId, fileId);
  await prepareStore(client, storeId, () => undefined, target);
  return { apiKey, tenantId, storeId, fileId };
}

/** One question over the store's fragments: its answer, and how many tokens were found. */
async function ask(server: TestServer, { apiKey, storeId }: Prepared) {
  const client = new HttpClient({ url: server.url, apiKey });
  const { text: content, usage } = await askChat(client, {
    model: server.model,
    messages: [{ role: "user", content: "Which hall has amber?" }],
    file_search: { vector_store_ids: [storeId], max_num_results: 6 },
    temperature: 0,
    max_tokens: 12,
  });
  return { content, tokens: usage.prompt_tokens, found: usage.prompt_tokens_details.cached_tokens };
}

async function killed(server: TestServer): Promise<void> {
  server.process.kill("SIGKILL");
  await server.process.exited;
}

const isEmpty = (dataDir: string): boolean => rowsIn(dataDir).objects === 0 && objectsIn(dataDir).length === 0;

test("prepared fragments in mx8 are found after kill -9, with the same answer, and by no server of another mode", async () => {
  const dataDir = newFolder();
  // The engine's bookkeeping is checked after every step in the long form.
  const env = { SPANGATE_KV_CODEC: "mx8", ...(isLong && { SPANGATE_DEBUG: "1" }) };
  const first = await startTestServer({ model: "one-layer", dataDir, env });
  const prepared = await prepare(first);
  const warm = await ask(first, prepared);
  expect(warm.found).toBeGreaterThan(500);
  expect(objectsIn(dataDir).length).toBe(rowsIn(dataDir).objects);
  await killed(first);
  const second = await startTestServer({ model: "one-layer", dataDir, env });
  expect(await ask(second, prepared)).toEqual(warm);
  await killWorker(second);
  await until(async () => (await firstWorkerOf(second)).restarts === 1, "the worker is back");
  expect(await ask(second, prepared)).toEqual(warm);
  const { tiers } = await second.admin.json<{ tiers: unknown }>("GET", "/admin/v1/cache");
  expect(tiers).toMatchObject([
    { tier: "device", worker: "worker-0" },
    { tier: "disk", worker: null, objects: rowsIn(dataDir).objects, pinned_bytes: 0 },
  ]);
  const client = new HttpClient({ url: second.url, apiKey: prepared.apiKey });
  const blended = { g: { model: "", reuse: "blend", input: { user: "Which hall?" } } };
  const refused = client.json("POST", "/v1/query/execute", blended);
  await expect(refused).rejects.toThrow("$.g.reuse: this server holds KV in mx8");
  await killed(second);
  await using raw = await startTestServer({ model: "one-layer", dataDir });
  await until(() => isEmpty(dataDir), "what another mode has written is removed");
  expect((await ask(raw, prepared)).found).toBeLessThan(50);
});

test("the answer is that of a server that keeps nothing; switched off, what was kept is removed", async () => {
  const dataDir = newFolder();
  const first = await startTestServer({ model: "one-layer", dataDir });
  const prepared = await prepare(first);
  const kept = await ask(first, prepared);
  await killed(first);
  const env = { SPANGATE_KV_DISK_BYTES: "0" };
  await using second = await startTestServer({ model: "one-layer", dataDir, env });
  await until(() => isEmpty(dataDir), "what was kept is removed");
  const computed = await ask(second, prepared);
  expect([computed.content, computed.tokens]).toEqual([kept.content, kept.tokens]);
  expect(computed.found).toBeLessThan(50);
  const client = new HttpClient({ url: second.url, apiKey: prepared.apiKey });
  await prepareStore(client, prepared.storeId, () => undefined);
  expect(isEmpty(dataDir)).toBe(true);
});

const deletions: Readonly<Record<string, (server: TestServer, client: HttpClient, it: Prepared) => Promise<unknown>>> =
  {
    "a file": (_server, client, { fileId }) => client.json("DELETE", `/v1/files/${fileId}`),
    "a store": (_server, client, { storeId }) => client.json("DELETE", `/v1/vector_stores/${storeId}`),
    "a tenant": ({ admin }, _client, { tenantId }) => admin.json("DELETE", `/admin/v1/tenants/${tenantId}`),
    "a store's salt": ({ admin }, _client, { storeId }) =>
      admin.json("POST", `/admin/v1/vector_stores/${storeId}/salt/rotate`),
  };

test("deleting a file, a store, a tenant or a store's salt leaves no row and no file within 5 s", async () => {
  const dataDir = newFolder();
  await using server = await startTestServer({ model: "one-layer", dataDir });
  for (const [what, remove] of Object.entries(deletions)) {
    const before = rowsIn(dataDir).scopes;
    const prepared = await prepare(server);
    expect([what, isEmpty(dataDir)]).toEqual([what, false]);
    const client = new HttpClient({ url: server.url, apiKey: prepared.apiKey });
    await remove(server, client, prepared);
    await until(() => isEmpty(dataDir), `rows and files of ${what} are gone`, 5_000);
    expect([what, rowsIn(dataDir).scopes - before]).toEqual([what, what === "a file" ? 1 : 0]);
  }
});

test("a job brings fragments to where it is told, or says why not; a pin in files keeps the file", async () => {
  const dataDir = newFolder();
  await using server = await startTestServer({ model: "one-layer", dataDir });
  const { storeId, tenantId, apiKey } = await prepare(server, "device");
  expect(isEmpty(dataDir)).toBe(true);
  const client = new HttpClient({ url: server.url, apiKey });
  const places = async () => {
    const path = `/admin/v1/vector_stores/${storeId}/fragments`;
    const listed = await listAll<{ id: string; resident: unknown[]; pinned_tier: string | null }>(client, path);
    return listed.map(({ id, resident, pinned_tier }) => ({ id, resident, pinned_tier }));
  };
  const job = await prepareStore(client, storeId, () => undefined, "disk");
  const [first, ...rest] = await places();
  expect([job.done, rest.length + 1]).toEqual([job.total, job.total]);
  const [onDevice, inFile] = [
    { worker: 0, tier: "device" },
    { worker: null, tier: "disk" },
  ];
  for (const { resident } of [...rest, first]) expect(resident).toEqual([onDevice, inFile]);
  const pinned = await client.json("POST", `/admin/v1/fragments/${first?.id}/pin`, { tier: "disk" });
  expect(pinned).toMatchObject({ pinned: true, pinned_tier: "disk" });
  const disk = async () => {
    const { tiers } = await server.admin.json<{ tiers: { tier: string; pinned_bytes: number }[] }>(
      "GET",
      "/admin/v1/cache",
    );
    return tiers.find(({ tier }) => tier === "disk");
  };
  await until(async () => ((await disk())?.pinned_bytes ?? 0) > 0, "the file is pinned");
  // Room for twice the pinned file: of the others at most two small ones stay, and a job that needs more says so.
  const kv_disk_bytes = 2 * ((await disk())?.pinned_bytes ?? 0);
  await server.admin.json("PUT", `/admin/v1/tenants/${tenantId}/limits`, { kv_disk_bytes });
  await until(() => rowsIn(dataDir).bytes <= kv_disk_bytes, "the limit is kept");
  expect(rowsIn(dataDir).objects).toBeLessThanOrEqual(3);
  expect((await places())[0]).toMatchObject({ pinned_tier: "disk", resident: [onDevice, inFile] });
  const failed = await prepareStore(client, storeId, () => undefined, "disk").catch((error: unknown) => String(error));
  expect(failed).toContain("No more KV fits into what the tenant may keep in files.");
});

test("a pinned fragment that a question had computed, and one that two had used, are there after a restart", async () => {
  const dataDir = newFolder();
  const first = await startTestServer({ model: "one-layer", dataDir });
  const { client, apiKey, id: tenantId } = await first.tenant("pinner");
  const { id: storeId } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "s" });
  const fileId = await addFile(client, storeId, "a.txt", new Blob([text.slice(0, 800)]));
  await waitForFile(client, storeId, fileId);
  const it = { apiKey, tenantId, storeId, fileId };
  const asked = await ask(first, it);
  expect(rowsIn(dataDir).objects).toBe(0);
  const [fragment] = await listAll<{ id: string }>(client, `/admin/v1/vector_stores/${storeId}/fragments`);
  await client.json("POST", `/admin/v1/fragments/${fragment?.id}/pin`);
  await until(() => rowsIn(dataDir).objects > 0, "the fragment is kept");
  const { id: otherId } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "asked twice" });
  await waitForFile(client, otherId, await addFile(client, otherId, "b.txt", new Blob([text.slice(800, 1_600)])));
  const twice = { ...it, storeId: otherId };
  const before = rowsIn(dataDir).objects;
  const other = await ask(first, twice);
  expect(rowsIn(dataDir).objects).toBe(before);
  await ask(first, twice);
  await until(() => rowsIn(dataDir).objects > before, "what is used again is kept");
  await killed(first);
  await using second = await startTestServer({ model: "one-layer", dataDir });
  for (const [store, expected] of [
    [it, asked],
    [twice, other],
  ] as const) {
    const after = await ask(second, store);
    expect(after.content).toBe(expected.content);
    expect(after.found).toBeGreaterThan(100);
  }
});

const unusable: Readonly<Record<string, (folder: string) => void>> = {
  "it belongs to another server": (folder) => {
    mkdirSync(folder);
    writeFileSync(join(folder, "owner"), "another\n");
  },
  "it is a file, or below one": (folder) => writeFileSync(folder, "a file"),
};

test.each(Object.keys(unusable))(
  "a folder that cannot be used (%s) is said, and the server answers",
  async (reason) => {
    const folder = join(newFolder(), "kv");
    unusable[reason]?.(folder);
    let log = "";
    const onLog = (part: string): void => {
      log += part;
    };
    await using server = await startTestServer({ model: "one-layer", env: { SPANGATE_KV_DISK_PATH: folder }, onLog });
    const prepared = await prepare(server);
    expect((await ask(server, prepared)).found).toBeGreaterThan(500);
    expect(log).toContain(reason);
    expect(log).toContain(folder);
    expect(existsSync(join(server.dataDir, "kv"))).toBe(false);
  },
);

test.each([
  ["SPANGATE_KV_DISK_BYTES", "-1"],
  ["SPANGATE_KV_DISK_BYTES", "1e99"],
  ["SPANGATE_KV_DISK_BYTES", "8 apples"],
])("%s=%s stops the start with a sentence that names it", async (name, value) => {
  const failed = await startTestServer({ env: { [name]: value } }).catch((error: unknown) => error);
  expect(String(failed)).toContain(name);
  expect(String(failed)).toContain("must be a size");
});
