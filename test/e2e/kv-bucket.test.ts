/** KV in a bucket of a real server: there when the folder is lost, gone with its text, and no help is no harm. */

import { afterEach, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { addFile, askChat, prepareStore, waitForFile } from "../../gateway/cli/support/operations.ts";
import { readSse } from "../../gateway/client/sse.ts";
import type { Change } from "../../gateway/console/client/cache/cache.ts";
import { type Bucket, openBucket, refusal } from "../support/bucket.ts";
import { isLong } from "../support/effort.ts";
import { folderMaker } from "../support/new-folder.ts";
import { startRadosgw } from "../support/radosgw.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

// Servers are started more than once in each of these tests.
setDefaultTimeout(120_000);

const newFolder = folderMaker("spangate-kv-s3-");

let bucket: Bucket;
beforeEach(() => {
  bucket = openBucket();
});
afterEach(() => bucket.stop());

const secret = "wJalrXUtnFEMI/not-to-be-seen";
const envOf = (address: string, endpoint: string, secretAccessKey: string) => ({
  SPANGATE_KV_DISK_BYTES: "auto",
  SPANGATE_KV_S3: address,
  SPANGATE_KV_S3_ENDPOINT: endpoint,
  AWS_ACCESS_KEY_ID: "reader",
  AWS_SECRET_ACCESS_KEY: secretAccessKey,
});
const env = () => envOf("s3://papers/kv", bucket.endpoint, secret);

const text = Array.from({ length: 40 }, (_, i) => `Sentence ${i} tells of amber and birch in hall ${i * 7}.`).join(
  "\n\n",
);
const filesIn = (dataDir: string): string[] => readdirSync(join(dataDir, "kv")).filter((name) => name !== "owner");

interface Prepared {
  readonly client: HttpClient;
  readonly apiKey: string;
  readonly storeId: string;
}

async function prepare(server: TestServer): Promise<Prepared> {
  const { client, apiKey } = await server.tenant("keeper");
  const { id: storeId } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "s" });
  const fileId = await addFile(client, storeId, "a.txt", new Blob([text]));
  await waitForFile(client, storeId, fileId);
  await prepareStore(client, storeId, () => undefined);
  return { client, apiKey, storeId };
}

