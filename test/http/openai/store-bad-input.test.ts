/** Bad input to the store's routes: a clear error that names the field, never a 5xx. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { corpusLimits } from "../../../gateway/corpus/base/limits.ts";
import { declaredRoutes } from "../../../gateway/http/transport/route.ts";
import { fc } from "../../support/fast-check.ts";
import { call, createStoreApp, form, type StoreApp, upload } from "../store-app.ts";

let it: StoreApp;
let key = "";
let store = "";
let file = "";

beforeAll(async () => {
  it = createStoreApp();
  key = it.tenant("acme").key;
  store = (await call(it.app, key, "POST", "/v1/vector_stores", { name: "s" })).id;
  file = await upload(it.app, key, "a.txt", "Some words.");
});
afterAll(() => it.world.remove());

const deep = (levels: number): unknown =>
  levels === 0 ? { type: "eq", key: "a", value: 1 } : { type: "and", filters: [deep(levels - 1)] };
const nodes = (n: number) => ({
  type: "or",
  filters: Array.from({ length: n }, () => ({ type: "eq", key: "a", value: 1 })),
});
const chunking = (size: unknown, overlap: unknown) => ({
  type: "static",
  static: { max_chunk_size_tokens: size, chunk_overlap_tokens: overlap },
});

/** The name of a file that there is not. */
const noFile = "../../etc/passwd";

test("fields out of bounds or unknown are named", async () => {
  const search = `/v1/vector_stores/${store}/search`;
  const files = `/v1/vector_stores/${store}/files`;
  const batches = `/v1/vector_stores/${store}/file_batches`;
  const size = "chunking_strategy.static.max_chunk_size_tokens";
  const cases: readonly (readonly [path: string, body: unknown, param: string | null])[] = [
    ["/v1/vector_stores", { name: 1 }, "name"],
    ["/v1/vector_stores", { name: "x".repeat(corpusLimits.maxNameChars + 1) }, "name"],
    ["/v1/vector_stores", { metadata: { a: 1 } }, "metadata.a"],
    [
      "/v1/vector_stores",
      { metadata: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, "v"])) },
      "metadata",
    ],
    ["/v1/vector_stores", { expires_after: { anchor: "last_active_at", days: 0 } }, "expires_after.days"],
    ["/v1/vector_stores", { expires_after: { anchor: "last_active_at", days: 366 } }, "expires_after.days"],
    ["/v1/vector_stores", { expires_after: { anchor: "created_at", days: 1 } }, "expires_after.anchor"],
    ["/v1/vector_stores", { expires_after: { anchor: "last_active_at" } }, "expires_after.days"],
    [`/v1/vector_stores/${store}`, { expires_after: { anchor: "last_active_at", days: "1" } }, "expires_after.days"],
    ["/v1/vector_stores", { file_ids: [noFile] }, "file_ids"],
    ["/v1/vector_stores", { file_ids: [file, file] }, "file_ids"],
    ["/v1/vector_stores", [], null],
    [files, {}, "file_id"],
    [files, { file_id: file, attributes: { a: { b: 1 } } }, "attributes.a"],
    [files, { file_id: file, chunking_strategy: { type: "magic" } }, "chunking_strategy.type"],
    [files, { file_id: file, chunking_strategy: chunking(15, 0) }, size],
    [files, { file_id: file, chunking_strategy: chunking(4097, 0) }, size],
    [files, { file_id: file, chunking_strategy: chunking(1e6, 0) }, size],
    [files, { file_id: file, chunking_strategy: chunking(100.5, 0) }, size],
    [files, { file_id: file, chunking_strategy: chunking(100, 51) }, "chunking_strategy.static.chunk_overlap_tokens"],
    [files, { file_id: file, chunking_strategy: chunking(100, -1) }, "chunking_strategy.static.chunk_overlap_tokens"],
    [batches, { file_ids: [] }, "file_ids"],
    [batches, { files: [] }, "files"],
    [batches, { file_ids: [file], files: [{ file_id: file }] }, null],
    [search, {}, "query"],
    [search, { query: "" }, "query"],
    [search, { query: "a", max_num_results: 0 }, "max_num_results"],
    [search, { query: "a", max_num_results: 51 }, "max_num_results"],
    [search, { query: "a", max_num_results: 2 ** 53 }, "max_num_results"],
    [search, { query: "a", rewrite_query: true }, "rewrite_query"],
    [search, { query: "a", ranking_options: { ranker: "other" } }, "ranking_options.ranker"],
    [search, { query: "a", ranking_options: { score_threshold: 2 } }, "ranking_options.score_threshold"],
    [search, { query: "a", filters: { type: "like", key: "a", value: "b" } }, "filters"],
    [search, { query: "a", filters: deep(8) }, "filters"],
    [search, { query: "a", filters: nodes(64) }, "filters"],
  ];
  for (const [path, body, param] of cases) {
    const answer = await call(it.app, key, "POST", path, body);
    const label = `${path} ${JSON.stringify(body)?.slice(0, 80)}`;
    // The names of files are drawn, and can hold any letters.
    const status = JSON.stringify(body).includes(noFile) ? 404 : 400;
    expect([label, answer.status]).toEqual([label, status]);
    const { error } = answer.body as { error: { param: string | null; message: string } };
    if (param !== null) expect([label, error.param?.startsWith(param)]).toEqual([label, true]);
    expect(error.message.length).toBeGreaterThan(0);
  }
  expect((await call(it.app, key, "POST", search, { query: "a", filters: deep(7) })).status).toBe(200);
  expect((await call(it.app, key, "POST", search, { query: "a", filters: nodes(63) })).status).toBe(200);
});

