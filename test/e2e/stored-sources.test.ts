/** `spangate source`, as a person uses it: a site with a sitemap and a bucket that the server reads by itself. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { Source, VectorStoreFile } from "../../gateway/cli/support/operations.ts";
import { openBucket } from "../support/bucket.ts";
import { runSpangate } from "../support/command-line.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { until } from "../support/until.ts";

setDefaultTimeout(120_000);

let server: TestServer;
let owner: TestTenant;
let other: TestTenant;
const pages: Record<string, string> = {};
/** Path and status of what the site answered. */
const answered: string[] = [];
const site = Bun.serve({
  ...{ hostname: "127.0.0.1", port: 0 },
  fetch(request) {
    const { pathname, origin } = new URL(request.url);
    const isMap = pathname === "/docs/sitemap.xml";
    const urls = Object.keys(pages).map((path) => `<url><loc>${origin}${path}</loc></url>`);
    const body = isMap ? `<urlset>${urls.join("")}</urlset>` : pages[pathname];
    const etag = `"${Bun.hash.crc32(body ?? "")}"`;
    const isKnown = !isMap && request.headers.get("if-none-match") === etag;
    const status = body === undefined ? 404 : isKnown ? 304 : 200;
    if (pathname !== "/robots.txt") answered.push(`${pathname} ${status}`);
    const type = isMap ? "application/xml" : "text/html";
    return new Response(isKnown ? null : (body ?? ""), { status, headers: { "content-type": type, etag } });
  },
});
/** Of no network that the server may read from. */
let secretReads = 0;
const secret = Bun.serve({ hostname: "127.0.0.2", port: 0, fetch: () => new Response(`secret ${++secretReads}`) });
const bucket = openBucket();
const mapUrl = `http://127.0.0.1:${site.port}/docs/sitemap.xml`;

beforeAll(async () => {
  server = await startTestServer({ env: { SPANGATE_SOURCE_NETWORKS: "127.0.0.1/32" } });
  [owner, other] = [await server.tenant("owner"), await server.tenant("other")];
});
afterAll(async () => {
  await Promise.all([site.stop(true), secret.stop(true), bucket.stop(), server[Symbol.asyncDispose]()]);
});

function spangateAs({ apiKey }: TestTenant, args: readonly string[], env: Record<string, string> = {}) {
  const { SPANGATE_ADMIN_KEY: _admin, ...inherited } = process.env;
  return runSpangate(args, { env: { ...inherited, SPANGATE_URL: server.url, SPANGATE_API_KEY: apiKey, ...env } });
}
const spangate = (...args: string[]) => spangateAs(owner, args);

const newStore = async () =>
  (await owner.client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "docs" })).id;
const filesIn = async (store: string) =>
  (await owner.client.json<{ data: VectorStoreFile[] }>("GET", `/v1/vector_stores/${store}/files?limit=100`)).data;
const namesIn = async (store: string) => (await filesIn(store)).map(({ spangate: of }) => of?.filename).toSorted();
const sourceOf = (id: string) => owner.client.json<Source>("GET", `/admin/v1/sources/${id}`);

/** How many fragments the store has, and how many of them no worker holds. */
async function fragments(store: string) {
  type Fragments = { data: { resident: unknown[] }[] };
  const { data } = await owner.client.json<Fragments>("GET", `/admin/v1/vector_stores/${store}/fragments?limit=100`);
  return { all: data.length, missing: data.filter(({ resident }) => resident.length === 0).length };
}

