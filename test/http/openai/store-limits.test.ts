/** What one tenant may hold of the server at the same time; another tenant is not touched by it. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import { ingestText } from "../../corpus/world.ts";
import { call, createStoreApp, form, type StoreApp } from "../store-app.ts";

let it: StoreApp;
beforeEach(() => {
  it = createStoreApp();
});
afterEach(() => it.world.remove());

test("uploads that are still coming", async () => {
  const acme = it.tenant("acme").key;
  const upload = (key: string) => call(it.app, key, "POST", "/v1/files", form("a.txt", "A."));
  const controllers: ReadableStreamDefaultController<Uint8Array>[] = [];
  const slow = () =>
    it.app.request("/v1/files", {
      method: "POST",
      headers: { authorization: `Bearer ${acme}`, "content-type": "multipart/form-data; boundary=x" },
      body: new ReadableStream<Uint8Array>({ start: (controller) => void controllers.push(controller) }),
    });
  const open = [slow(), slow()];
  const refused = await upload(acme);
  expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "1"]);
  expect((await upload(it.tenant("globex").key)).status).toBe(200);
  for (const controller of controllers) controller.close();
  expect((await Promise.all(open)).map((response) => response.status)).toEqual([400, 400]);
  expect((await upload(acme)).status).toBe(200);
});

test("files that are being read", async () => {
  const [acme, globex] = [it.tenant("acme").key, it.tenant("globex").key];
  // More than is read ahead of the client.
  const text = "Some words. ".repeat(100_000);
  const upload = async (key: string) => (await call(it.app, key, "POST", "/v1/files", form("a.txt", text))).id;
  const [file, other] = [await upload(acme), await upload(globex)];
  const read = (key: string, id: string, method = "GET") =>
    it.app.request(`/v1/files/${id}/content`, { method, headers: { authorization: `Bearer ${key}` } });
  // What nobody reads holds no place, and neither does what is not there.
  for (let index = 0; index < 3; index++) expect((await read(acme, file, "HEAD")).status).toBe(200);
  for (let index = 0; index < 3; index++) expect((await read(acme, other)).status).toBe(404);
  const [first, second] = [await read(acme, file), await read(acme, file)];
  const refused = await read(acme, file);
  expect([first.status, second.status, refused.status]).toEqual([200, 200, 429]);
  expect((await read(acme, other)).status).toBe(404);
  expect(await (await read(globex, other)).text()).toBe(text);
  await first.body?.cancel();
  let third = await read(acme, file);
  for (; third.status === 429; third = await read(acme, file)) await Bun.sleep(0);
  expect(await third.text()).toBe(text);
  expect(await second.text()).toBe(text);
});

test("streams of job events", async () => {
  const { id: tenantId, key } = it.tenant("acme");
  const store = it.world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
  await ingestText(it.world, store, "a.txt", "Some words.");
  const blocked = Promise.withResolvers<void>();
  it.world.spans.gate = () => blocked.promise;
  const job = await call(it.app, key, "POST", `/admin/v1/vector_stores/${store.id}/prepare`);
  const headers = { authorization: `Bearer ${key}` };
  const follow = (method = "GET") => it.app.request(`/admin/v1/jobs/${job.id}/events`, { method, headers });
  // A stream that nobody can read holds no place.
  for (let index = 0; index < 3; index++) expect((await follow("HEAD")).status).toBe(200);
  const first = await follow();
  const second = await follow();
  expect([first.status, second.status, (await follow()).status]).toEqual([200, 200, 429]);
  await first.body?.cancel();
  // The place is free as soon as the stream's work has seen that nobody reads.
  let third = await follow();
  for (; third.status === 429; third = await follow()) await Bun.sleep(0);
  blocked.resolve();
  expect(await third.text()).toContain('"status":"completed"');
  expect(await second.text()).toContain('"status":"completed"');
});

test("a search whose client has gone is given up, and is no failure", async () => {
  const { id, key } = it.tenant("acme");
  const store = it.world.corpus.corpora.create(id, { name: "a", metadata: {} });
  const pause = await it.world.db.pauseReaders(60_000);
  const client = new AbortController();
  const answer = it.app.request(`/v1/vector_stores/${store.id}/search`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({ query: "heron" }),
    signal: client.signal,
  });
  await Bun.sleep(20);
  client.abort();
  // The threads stand still: only who gives up gets here.
  expect(await (await answer).text()).toBe("");
  expect(it.logged).toEqual(["info request"]);
  pause?.[Symbol.dispose]();
});