test("an object of many fields is refused before anything looks at them", async () => {
  const entries = (count: number) =>
    Object.fromEntries(Array.from({ length: count }, (_, index) => [`k${index}`, "v"]));
  const answer = async (body: unknown) => {
    const { body: said } = await call(it.app, key, "POST", "/v1/vector_stores", body);
    return (said as { error: { message: string; param: string | null } }).error;
  };
  expect(await answer({ metadata: entries(2_048) })).toMatchObject({ param: "metadata" });
  const refused = { message: "An object may have at most 2048 fields.", param: null };
  expect(await answer({ metadata: entries(2_049) })).toMatchObject(refused);
  // Counted for each object, and not for arrays; what is within a text does not count.
  expect(await answer({ metadata: { a: entries(1_500), b: entries(1_500) } })).toMatchObject({ param: "metadata.a" });
  expect(await answer({ file_ids: Array.from({ length: 3_000 }, () => "f") })).toMatchObject({ param: "file_ids" });
  expect(await answer({ name: ",".repeat(3_000) })).toMatchObject({ param: "name" });
  expect(await answer({ a: [entries(3), entries(2_049)] })).toMatchObject(refused);
});

test("the name that objects know otherwise is refused wherever it stands, and nothing else of that kind", async () => {
  const answer = async (body: string) => {
    const { status, body: said } = await call(it.app, key, "POST", "/v1/vector_stores", body);
    return [status, (said as { error?: { param: string | null } }).error?.param];
  };
  expect(await answer('{"metadata":{"__proto__":"x"}}')).toEqual([400, "metadata.__proto__"]);
  expect(await answer('{"metadata":{"\\u005f_proto__":"x"}}')).toEqual([400, "metadata.__proto__"]);
  expect(await answer('{"__proto__":{"name":"x"}}')).toEqual([400, "__proto__"]);
  expect(await answer('{"file_ids":[{"__proto__":1}]}')).toEqual([400, "file_ids[0].__proto__"]);
  expect(await answer('{"name":"__proto__","metadata":{"proto":"__proto__","constructor":"\\u005f"}}')).toEqual([
    200,
    undefined,
  ]);
});

test("query strings are bounded too", async () => {
  const cases = [
    "limit=0",
    "limit=1001",
    "limit=1e3",
    "limit=-1",
    "limit=",
    "order=up",
    "aftre=x",
    "limit=1&order=desc&x=",
    `after=${"x".repeat(65)}`,
    "purpose=vision",
  ];
  for (const query of cases) {
    const { status, body } = await call(it.app, key, "GET", `/v1/files?${query}`);
    expect([query, status]).toEqual([query, 400]);
    expect((body as { error: { param: string | null } }).error.param).not.toBeNull();
  }
  for (const [path, limit] of [
    ["/v1/vector_stores", 100],
    ["/v1/files", 1_000],
  ] as const) {
    expect((await call(it.app, key, "GET", `${path}?limit=${limit}`)).status).toBe(200);
    expect((await call(it.app, key, "GET", `${path}?limit=${limit + 1}`)).status).toBe(400);
  }
  expect((await call(it.app, key, "GET", `/v1/files?after=${encodeURIComponent("file-' or 1=1")}`)).status).toBe(404);
});