test("a site by its sitemap: added, read again, edited, removed; and no other tenant knows of it", async () => {
  const guests = Array.from(
    { length: 300 },
    (_, at) => `The guest in room ${at} came from town ${(at * 7_919) % 997}.`,
  );
  const page = (sentences: readonly string[]) => `<nav>Home</nav><main><p>${sentences.join(" ")}</p></main>`;
  Object.assign(pages, {
    "/docs/guests": page(guests),
    "/docs/jon": page(["The extension of Jon Vale is 3057."]),
    "/docs/old": page(["Nobody needs this page any more."]),
  });
  const store = await newStore();
  expect((await spangate("source", "add", mapUrl)).errors).toContain("--store");
  const added = await spangate("source", "add", mapUrl, "--store", store, "--every", "6h");
  const [id = "", summary] = added.output.split("\n");
  expect([added.code, added.errors, summary]).toEqual([0, "", "3 added, 0 changed, 0 removed, 0 unchanged, 0 failed"]);
  expect((await spangate("ask", "What is the extension of Jon Vale?", "--store", store)).output).toContain("3057");
  await spangate("prepare", store);
  const before = await fragments(store);
  expect([before.all > 15, before.missing]).toEqual([true, 0]);

  answered.length = 0;
  const again = await spangate("source", "run", id);
  expect([again.code, again.output]).toEqual([0, "0 added, 0 changed, 0 removed, 3 unchanged, 0 failed"]);
  expect(answered.toSorted()).toEqual([
    ...["/docs/guests 304", "/docs/jon 304", "/docs/old 304", "/docs/sitemap.xml 200"],
  ]);

  pages["/docs/guests"] = page(guests.with(150, "Nobody stays in this room any more."));
  delete pages["/docs/old"];
  const edited = await spangate("source", "run", id);
  expect([edited.code, edited.output]).toEqual([0, "0 added, 1 changed, 1 removed, 1 unchanged, 0 failed"]);
  expect(await namesIn(store)).toEqual(["127.0.0.1/docs/guests.html", "127.0.0.1/docs/jon.html"]);
  // The old version's KV is swept in the background, and perhaps more of it after the first.
  await until(async () => (await fragments(store)).missing > 0, "the old version's KV is swept");
  await Bun.sleep(300);
  const { missing } = await fragments(store);
  expect([missing >= 1, missing <= 4]).toEqual([true, true]);

  const listed = await spangate("source", "list", "--store", store);
  expect(listed.output).toContain(`${id}  http://127.0.0.1:${site.port}/docs/  idle    360 min`);
  expect(listed.output).toContain("0 added, 1 changed, 1 removed");
  for (const args of [
    ["list", "--store", store],
    ["run", id],
    ["remove", id],
  ]) {
    const foreign = await spangateAs(other, ["source", ...args]);
    expect([foreign.code, foreign.output]).toEqual([1, ""]);
    expect(foreign.errors).toContain("404 (not_found)");
  }
  const twice = await spangate("source", "add", mapUrl, "--store", store);
  expect([twice.code, twice.errors.includes("409 (conflict)")]).toEqual([1, true]);
  expect((await spangate("source", "remove", id)).output).toBe(`removed ${id}; its files stay in the vector store`);
  expect([(await namesIn(store)).length, (await spangate("source", "run", id)).code]).toEqual([2, 1]);
});

test("addresses that the server may not read from are refused, in links of a page and redirects too", async () => {
  const store = await newStore();
  const inside = `http://127.0.0.2:${secret.port}/`;
  const direct = await spangate("source", "add", inside, "--store", store);
  expect([direct.code, direct.errors.includes("127.0.0.2 is not of the public internet")]).toEqual([1, true]);
  using way = Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    fetch(request) {
      const { pathname } = new URL(request.url);
      if (pathname === "/robots.txt") return new Response("", { status: 404 });
      if (pathname === "/out") return new Response(null, { status: 302, headers: { location: inside } });
      return new Response(`<a href="/out">x</a><a href="${inside}">y</a>`, {
        headers: { "content-type": "text/html" },
      });
    },
  });
  const led = await spangate("source", "add", `http://127.0.0.1:${way.port}/`, "--store", store);
  expect([led.code, led.output.split("\n")[1]]).toEqual([0, "1 added, 0 changed, 0 removed, 0 unchanged, 0 failed"]);
  const keys = { S3_ACCESS_KEY_ID: "reader", S3_SECRET_ACCESS_KEY: "s" };
  const args = ["source", "add", "s3://papers/", "--store", store, "--endpoint", inside];
  const far = await spangateAs(owner, args, keys);
  expect([far.code, far.errors.includes("127.0.0.2 is not of the public internet")]).toEqual([1, true]);
  expect(secretReads).toBe(0);
});

