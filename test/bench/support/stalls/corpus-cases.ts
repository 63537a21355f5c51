/** Files, uploads in parts, vector stores, searches, jobs and fragments. */
import { jsonCase, plainCase, type StallCase, type StallRequest } from "./case.ts";
import { mib, prose, times } from "./texts.ts";
import { makeStore, type StallWorld, upload } from "./world.ts";

const stores = "POST /v1/vector_stores";
const store = "/v1/vector_stores/{vector_store_id}";
const background = { afterMs: 3_000 };
const metadata = Object.fromEntries(times(16, (at) => [`${at}`.padStart(64, "k"), "v".repeat(512)]));
const chunking = (tokens: number) => ({
  type: "static",
  static: { max_chunk_size_tokens: tokens, chunk_overlap_tokens: 0 },
});

function fileForm(bytes: Blob | string, name: string, purpose = "assistants"): FormData {
  const form = new FormData();
  form.set("purpose", purpose);
  form.set("file", new File([bytes], name));
  return form;
}

const filters = {
  type: "and",
  filters: times(60, (at) => ({ type: "in", key: `k${at}`, value: times(16, (index) => `${index}`) })),
};

const searchCase = (name: string, body: object): StallCase =>
  jsonCase("POST /v1/vector_stores/{vector_store_id}/search", name, () => ({ max_num_results: 50, ...body }));

const sourcesPath = ({ ids }: StallWorld): string => `/admin/v1/vector_stores/${ids.vector_store_id}/sources`;

/** What a case deletes or changes is made anew for each round. */
async function freshStore({ hostile, ids }: StallWorld, files: readonly string[], chunkTokens: number): Promise<void> {
  ids.fresh_store_id = await makeStore(hostile.client, files, chunkTokens);
}

const freshFile = (world: StallWorld, chars: number): Promise<string> =>
  upload(world.hostile.client, `${crypto.randomUUID()} ${prose(chars, 11)}`, "fresh.txt");

function freshCase(
  route: string,
  name: string,
  make: (world: StallWorld) => Promise<Omit<StallRequest, "method"> | string>,
): StallCase {
  const [method = ""] = route.split(" ");
  return {
    route,
    name,
    ...background,
    make: async (world) => {
      const made = await make(world);
      return typeof made === "string" ? { method, path: made } : { method, ...made };
    },
  };
}

/** What it leaves is looked at once the file has been ingested. */
const ingestedCase: typeof freshCase = (...of) => ({ ...freshCase(...of), ingests: true });

const json = (body: unknown) => ({ body: JSON.stringify(body), contentType: "application/json" });

