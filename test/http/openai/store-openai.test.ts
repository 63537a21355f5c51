/** The store's routes through the official client: the shapes it expects, its pages, its polling helpers. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import OpenAI, { toFile } from "openai";
import { call, createStoreApp, type StoreApp } from "../store-app.ts";

let it: StoreApp;
let client: OpenAI;
let tenant: ReturnType<StoreApp["tenant"]>;

function clientOf(apiKey: string): OpenAI {
  const fetchApp = (input: string | URL | Request, init?: RequestInit) =>
    Promise.resolve(it.app.request(input instanceof Request ? input : String(input), init));
  return new OpenAI({ apiKey, baseURL: "http://test/v1", fetch: fetchApp as typeof fetch, maxRetries: 0 });
}

beforeEach(() => {
  it = createStoreApp();
  tenant = it.tenant("acme");
  client = clientOf(tenant.key);
});
afterEach(() => it.world.remove());

const text = (name: string, content: string) => toFile(Buffer.from(content), name, { type: "text/markdown" });
const poll = { pollIntervalMs: 1 };

describe("through the openai client", () => {
  test("files: create, retrieve, content, list in pages, delete", async () => {
    const files: OpenAI.FileObject[] = [];
    for (let i = 0; i < 5; i++)
      files.push(
        await client.files.create({ file: await text(`${i}.md`, `# ${i}\nText ${i}.`), purpose: "assistants" }),
      );
    const [first] = files;
    if (first === undefined) throw new Error("no file");
    expect(first).toMatchObject({
      object: "file",
      bytes: 11,
      filename: "0.md",
      purpose: "assistants",
      status: "processed",
    });
    expect(Math.abs(first.created_at - Date.now() / 1000)).toBeLessThan(60);
    expect(await client.files.retrieve(first.id)).toEqual(first);
    expect(await (await client.files.content(first.id)).text()).toBe("# 0\nText 0.");
    const listed: string[] = [];
    for await (const file of client.files.list({ limit: 2, order: "asc" })) listed.push(file.id);
    expect(listed).toEqual(files.map((file) => file.id));
    expect((await client.files.list({ limit: 2 })).data.map((file) => file.filename)).toEqual(["4.md", "3.md"]);
    expect((await client.files.list({ purpose: "user_data" })).data).toEqual([]);
    expect(await client.files.delete(first.id)).toEqual({ id: first.id, object: "file", deleted: true });
    const gone = await client.files.retrieve(first.id).catch((error: unknown) => error);
    expect(gone).toBeInstanceOf(OpenAI.NotFoundError);
  });

  test("expires_after of files, uploads in parts and vector stores, as the client writes it", async () => {
    const hours = { anchor: "created_at" as const, seconds: 7_200 };
    const file = await client.files.create({
      ...{ file: await text("a.md", "Text."), purpose: "assistants", expires_after: hours },
    });
    expect(file.expires_at).toBe(file.created_at + 7_200);
    expect(await client.files.retrieve(file.id)).toEqual(file);
    const stays = await client.files.create({ file: await text("a.md", "Text."), purpose: "assistants" });
    expect(stays.id).not.toBe(file.id);
    expect(stays).not.toHaveProperty("expires_at");
    const upload = await client.uploads.create({
      ...{ bytes: 5, filename: "b.txt", mime_type: "text/plain", purpose: "assistants", expires_after: hours },
    });
    const part = await client.uploads.parts.create(upload.id, { data: await text("b", "Parts") });
    const whole = await client.uploads.complete(upload.id, { part_ids: [part.id] });
    expect(whole.file?.expires_at).toBe((whole.file?.created_at ?? 0) + 7_200);
    const expires_after = { anchor: "last_active_at" as const, days: 3 };
    const store = await client.vectorStores.create({ name: "s", expires_after });
    expect(store.expires_after).toEqual(expires_after);
    expect(store.expires_at).toBe((store.last_active_at ?? 0) + 3 * 86_400);
    const longer = await client.vectorStores.update(store.id, { expires_after: { ...expires_after, days: 365 } });
    expect(longer.expires_at).toBe((longer.last_active_at ?? 0) + 365 * 86_400);
    expect((await client.vectorStores.update(store.id, { name: "t" })).expires_after?.days).toBe(365);
    const forever = await client.vectorStores.update(store.id, { expires_after: null });
    expect([forever.expires_after, forever.expires_at]).toEqual([null, null]);
  });

  test("a store that has expired is listed and told of, holds nothing, and can be deleted", async () => {
    const expires_after = { anchor: "last_active_at" as const, days: 1 };
    const file = await client.files.create({ file: await text("a.md", "Anna."), purpose: "assistants" });
    const store = await client.vectorStores.create({ name: "s", file_ids: [file.id], expires_after });
    await it.world.corpus.idle();
    it.world.db.client.run("update corpora set last_active_at = last_active_at - 90000000");
    await client.vectorStores.create({ name: "sets the timer", expires_after });
    await it.world.corpus.idle();
    const expired = await client.vectorStores.retrieve(store.id);
    expect(expired).toMatchObject({ status: "expired", usage_bytes: 0, file_counts: { total: 0 } });
    expect((await client.vectorStores.list()).data.map(({ status }) => status)).toEqual(["completed", "expired"]);
    for (const used of [
      () => client.vectorStores.search(store.id, { query: "Anna" }),
      () => client.vectorStores.files.list(store.id),
      () => client.vectorStores.files.create(store.id, { file_id: file.id }),
      () => client.vectorStores.update(store.id, { expires_after: { ...expires_after, days: 9 } }),
    ]) {
      const refused = await Promise.resolve(used()).catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(OpenAI.ConflictError);
      expect((refused as Error).message).toContain("has expired");
    }
    // Another tenant learns nothing of it.
    const stranger = clientOf(it.tenant("other").key);
    const unknown = await stranger.vectorStores.retrieve(store.id).catch((error: unknown) => error);
    expect(unknown).toBeInstanceOf(OpenAI.NotFoundError);
    expect((await client.files.retrieve(file.id)).id).toBe(file.id);
    expect((await client.vectorStores.delete(store.id)).deleted).toBe(true);
    expect((await client.vectorStores.list()).data).toHaveLength(1);
  });

  test("a vector store: upload and poll, search with filters, content, update, delete", async () => {
    const store = await client.vectorStores.create({ name: "docs", metadata: { team: "a" } });
    expect(store).toMatchObject({
      object: "vector_store",
      name: "docs",
      status: "completed",
      metadata: { team: "a" },
      usage_bytes: 0,
    });
    const ada = await client.vectorStores.files.uploadAndPoll(
      store.id,
      await text("ada.md", "Ada Lovelace wrote programs. She lived in London."),
      poll,
    );
    expect(ada).toMatchObject({
      object: "vector_store.file",
      status: "completed",
      last_error: null,
      vector_store_id: store.id,
      spangate: {
        filename: "ada.md",
        bytes: 49,
        sha256: new Bun.CryptoHasher("sha256")
          .update("Ada Lovelace wrote programs. She lived in London.")
          .digest("hex"),
      },
    });
    const bob = await client.vectorStores.files.uploadAndPoll(
      store.id,
      await text("bob.md", "Bob wrote letters in Paris."),
      poll,
    );
    await client.vectorStores.files.update(bob.id, {
      vector_store_id: store.id,
      attributes: { year: 1990, public: true },
    });
    const search = async (query: string | string[], filters?: OpenAI.ComparisonFilter | OpenAI.CompoundFilter) =>
      (await client.vectorStores.search(store.id, { query, ...(filters === undefined ? {} : { filters }) })).data;
    const found = await search("Who wrote programs in London?");
    expect(found.map((hit) => hit.filename)).toEqual(["ada.md", "bob.md"]);
    expect(found[0]?.content).toEqual([{ type: "text", text: "Ada Lovelace wrote programs. She lived in London." }]);
    for (const hit of found) expect(hit.score > 0 && hit.score <= 1).toBe(true);
    expect((await search("wrote", { type: "gte", key: "year", value: 1990 })).map((hit) => hit.file_id)).toEqual([
      bob.id,
    ]);
    expect(await search("wrote", { type: "eq", key: "public", value: false })).toEqual([]);
    expect(await search(["programs", "letters"])).toHaveLength(2);
    const pages = await client.vectorStores.files.content(ada.id, { vector_store_id: store.id });
    expect(pages.data.map((part) => part.text).join("")).toBe("Ada Lovelace wrote programs. She lived in London.");
    const updated = await client.vectorStores.update(store.id, { name: "renamed" });
    expect(updated).toMatchObject({
      name: "renamed",
      metadata: { team: "a" },
      file_counts: { completed: 2, total: 2 },
    });
    expect(await client.vectorStores.files.delete(ada.id, { vector_store_id: store.id })).toMatchObject({
      deleted: true,
    });
    expect((await search("programs")).length).toBe(0);
    expect(await client.vectorStores.delete(store.id)).toMatchObject({ object: "vector_store.deleted", deleted: true });
    expect(await client.vectorStores.retrieve(store.id).catch((error: unknown) => error)).toBeInstanceOf(
      OpenAI.NotFoundError,
    );
  });

  test("file batches: create and poll, one bad file, list by status, cancel", async () => {
    const store = await client.vectorStores.create({});
    const files: OpenAI.FileObject[] = [];
    for (let i = 0; i < 4; i++)
      files.push(await client.files.create({ file: await text(`${i}.md`, `Text ${i}.`), purpose: "assistants" }));
    files.push(await client.files.create({ file: await text("bad.md", " "), purpose: "assistants" }));
    const ids = files.map((file) => file.id);
    const chunking = { type: "static", static: { max_chunk_size_tokens: 64, chunk_overlap_tokens: 0 } } as const;
    const batch = await client.vectorStores.fileBatches.createAndPoll(
      store.id,
      { file_ids: ids, attributes: { batch: "one" }, chunking_strategy: chunking },
      poll,
    );
    expect(batch).toMatchObject({
      object: "vector_store.files_batch",
      status: "completed",
      file_counts: { completed: 4, failed: 1, total: 5, in_progress: 0 },
    });
    const failed = await client.vectorStores.fileBatches.listFiles(batch.id, {
      vector_store_id: store.id,
      filter: "failed",
    });
    expect(failed.data).toMatchObject([
      { id: ids[4], last_error: { code: "invalid_file" }, attributes: { batch: "one" }, chunking_strategy: chunking },
    ]);
    expect((await client.vectorStores.fileBatches.cancel(batch.id, { vector_store_id: store.id })).status).toBe(
      "completed",
    );
    // The same call again, as a client does that lost the answer: nothing is made twice.
    const again = await client.vectorStores.fileBatches.createAndPoll(store.id, { file_ids: ids }, poll);
    expect(again.file_counts.total).toBe(5);
    expect((await client.vectorStores.retrieve(store.id)).file_counts.total).toBe(5);
  });

  test("a vector store made with files", async () => {
    const file = await client.files.create({ file: await text("a.md", "Some words."), purpose: "user_data" });
    const store = await client.vectorStores.create({ file_ids: [file.id] });
    expect(store).toMatchObject({ status: "in_progress", file_counts: { in_progress: 1, total: 1 } });
    await it.world.corpus.idle();
    expect((await client.vectorStores.retrieve(store.id)).status).toBe("completed");
  });
});

describe("prepare", () => {
  test("a job, its events, and the fragments it leaves", async () => {
    const store = await client.vectorStores.create({});
    const long = Array.from({ length: 400 }, (_, i) => `Line ${i} has some words.`).join(" ");
    await client.vectorStores.files.uploadAndPoll(store.id, await text("a.md", long), poll);
    const fragments = `/admin/v1/vector_stores/${store.id}/fragments`;
    const before = await call(it.app, tenant.key, "GET", `${fragments}?limit=2`);
    expect(before.body).toMatchObject({
      object: "list",
      has_more: true,
      data: [{ index: 0, filename: "a.md", prepared: null, resident: [] }, { index: 1 }],
    });
    const next = await call(it.app, tenant.key, "GET", `${fragments}?limit=2&after=${before.ids[1]}`);
    expect(next.body).toMatchObject({ data: [{ index: 2 }, { index: 3 }] });
    const { status, body, id } = await call(it.app, tenant.key, "POST", `/admin/v1/vector_stores/${store.id}/prepare`);
    expect([status, body]).toMatchObject([
      202,
      { object: "prepare_job", status: "queued", done: 0, vector_store_id: store.id, error: null },
    ]);
    const events = await call(it.app, tenant.key, "GET", `/admin/v1/jobs/${id}/events`);
    expect(events.headers.get("content-type")).toContain("text/event-stream");
    const states = [...String(events.body).matchAll(/^data: (.*)$/gm)].map(
      ([, data]) => JSON.parse(data ?? "") as { status: string; done: number; total: number },
    );
    expect(states.length).toBeGreaterThan(1);
    expect(states.at(-1)).toMatchObject({ status: "completed" });
    expect(states.at(-1)?.done).toBe(states.at(-1)?.total as number);
    const after = await call(it.app, tenant.key, "GET", `${fragments}?limit=1`);
    expect(after.body).toMatchObject({
      data: [
        {
          prepared: { worker: 0 },
          resident: [{ worker: 0, tier: "device" }],
          span_key: expect.stringMatching(/^[0-9a-f]{32}$/),
        },
      ],
    });
    expect((await call(it.app, tenant.key, "POST", `/admin/v1/jobs/${id}/cancel`)).body).toMatchObject({
      status: "completed",
    });
    await call(it.app, tenant.key, "POST", `/admin/v1/vector_stores/${store.id}/salt/rotate`);
    await it.world.corpus.idle();
    const rotated = await call(it.app, tenant.key, "GET", `${fragments}?limit=1`);
    expect(rotated.body).toMatchObject({ data: [{ prepared: null, resident: [] }] });
  });

  test("a file taken out of its last store can be deleted with it, and one that another store has stays", async () => {
    const [one, two] = [await client.vectorStores.create({}), await client.vectorStores.create({})];
    const file = await client.vectorStores.files.uploadAndPoll(one.id, await text("a.md", "Words."), poll);
    await client.vectorStores.files.create(two.id, { file_id: file.id });
    const detach = (store: string, query: string) =>
      call(it.app, tenant.key, "DELETE", `/v1/vector_stores/${store}/files/${file.id}${query}`);
    expect((await detach(one.id, "?delete_file=all")).status).toBe(400);
    expect((await detach(one.id, "?delete_file=unused")).status).toBe(200);
    expect((await client.files.retrieve(file.id)).filename).toBe("a.md");
    await client.vectorStores.files.create(one.id, { file_id: file.id });
    expect((await detach(one.id, "")).status).toBe(200);
    const stranger = it.tenant("stranger").key;
    const path = `/v1/vector_stores/${two.id}/files/${file.id}?delete_file=unused`;
    expect((await call(it.app, stranger, "DELETE", path)).status).toBe(404);
    expect((await detach(two.id, "?delete_file=unused")).status).toBe(200);
    expect((await call(it.app, tenant.key, "GET", `/v1/files/${file.id}`)).status).toBe(404);
  });

  test("fragments of a server without a model yet have no span", async () => {
    const store = await client.vectorStores.create({});
    await client.vectorStores.files.uploadAndPoll(store.id, await text("a.md", "Words."), poll);
    it.world.spans.ready = false;
    const { body } = await call(it.app, tenant.key, "GET", `/admin/v1/vector_stores/${store.id}/fragments`);
    expect(body).toMatchObject({ data: [{ span_key: null, blocks: null, text_tokens: 3 }] });
  });
});

describe("tenants and keys", () => {
  test("made, listed, changed, and gone with all they own", async () => {
    const admin = (method: string, path: string, body?: unknown) =>
      call(it.app, it.adminKey, method, `/admin/v1${path}`, body);
    const made = await admin("POST", "/tenants", { name: "new" });
    expect([made.status, made.body]).toMatchObject([201, { object: "tenant", name: "new", status: "active" }]);
    const minted = await admin("POST", `/tenants/${made.id}/keys`, {
      scopes: ["corpus:write", "corpus:read"],
      name: "ci",
    });
    const { key } = minted.body as { key: string };
    expect(minted.body).toMatchObject({
      name: "ci",
      scopes: ["corpus:read", "corpus:write"],
      tenant_id: made.id,
      prefix: key.slice(0, 10),
    });
    expect(minted.headers.get("cache-control")).toBe("no-store");
    const own = clientOf(key);
    const store = await own.vectorStores.create({});
    await own.vectorStores.files.uploadAndPoll(store.id, await text("a.md", "Words."), poll);
    const listed = await admin("GET", `/tenants/${made.id}/keys`);
    expect(listed.ids).toEqual([minted.id]);
    expect(JSON.stringify(listed.body)).not.toContain(key);
    expect((await admin("PATCH", `/tenants/${made.id}`, { status: "disabled" })).body).toMatchObject({
      status: "disabled",
    });
    expect((await call(it.app, key, "GET", "/v1/files")).status).toBe(401);
    await admin("PATCH", `/tenants/${made.id}`, { status: "active" });
    expect((await admin("POST", `/tenants/${made.id}/salt/rotate`)).body).toMatchObject({ epoch: 1 });
    expect((await admin("DELETE", `/keys/${minted.id}`)).status).toBe(200);
    expect((await call(it.app, key, "GET", "/v1/files")).status).toBe(401);
    expect((await admin("DELETE", `/tenants/${made.id}`)).body).toMatchObject({ deleted: true });
    expect((await admin("GET", `/tenants/${made.id}`)).status).toBe(404);
    expect((await admin("GET", "/tenants")).ids).not.toContain(made.id);
    await it.world.corpus.idle();
    expect(it.world.db.client.query("select id from files").all()).toEqual([]);
  });
});