test("a bucket, whose secret key is nowhere to be read again", async () => {
  const store = await newStore();
  const secretKey = "a-secret-that-only-the-bucket-knows";
  const keys = { S3_ACCESS_KEY_ID: "reader", S3_SECRET_ACCESS_KEY: secretKey };
  for (const name of ["a", "b", "c"]) bucket.objects[`notes/${name}.md`] = `Note ${name} of the bucket.`;
  const args = ["source", "add", "s3://papers/notes/", "--store", store, "--endpoint", bucket.endpoint];
  const missing = await spangateAs(owner, args);
  expect([missing.code, missing.errors.includes("S3_ACCESS_KEY_ID")]).toEqual([1, true]);
  const added = await spangateAs(owner, args, keys);
  const [id = "", summary] = added.output.split("\n");
  expect([added.code, summary]).toEqual([0, "3 added, 0 changed, 0 removed, 0 unchanged, 0 failed"]);
  expect(await namesIn(store)).toEqual(["a", "b", "c"].map((name) => `papers/notes/${name}.md`));
  bucket.read.length = 0;
  bucket.objects["notes/b.md"] = "Note b says something else.";
  const again = await spangate("source", "run", id);
  expect([again.output, bucket.read]).toEqual(["0 added, 1 changed, 0 removed, 2 unchanged, 0 failed", ["notes/b.md"]]);
  const objects = { ...bucket.objects };
  for (const key of Object.keys(objects)) delete bucket.objects[key];
  const emptied = await spangate("source", "run", id);
  expect([emptied.code, emptied.errors.includes("no file any more, so nothing is taken out")]).toEqual([1, true]);
  expect((await namesIn(store)).length).toBe(3);
  Object.assign(bucket.objects, objects);
  const shown = await sourceOf(id);
  expect(shown.s3).toEqual({ endpoint: bucket.endpoint, region: null, access_key_id: "reader" });
  const audit = await server.admin.json("GET", "/admin/v1/audit?limit=100");
  const told = JSON.stringify([shown, await filesIn(store), audit]);
  expect([told.includes(id), told.includes(secretKey)]).toEqual([true, false]);
  const bytes = await Bun.file(`${server.dataDir}/spangate.db`).bytes();
  const log = await Bun.file(`${server.dataDir}/spangate.db-wal`).bytes();
  expect([bytes, log].some((part) => Buffer.from(part).includes(secretKey))).toBe(false);
});

test("a page that fails says so, and takes nothing out; a vector store that goes ends what reads into it", async () => {
  const store = await newStore();
  let isBroken = false;
  const waiting = Promise.withResolvers<void>();
  using slow = Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    async fetch(request) {
      const { pathname } = new URL(request.url);
      if (pathname === "/robots.txt") return new Response("", { status: 404 });
      if (isBroken && pathname === "/leaf") return new Response("", { status: 500 });
      if (isBroken && pathname === "/wait") await waiting.promise;
      const links = pathname === "/" ? '<a href="leaf">leaf</a><a href="wait">wait</a>' : pathname;
      return new Response(links, { headers: { "content-type": "text/html" } });
    },
  });
  const added = await spangate("source", "add", `http://127.0.0.1:${slow.port}/`, "--store", store, "--as", "slow");
  const [id = "", summary] = added.output.split("\n");
  expect(summary).toStartWith("3 added");
  isBroken = true;
  await spangate("source", "run", id, "--background");
  await until(async () => (await sourceOf(id)).status === "in_progress", "it is being read");
  waiting.resolve();
  await until(async () => (await sourceOf(id)).status === "idle", "it has been read");
  expect((await sourceOf(id)).last_run).toMatchObject({
    ...{ is_whole: false, removed: 0, failed: 1, error: null },
    failures: [{ path: `http://127.0.0.1:${slow.port}/leaf`, reason: "the site answered 500" }],
  });
  expect((await namesIn(store)).length).toBe(3);
  await owner.client.json("DELETE", `/v1/vector_stores/${store}`);
  expect((await spangate("source", "run", id)).errors).toContain("404 (not_found)");
});