test("uploads: what is wrong with the form is said", async () => {
  const withoutFile = new FormData();
  withoutFile.set("purpose", "assistants");
  const textAsFile = new FormData();
  textAsFile.set("file", "just text");
  textAsFile.set("purpose", "assistants");
  const twice = form("a.txt", "A.");
  twice.append("file", new File(["B."], "b.txt"));
  const created = { "expires_after[anchor]": "created_at" };
  const manyFields = new FormData();
  // Work that grows with the square of the fields would not end within the test's time.
  for (let index = 0; index < 100_000; index++) manyFields.append(`field${index}`, "");
  const cases: readonly (readonly [FormData | string, number, string | null])[] = [
    [withoutFile, 400, "file"],
    [textAsFile, 400, "file"],
    [twice, 400, "file"],
    [form("a.txt", "A.", { purpose: "fine-tune" }), 400, "purpose"],
    [form("a.txt", "A.", { "expires_after[anchor]": "created_at" }), 400, "expires_after[seconds]"],
    [form("a.txt", "A.", { "expires_after[seconds]": "3600" }), 400, "expires_after[anchor]"],
    [form("a.txt", "A.", { ...created, "expires_after[seconds]": "3599" }), 400, "expires_after[seconds]"],
    [form("a.txt", "A.", { ...created, "expires_after[seconds]": "2592001" }), 400, "expires_after[seconds]"],
    [form("a.txt", "A.", { ...created, "expires_after[seconds]": "1e4" }), 400, "expires_after[seconds]"],
    [form("a.txt", "A.", { "expires_after[anchor]": "last_active_at" }), 400, "expires_after[anchor]"],
    [form("a.txt", "A.", { expires_after: '{"anchor":"created_at","seconds":3600}' }), 400, "expires_after"],
    [form("a.txt", "A.", { colour: "red" }), 400, "colour"],
    [manyFields, 400, null],
    [form("x".repeat(300), "A."), 400, "file"],
    ['{"file": "x"}', 415, null],
    [form("big.bin", new Uint8Array(corpusLimits.maxUploadBytes + 1)), 413, "file"],
    [form("huge.bin", new Uint8Array(corpusLimits.maxUploadBytes + corpusLimits.maxUploadOverheadBytes)), 413, null],
  ];
  for (const [index, [body, status, param]] of cases.entries()) {
    const answer = await call(it.app, key, "POST", "/v1/files", body);
    expect([index, answer.status]).toEqual([index, status]);
    expect((answer.body as { error: { param: string | null } }).error.param).toBe(param);
  }
  const broken = await it.app.request("/v1/files", {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "multipart/form-data; boundary=x" },
    body: "--y\r\nnot a form",
  });
  expect(broken.status).toBe(400);
});

test("a file with an empty name is refused by name", async () => {
  const part = 'content-disposition: form-data; name="file"; filename=""\r\n\r\nA.';
  const purpose = 'content-disposition: form-data; name="purpose"\r\n\r\nassistants';
  const answer = await it.app.request("/v1/files", {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "multipart/form-data; boundary=x" },
    body: `--x\r\n${part}\r\n--x\r\n${purpose}\r\n--x--\r\n`,
  });
  expect([answer.status, await answer.json()]).toMatchObject([400, { error: { param: "file" } }]);
});

test("names and contents of files come back harmless", async () => {
  const name = "we'ird;\u202e (name) * <b>é.txt";
  const id = await upload(it.app, key, name, "<script>alert(1)</script>");
  const { headers, body } = await call(it.app, key, "GET", `/v1/files/${id}/content`);
  expect(body).toBe("<script>alert(1)</script>");
  expect(headers.get("content-type")).toBe("application/octet-stream");
  expect(headers.get("x-content-type-options")).toBe("nosniff");
  const disposition = headers.get("content-disposition") ?? "";
  expect(disposition).toMatch(/^attachment; filename\*=UTF-8''[A-Za-z0-9%._~!-]+$/);
  expect(decodeURIComponent(disposition.split("''")[1] ?? "")).toBe(name);
});