export const corpusCases: readonly StallCase[] = [
  {
    route: "POST /v1/files",
    name: "32 MiB",
    afterMs: 500,
    make: () => ({
      method: "POST",
      path: "/v1/files",
      body: fileForm(crypto.randomUUID() + "x y ".repeat(8 * mib - 16), "large.txt"),
    }),
  },
  {
    route: "POST /v1/files",
    name: "a batch of 10,000 lines",
    make: ({ model }) => ({
      method: "POST",
      path: "/v1/files",
      body: fileForm(batchLines(model, 10_000), "lines.jsonl", "batch"),
    }),
  },
  plainCase("GET /v1/files", "1,000 of them", "?limit=1000"),
  plainCase("GET /v1/files/{file_id}", "one"),
  freshCase("GET /v1/files/{file_id}/content", "32 MiB", async ({ hostile }) => {
    const id = await upload(hostile.client, crypto.randomUUID() + "x y ".repeat(8 * mib - 16), "large.txt");
    return `/v1/files/${id}/content`;
  }),
  freshCase("DELETE /v1/files/{file_id}", "of 3.5 MB in a store of small fragments", async (world) => {
    const fileId = await freshFile(world, 3.5 * mib);
    await freshStore(world, [fileId], 64);
    return `/v1/files/${fileId}`;
  }),
  jsonCase("POST /v1/uploads", "32 MiB to come", () => ({
    bytes: 32 * mib,
    filename: "a.txt",
    mime_type: "text/plain",
    purpose: "assistants",
    expires_after: { anchor: "created_at", seconds: 3_600 },
  })),
  freshCase("POST /v1/uploads/{upload_id}/parts", "32 MiB", async ({ hostile }) => {
    const path = `/v1/uploads/${await openUpload(hostile.client, 32 * mib)}/parts`;
    const form = new FormData();
    form.set("data", new File(["x".repeat(32 * mib)], "part"));
    return { path, body: form };
  }),
  freshCase("POST /v1/uploads/{upload_id}/complete", "1,000 parts", async ({ hostile }) => {
    const id = await openUpload(hostile.client, 8_000_000);
    const partIds: string[] = [];
    for (let at = 0; at < 1_000; at++) {
      const form = new FormData();
      form.set("data", new File([`${at}`.padEnd(8_000, "x y z ")], "part"));
      partIds.push((await hostile.client.upload<{ id: string }>(`/v1/uploads/${id}/parts`, form)).id);
    }
    return { path: `/v1/uploads/${id}/complete`, ...json({ part_ids: partIds }) };
  }),
  freshCase("POST /v1/uploads/{upload_id}/cancel", "with 32 MiB", async ({ hostile }) => {
    const id = await openUpload(hostile.client, 32 * mib);
    const form = new FormData();
    form.set("data", new File(["x".repeat(32 * mib)], "part"));
    await hostile.client.upload(`/v1/uploads/${id}/parts`, form);
    return { path: `/v1/uploads/${id}/cancel`, ...json({}) };
  }),
  jsonCase(
    stores,
    "200 files",
    ({ fileIds }) => ({
      name: "n".repeat(256),
      file_ids: fileIds,
      metadata,
      chunking_strategy: chunking(16),
      expires_after: { anchor: "last_active_at", days: 1 },
    }),
    background,
  ),
  plainCase("GET /v1/vector_stores", "100 of them", "?limit=100"),
  plainCase(`GET ${store}`, "one"),
  jsonCase(`POST ${store}`, "renamed, all its metadata", () => ({ name: "n".repeat(256), metadata })),
  freshCase(`DELETE ${store}`, "of 20,000 fragments", async (world) => {
    await freshStore(world, [await freshFile(world, 3.5 * mib)], 48);
    return `/v1/vector_stores/${world.ids.fresh_store_id}`;
  }),
  searchCase("16 queries of 16,000 characters", { query: times(16, (at) => prose(16_000, at)) }),
  searchCase("one query, 60 filters", { query: "river ships", filters }),
  searchCase("common words", { query: "the and that about under near of every" }),
  searchCase("16,000 combining marks", { query: `a${"\u0315".repeat(8_000)}${"\u0327".repeat(8_000)}` }),
  searchCase("one word of 16,000 letters", { query: "abcdefghij".repeat(1_600) }),
  freshCase(`POST ${store}/files`, "a file of 3.5 MB in chunks of 16 tokens", async (world) => {
    const body = { file_id: await freshFile(world, 3.5 * mib), chunking_strategy: chunking(16) };
    return { path: `/v1/vector_stores/${world.ids.vector_store_id}/files`, ...json(body) };
  }),
  ingestedCase(`POST ${store}/files`, "Markdown of a million lines", async (world) => {
    const fileId = await upload(world.hostile.client, "# a\n\n- b\n".repeat(800_000) + crypto.randomUUID(), "lines.md");
    return { path: `/v1/vector_stores/${world.ids.vector_store_id}/files`, ...json({ file_id: fileId }) };
  }),
  ingestedCase(`POST ${store}/files`, "one word of 8 million letters", async (world) => {
    const fileId = await upload(world.hostile.client, "abcdefghij".repeat(800_000) + crypto.randomUUID(), "word.txt");
    return { path: `/v1/vector_stores/${world.ids.vector_store_id}/files`, ...json({ file_id: fileId }) };
  }),
  ingestedCase(`POST ${store}/files`, "8 million characters that are not ASCII", async (world) => {
    const fileId = await upload(world.hostile.client, "é ü ß ".repeat(1_300_000) + crypto.randomUUID(), "signs.txt");
    return { path: `/v1/vector_stores/${world.ids.vector_store_id}/files`, ...json({ file_id: fileId }) };
  }),
  freshCase(`POST ${store}/files`, "HTML of many tags", async (world) => {
    const fileId = await upload(
      world.hostile.client,
      "<p><b>a</b></p>".repeat(500_000) + crypto.randomUUID(),
      "tags.html",
    );
    return { path: `/v1/vector_stores/${world.ids.vector_store_id}/files`, ...json({ file_id: fileId }) };
  }),
  plainCase(`GET ${store}/files`, "100 of them", "?limit=100"),
  plainCase(`GET ${store}/files/{file_id}`, "one"),
  jsonCase(`POST ${store}/files/{file_id}`, "all its attributes", () => ({ attributes: metadata }), background),
  plainCase(`GET ${store}/files/{file_id}/content`, "3.5 MB"),
  freshCase(`DELETE ${store}/files/{file_id}`, "of 3.5 MB", async (world) => {
    const fileId = await freshFile(world, 3.5 * mib);
    await freshStore(world, [fileId], 64);
    return `/v1/vector_stores/${world.ids.fresh_store_id}/files/${fileId}?delete_file=unused`;
  }),
  jsonCase(
    `POST ${store}/file_batches`,
    "200 files in small chunks",
    ({ fileIds }) => ({ file_ids: fileIds, chunking_strategy: chunking(16), attributes: metadata }),
    background,
  ),
  plainCase(`GET ${store}/file_batches/{batch_id}`, "one"),
  plainCase(`GET ${store}/file_batches/{batch_id}/files`, "100 of them", "?limit=100"),
  jsonCase(`POST ${store}/file_batches/{batch_id}/cancel`, "an ended one", () => ({})),
  jsonCase("POST /admin/v1/vector_stores/{vector_store_id}/prepare", "40,000 fragments", () => ({}), background),
  plainCase("GET /admin/v1/jobs/{job_id}", "one"),
  plainCase("GET /admin/v1/jobs/{job_id}/events", "of an ended one"),
  jsonCase("POST /admin/v1/jobs/{job_id}/cancel", "an ended one", () => ({})),
  freshCase("POST /admin/v1/vector_stores/{vector_store_id}/sources", "of the largest size", async (world) => {
    const url = `http://127.0.0.1:1/${crypto.randomUUID()}/${"a".repeat(1_900)}`;
    const { id: sourceId } = await world.hostile.client.json<{ id: string }>("POST", sourcesPath(world), {
      ...{ url: `${url}/removed/`, name: crypto.randomUUID() },
    });
    await world.hostile.client.json("DELETE", `/admin/v1/sources/${sourceId}`);
    const name = `${crypto.randomUUID()} ${prose(400, 1)}`.slice(0, 500);
    return { path: sourcesPath(world), ...json({ url, name }) };
  }),
  plainCase("GET /admin/v1/vector_stores/{vector_store_id}/sources", "30 of them", "?limit=100"),
  plainCase("GET /admin/v1/sources/{source_id}", "one"),
  jsonCase("POST /admin/v1/sources/{source_id}/run", "100 pages, all of them changed", () => ({}), { afterMs: 8_000 }),
  freshCase("DELETE /admin/v1/sources/{source_id}", "one", async (world) => {
    const source = { url: "http://127.0.0.1:1/", name: crypto.randomUUID() };
    const { id } = await world.hostile.client.json<{ id: string }>("POST", sourcesPath(world), source);
    return `/admin/v1/sources/${id}`;
  }),
  plainCase("GET /admin/v1/vector_stores/{vector_store_id}/fragments", "100 small ones", "?limit=100"),
  {
    route: "GET /admin/v1/vector_stores/{vector_store_id}/fragments",
    name: "100 of 4,096 tokens",
    make: ({ storeIds }) => ({ method: "GET", path: `/admin/v1/vector_stores/${storeIds[0]}/fragments?limit=100` }),
  },
  jsonCase("POST /admin/v1/fragments/{fragment_id}/pin", "one", () => ({}), background),
  jsonCase("POST /admin/v1/fragments/{fragment_id}/unpin", "one", () => ({})),
  jsonCase("POST /admin/v1/fragments/{fragment_id}/evict", "one", () => ({})),
];

/** A file of requests to POST /v1/completions. */
export function batchLines(model: string, count: number): string {
  const line = { method: "POST", url: "/v1/completions" };
  const body = (at: number) => ({ model, prompt: prose(600, at), max_tokens: 1 });
  return times(count, (at) => JSON.stringify({ custom_id: `${at}`, ...line, body: body(at) })).join("\n");
}

async function openUpload(client: StallWorld["hostile"]["client"], bytes: number): Promise<string> {
  const body = { bytes, filename: "a.txt", mime_type: "text/plain", purpose: "assistants" };
  return (await client.json<{ id: string }>("POST", "/v1/uploads", body)).id;
}