async function ask(server: TestServer, { apiKey, storeId }: Pick<Prepared, "apiKey" | "storeId">) {
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

interface TierRow {
  readonly tier: string;
  readonly objects: number;
}

const rowsOf = async ({ admin }: TestServer): Promise<readonly TierRow[]> =>
  (await admin.json<{ tiers: TierRow[] }>("GET", "/admin/v1/cache")).tiers;

/**
 * Prepares, waits for the bucket, loses the folder, asks again, deletes.
 * @param list what the bucket has
 */
async function loseFolder(settings: Record<string, string>, list: () => Promise<readonly string[]>): Promise<void> {
  const dataDir = newFolder();
  const first = await startTestServer({ model: "one-layer", dataDir, env: settings });
  const prepared = await prepare(first);
  const warm = await ask(first, prepared);
  const count = filesIn(dataDir).length;
  expect(count).toBeGreaterThan(0);
  await until(async () => (await list()).length === count, "all files are in the bucket", 60_000);
  expect((await rowsOf(first)).find(({ tier }) => tier === "s3")?.objects).toBe(count);
  expect((await list()).every((name) => /^kv\/[0-9a-f]{32}\/[0-9a-f]{32}$/.test(name))).toBe(true);
  for (const pid of processesBelow(first.process.pid)) {
    for (const name of ["environ", "cmdline"]) {
      expect(readOf(pid, name)).not.toContain(settings.AWS_SECRET_ACCESS_KEY ?? "");
    }
  }
  first.process.kill("SIGKILL");
  await first.process.exited;
  rmSync(join(dataDir, "kv"), { recursive: true });
  await using second = await startTestServer({ model: "one-layer", dataDir, env: settings });
  expect(await ask(second, prepared)).toEqual(warm);
  expect(filesIn(dataDir).length).toBeGreaterThan(0);
  const client = new HttpClient({ url: second.url, apiKey: prepared.apiKey });
  await client.json("DELETE", `/v1/vector_stores/${prepared.storeId}`);
  await until(async () => (await list()).length + filesIn(dataDir).length === 0, "bucket and folder are empty", 5_000);
}

test("when the folder is lost, KV comes from the bucket, with the same answer; nobody else has the key", async () => {
  await loseFolder(env(), () => Promise.resolve(Object.keys(bucket.objects)));
  expect(bucket.read.length).toBeGreaterThan(0);
});

/** What a server tells of tenants' KV, from now on. */
class Told implements AsyncDisposable {
  readonly changes: Change["blocks"][number][] = [];
  readonly #stop = new AbortController();
  readonly #ended: Promise<void>;

  constructor(url: string, key: string) {
    this.#ended = this.#follow(url, key).catch((error: unknown) => {
      if (!this.#stop.signal.aborted) throw error;
    });
  }

  /** Of one tier: sums of what was told, and what was held at last. */
  of(tier: string) {
    const own = this.changes.filter((change) => change.tier === tier);
    const sum = (field: "stored" | "removed" | "loaded"): number => own.reduce((all, change) => all + change[field], 0);
    return { stored: sum("stored"), removed: sum("removed"), loaded: sum("loaded"), held: own.at(-1)?.held ?? 0 };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#ended;
  }

  async #follow(url: string, key: string): Promise<void> {
    const headers = { authorization: `Bearer ${key}` };
    const response = await fetch(`${url}/admin/v1/cache/events`, { headers, signal: this.#stop.signal });
    expect(response.status).toBe(200);
    for await (const { event, data } of readSse(response.body as ReadableStream<Uint8Array>)) {
      if (event === "change") this.changes.push(...(JSON.parse(data) as Change).blocks);
    }
  }
}

async function observerKey(server: TestServer, tenantId: string): Promise<string> {
  const keys = `/admin/v1/tenants/${tenantId}/keys`;
  const { key } = await server.admin.json<{ key: string }>("POST", keys, { scopes: ["tenant:admin"] });
  return key;
}

test("what comes to files and the bucket, goes and is brought back is told to its tenant and to nobody else", async () => {
  const dataDir = newFolder();
  const first = await startTestServer({ model: "one-layer", dataDir, env: env() });
  const prepared = await prepare(first);
  const tenantId = (
    await first.admin.json<{ data: { id: string; name: string }[] }>("GET", "/admin/v1/tenants")
  ).data.find(({ name }) => name === "keeper")?.id;
  const neighbour = await first.tenant("neighbour");
  const keys = { own: await observerKey(first, tenantId ?? ""), other: await observerKey(first, neighbour.id) };
  let held = 0;
  {
    await using own = new Told(first.url, keys.own);
    await until(
      () => own.of("s3").held > 0 && own.of("s3").held === own.of("disk").held,
      "both tiers have all",
      60_000,
    );
    held = own.of("disk").held;
    for (const tier of ["disk", "s3"]) expect(own.of(tier)).toEqual({ stored: held, removed: 0, loaded: 0, held });
    const seen = await new HttpClient({ url: first.url, apiKey: keys.own }).json<{
      data: { tiers: { tier: string; blocks: number }[] }[];
      tiers: unknown[];
    }>("GET", "/admin/v1/cache");
    expect(seen.data.map(({ tiers }) => tiers.map(({ tier, blocks }) => [tier, blocks]))).toEqual([
      [
        ["disk", held],
        ["s3", held],
      ],
    ]);
    expect(seen.tiers).toEqual([]);
    const limits = `/admin/v1/tenants/${tenantId}/limits`;
    await first.admin.json("PUT", limits, { kv_disk_bytes: 1 });
    await until(() => own.of("disk").removed === held, "the files have made room");
    expect([own.of("disk").held, own.of("s3").removed]).toEqual([0, 0]);
    await first.admin.json("PUT", limits, {});
  }
  await first[Symbol.asyncDispose]();
  await using second = await startTestServer({ model: "one-layer", dataDir, env: env() });
  await using own = new Told(second.url, keys.own);
  await using other = new Told(second.url, keys.other);
  await using all = new Told(second.url, second.adminKey);
  expect((await ask(second, prepared)).found).toBeGreaterThan(0);
  await until(() => own.of("disk").loaded > 0, "it was brought back");
  // What a start finds is not told as if it had come.
  expect(own.of("s3")).toEqual({ stored: 0, removed: 0, loaded: own.of("disk").stored, held });
  expect(own.of("disk").loaded).toBeLessThanOrEqual(own.of("disk").stored);
  const client = new HttpClient({ url: second.url, apiKey: prepared.apiKey });
  await client.json("DELETE", `/v1/vector_stores/${prepared.storeId}`);
  await until(() => own.of("s3").removed === held && own.of("disk").held === 0, "all is deleted");
  expect(own.of("disk").removed).toBe(own.of("disk").stored);
  const shared = own.changes.filter(({ tier }) => tier === "disk" || tier === "s3");
  expect(shared.every(({ worker, tenant_id }) => worker === null && tenant_id === tenantId)).toBe(true);
  await until(() => all.of("s3").removed === held, "the operator is told too");
  expect(other.changes).toEqual([]);
});

test.skipIf(!isLong || Bun.which("radosgw") === null)("the same over Ceph's S3 server", async () => {
  await using server = await startRadosgw();
  await loseFolder(envOf("s3://kv-files/kv", server.endpoint, server.access.secretAccessKey), server.list);
});

test("a bucket that refuses is said in a sentence, and everything is computed", async () => {
  bucket.fault = () => refusal(301, "PermanentRedirect", { "x-amz-bucket-region": "eu-west-1" });
  let log = "";
  const onLog = (part: string): void => {
    log += part;
  };
  const dataDir = newFolder();
  await using server = await startTestServer({ model: "one-layer", dataDir, env: env(), onLog });
  const prepared = await prepare(server);
  expect((await ask(server, prepared)).found).toBeGreaterThan(300);
  await until(() => log.includes("KV is not copied to the bucket for now"), "it is said");
  expect(log).toContain("the bucket is of another region (PermanentRedirect, its region is eu-west-1)");
  expect(log).toContain("s3://papers/kv/ at http://127.0.0.1");
  expect(log).not.toContain(secret);
});

/** The process and all that it started, as far as they run. */
function processesBelow(pid: number): number[] {
  const children = readdirSync("/proc").filter(
    (name) => readOf(name, "stat").split(") ")[1]?.split(" ")[1] === `${pid}`,
  );
  return [pid, ...children.flatMap((name) => processesBelow(Number(name)))];
}

/** Nothing, where it may not be read. */
function readOf(pid: number | string, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, "latin1");
  } catch {
    return "";
  }
}
