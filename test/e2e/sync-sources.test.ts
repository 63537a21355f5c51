/** `spangate sync` of a web site and of an S3 bucket, as a person uses it. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { VectorStoreFile } from "../../gateway/cli/support/operations.ts";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";
import { openBucket } from "../support/bucket.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

setDefaultTimeout(60_000);

let server: TestServer;
let apiKey = "";
const pages: Record<string, string> = {};
const site = Bun.serve({
  ...{ hostname: "127.0.0.1", port: 0 },
  fetch(request) {
    const body = pages[new URL(request.url).pathname];
    if (body === "broken") return new Response("", { status: 500 });
    return new Response(body ?? "", {
      status: body === undefined ? 404 : 200,
      headers: { "content-type": "text/html" },
    });
  },
});

const bucket = openBucket();

beforeAll(async () => {
  server = await startTestServer();
  apiKey = (await server.tenant("sources")).apiKey;
});
afterAll(async () => {
  await Promise.all([site.stop(true), bucket.stop(), server[Symbol.asyncDispose]()]);
});

async function spangate(args: readonly string[], env: Record<string, string> = {}) {
  const { SPANGATE_ADMIN_KEY: _admin, ...inherited } = process.env;
  const child = Bun.spawn([process.execPath, `${repositoryRoot}/gateway/cli/main.ts`, ...args], {
    env: { ...inherited, SPANGATE_URL: server.url, SPANGATE_API_KEY: apiKey, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const streams = [child.stdout, child.stderr].map((stream) => new Response(stream).text());
  const [output = "", errors = ""] = await Promise.all(streams);
  return { output: output.trim(), errors, code: await child.exited };
}

async function filesIn(store: string): Promise<readonly VectorStoreFile[]> {
  const headers = { authorization: `Bearer ${apiKey}` };
  const answer = await fetch(`${server.url}/v1/vector_stores/${store}/files?limit=100`, { headers });
  return ((await answer.json()) as { data: VectorStoreFile[] }).data;
}
const namesIn = async (store: string) => (await filesIn(store)).map(({ spangate }) => spangate?.filename).toSorted();

test("a web site: read, asked, read again after an edit; what cannot be read for now takes nothing out", async () => {
  const url = `http://127.0.0.1:${site.port}/docs/`;
  Object.assign(pages, {
    "/docs/": '<main>Welcome. <a href="jon">Jon</a> <a href="more">more</a></main>',
    "/docs/jon": "<main>The extension of Jon Vale is 3057.</main>",
    "/docs/more": '<main>More pages. <a href="leaf">leaf</a></main>',
    "/docs/leaf": "<main>A leaf of the tree.</main>",
  });
  const refused = await spangate(["sync", url, "--new", "site"]);
  expect([refused.code, refused.output]).toEqual([1, ""]);
  expect(refused.errors).toContain("127.0.0.1 is not of the public internet");
  const first = await spangate(["sync", url, "--new", "site", "--allow-private"]);
  const [store = "", summary] = first.output.split("\n");
  expect([first.code, summary]).toEqual([0, "4 added, 0 changed, 0 removed, 0 unchanged, 0 failed"]);
  const files = await filesIn(store);
  const jon = files.find(({ spangate }) => spangate?.filename === "127.0.0.1/docs/jon.html");
  expect(jon?.attributes).toMatchObject({ source_url: `${url}jon`, synced_from: url });
  const question = "What is the extension of Jon Vale?";
  expect((await spangate(["ask", question, "--store", store])).output).toContain("3057");
  pages["/docs/jon"] = "<main>The extension of Jon Vale is 4411.</main>";
  pages["/docs/more"] = "broken";
  const second = await spangate(["sync", url, "--store", store, "--allow-private"]);
  expect([second.code, second.output]).toEqual([1, "0 added, 1 changed, 0 removed, 1 unchanged, 1 failed"]);
  expect(second.errors).toContain("the site answered 500");
  expect((await namesIn(store)).length).toBe(4);
  expect((await spangate(["ask", question, "--store", store])).output).toContain("4411");
  delete pages["/docs/more"];
  const third = await spangate(["sync", url, "--store", store, "--allow-private"]);
  expect([third.code, third.output]).toEqual([0, "0 added, 0 changed, 2 removed, 2 unchanged, 0 failed"]);
});

test("an S3 bucket: only objects whose entity tag changed are read again", async () => {
  const s3 = ["--endpoint", bucket.endpoint];
  const keys = { S3_ACCESS_KEY_ID: "reader", S3_SECRET_ACCESS_KEY: "a-secret-of-ours" };
  for (const name of ["a", "b", "c"]) bucket.objects[`notes/${name}.md`] = `Note ${name} of the bucket.`;
  bucket.objects["other/d.md"] = "Not below the prefix.";
  const missing = await spangate(["sync", "s3://papers/notes/", "--new", "bucket", ...s3]);
  expect([missing.code, missing.output]).toEqual([1, ""]);
  expect(missing.errors).toContain("S3_ACCESS_KEY_ID");
  const first = await spangate(["sync", "s3://papers/notes/", "--new", "bucket", ...s3], keys);
  const [store = "", summary] = first.output.split("\n");
  expect([first.code, summary]).toEqual([0, "3 added, 0 changed, 0 removed, 0 unchanged, 0 failed"]);
  expect(await namesIn(store)).toEqual(["a", "b", "c"].map((name) => `papers/notes/${name}.md`));
  expect(JSON.stringify(await filesIn(store))).not.toContain("a-secret");
  bucket.read.length = 0;
  bucket.objects["notes/b.md"] = "Note b says something else.";
  delete bucket.objects["notes/c.md"];
  const second = await spangate(["sync", "s3://papers/notes/", "--store", store, ...s3], keys);
  expect([second.code, second.output]).toEqual([0, "0 added, 1 changed, 1 removed, 1 unchanged, 0 failed"]);
  expect(bucket.read).toEqual(["notes/b.md"]);
  expect(await spangate(["sync", "s3://Bad_Bucket", "--store", store, ...s3], keys)).toMatchObject({ code: 1 });
});
