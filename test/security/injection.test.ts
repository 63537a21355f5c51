/**
 * Statements, line breaks, paths and markup in every place that takes a name, an id or a value: they are kept and come
 * back as the texts that they are, find what has exactly that text, and do nothing else.
 */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync } from "node:fs";
import { injections, templateMarkers } from "../fuzz/values.ts";
import { type FuzzWorld, openWorld } from "../fuzz/world.ts";

setDefaultTimeout(120_000);

const texts = [
  ...injections,
  ...templateMarkers,
  "\u202egnp.exe",
  "İıſK",
  "\u2028",
  "x'||(SELECT 1)||'",
  "%",
  "_",
  "*",
  '"',
];
const isControlled = (text: string): boolean => /\p{Cc}/u.test(text);

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

async function ask<Answer>(
  key: string,
  method: string,
  path: string,
  body?: unknown,
): Promise<Answer & { status?: unknown }> {
  const response = await world.call(key, method, path, body);
  expect(response.headers.has("x-injected") || response.headers.has("set-cookie")).toBe(false);
  return (await response.json()) as Answer & { status?: unknown };
}
const own = <Answer>(method: string, path: string, body?: unknown) =>
  ask<Answer>(world.caller.apiKey, method, path, body);
interface Named {
  readonly id: string;
  readonly name: string;
  readonly description: string;
  readonly metadata: Readonly<Record<string, string>>;
}

test("names, descriptions and metadata come back as they were", async () => {
  for (const text of texts) {
    const tenant = await ask<Named>(world.adminKey, "POST", "/admin/v1/tenants", { name: text });
    expect((await ask<Named>(world.adminKey, "GET", `/admin/v1/tenants/${tenant.id}`)).name).toBe(text);
    const key = { scopes: ["inference"], name: text };
    expect(await ask<Named>(world.adminKey, "POST", `/admin/v1/tenants/${tenant.id}/keys`, key)).toMatchObject({
      name: text,
    });
    const metadata = { [text.slice(0, 64)]: text };
    const store = await own<Named>("POST", "/v1/vector_stores", { name: text, description: text, metadata });
    expect(await own<Named>("GET", `/v1/vector_stores/${store.id}`)).toMatchObject({ name: text, description: text });
    expect(store.metadata).toEqual(metadata);
  }
  const { data } = await ask<{ data: readonly Named[] }>(world.adminKey, "GET", "/admin/v1/tenants?limit=100");
  // The caller's, the spoilt one, and one for each text: nothing was dropped, and nothing made.
  expect(data.length).toBe(texts.length + 2);
});

interface FileAnswer {
  readonly id: string;
  readonly filename: string;
  readonly error?: { readonly param: string };
}

async function upload(filename: string, text: string): Promise<FileAnswer> {
  const form = new FormData();
  form.set("file", new File([text], filename, { type: "text/plain" }));
  form.set("purpose", "assistants");
  return await own<FileAnswer>("POST", "/v1/files", form);
}

interface Found {
  readonly data: readonly { readonly file_id: string; readonly filename: string; readonly attributes: object }[];
}

test("filenames and attributes come back, and filters find what is equal and nothing else", async () => {
  const { id: store } = await own<Named>("POST", "/v1/vector_stores", { name: "injections" });
  const path = `/v1/vector_stores/${store}`;
  const files = new Map<string, string>();
  for (const [index, text] of texts.entries()) {
    const name = `${text}.txt`;
    const made = await upload(name, `Anna works for Tom, number ${index}.`);
    if (isControlled(text)) {
      expect([text, made.error?.param ?? made.filename]).toEqual([text, expect.stringMatching(/^file$|^[^\p{Cc}]*$/u)]);
      continue;
    }
    expect((await own<FileAnswer>("GET", `/v1/files/${made.id}`)).id).toBe(made.id);
    const content = await world.call(world.caller.apiKey, "GET", `/v1/files/${made.id}/content`);
    expect(await content.text()).toBe(`Anna works for Tom, number ${index}.`);
    expect(content.headers.get("content-disposition")).toMatch(/^attachment; filename\*=UTF-8''[A-Za-z0-9%._~!-]+$/);
    const attributes = { [text.slice(0, 64)]: text, kind: text };
    expect(await own("POST", `${path}/files`, { file_id: made.id, attributes })).toMatchObject({ attributes });
    files.set(text, made.id);
  }
  for (const file of files.values()) {
    while ((await own("GET", `${path}/files/${file}`)).status === "in_progress") await Bun.sleep(2);
  }
  for (const [text, file] of files) {
    const search = (filters: unknown) =>
      own<Found>("POST", `${path}/search`, { query: "Anna", max_num_results: 50, filters });
    for (const key of ["kind", text.slice(0, 64)]) {
      const { data } = await search({ type: "eq", key, value: text });
      expect([text, key, data.map(({ file_id: id }) => id)]).toEqual([text, key, [file]]);
    }
    const { data: others } = await search({ type: "ne", key: "kind", value: text });
    expect(others.map(({ file_id: id }) => id)).not.toContain(file);
    expect(others.length).toBe(files.size - 1);
  }
});

test("as questions of a search they find by their words, and fail nowhere", async () => {
  const { vector_store_id: store } = world.ids;
  for (const text of texts) {
    for (const query of [text, `Anna ${text}`, [text, text]]) {
      const response = await world.call(world.caller.apiKey, "POST", `/v1/vector_stores/${store}/search`, { query });
      expect([query, response.status]).toEqual([query, 200]);
      await response.arrayBuffer();
    }
  }
});

test("as ids they are ids of nothing, on every route", async () => {
  const usable = texts.filter((text) => !["*", "%", "_", '"'].includes(text));
  for (const route of world.routes.filter(({ path }) => path.includes(":"))) {
    for (const text of usable) {
      const path = route.path.replace(/:\w+/g, encodeURIComponent(text));
      const response = await world.call(world.adminKey, route.method, path, route.method === "GET" ? undefined : {});
      const body = await response.text();
      const label = [route.method, route.path, text, body.slice(0, 120)];
      // What is wrong with the body may be said first; a key of the platform acts for no tenant.
      expect([...label, [400, 403, 404].includes(response.status)]).toEqual([...label, true]);
    }
  }
  expect(world.faults).toEqual([]);
});

test("nothing came into the data folder but what belongs there", () => {
  const names = readdirSync(world.dataDir).sort();
  const expected = /^(?:spangate\.db(?:-wal|-shm)?|files|parts|fetched|kv|lock|secret|ballast)$/;
  expect(names.filter((name) => !expected.test(name))).toEqual([]);
  const files = readdirSync(`${world.dataDir}/files`);
  expect(files.filter((name) => !/^file-[0-9a-z]{24}$/.test(name))).toEqual([]);
  expect(files.length).toBeGreaterThan(10);
});