test("routes whose fields may all be left out refuse others, and tiers that the server does not have, by name", async () => {
  const path = `/admin/v1/vector_stores/${store}/prepare`;
  const refused: readonly (readonly [body: unknown, param: string | null])[] = [
    [{ fast: true }, "fast"],
    [{ target: "tape" }, "target"],
    [{ target: 1 }, "target"],
    [{ target: "s3" }, "target"],
    ["{", null],
    [[], null],
  ];
  for (const [body, param] of refused) {
    const answer = await call(it.app, key, "POST", path, body);
    expect([body, answer.status, answer.body]).toMatchObject([body, 400, { error: { param } }]);
  }
  const message = 'This server keeps no KV in "disk": it has "device". SPANGATE_KV_DISK_BYTES gives it that tier.';
  expect(await call(it.app, key, "POST", path, { target: "disk" })).toMatchObject({ body: { error: { message } } });
  const pin = await call(it.app, key, "POST", "/admin/v1/fragments/frag_1/pin", { tier: "near" });
  expect(pin).toMatchObject({ status: 400, body: { error: { param: "tier" } } });
  expect((await call(it.app, key, "POST", path, {})).status).toBe(202);
  expect(await call(it.app, key, "POST", path, { target: "device" })).toMatchObject({ body: { target: "device" } });
});

test("routes that take no fields refuse fields", async () => {
  const unpin = (body: unknown) => call(it.app, key, "POST", "/admin/v1/fragments/frag_1/unpin", body);
  expect((await unpin({ fast: true })).status).toBe(400);
  expect((await unpin({})).status).toBe(404);
});

test("a full disk is 507, and reading goes on", async () => {
  const { client } = it.world.db;
  const pages = client.query<{ page_count: number }, []>("pragma page_count").get()?.page_count ?? 0;
  client.run(`pragma max_page_count = ${pages}`);
  try {
    let status = 200;
    for (let i = 0; i < 200 && status === 200; i++) {
      ({ status } = await call(it.app, key, "POST", "/v1/vector_stores", { name: "x".repeat(200) }));
    }
    expect(status).toBe(507);
    expect((await call(it.app, key, "GET", "/v1/vector_stores")).status).toBe(200);
    expect((await call(it.app, key, "POST", `/v1/vector_stores/${store}/search`, { query: "words" })).status).toBe(200);
  } finally {
    client.run("pragma max_page_count = 1000000");
  }
  expect((await call(it.app, key, "POST", "/v1/vector_stores", { name: "x" })).status).toBe(200);
});

test("no JSON makes a route fail", async () => {
  const routes = declaredRoutes(it.app).filter(({ method }) => method === "POST" || method === "PATCH");
  const known = fc.constantFrom(
    "name",
    "file_id",
    "file_ids",
    "files",
    "query",
    "filters",
    "attributes",
    "metadata",
    "chunking_strategy",
    "type",
    "static",
    "scopes",
    "value",
    "key",
    "max_num_results",
  );
  const { value } = fc.letrec((tie) => ({
    value: fc.oneof(
      { maxDepth: 4 },
      fc.jsonValue(),
      fc.constantFrom<unknown>(file, "and", "eq", "auto", "static", -1, 2 ** 53, "\0", "\ud800"),
      fc.array(tie("value"), { maxLength: 3 }),
      fc.dictionary(known, tie("value"), { maxKeys: 4 }),
    ),
  }));
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...routes), value, async (route, body) => {
      const path = route.path
        .replace(":vector_store_id", store)
        .replace(":file_id", file)
        .replace(/:[a-z_]+/g, "none");
      const answer = await call(
        it.app,
        path.startsWith("/admin/v1/tenants") ? it.adminKey : key,
        route.method,
        path,
        JSON.stringify(body) ?? "null",
      );
      expect([route.path, answer.status < 500]).toEqual([route.path, true]);
      if (answer.status >= 400)
        expect(answer.body).toMatchObject({ error: { message: expect.any(String), code: expect.any(String) } });
    }),
    { numRuns: 400 },
  );
});
