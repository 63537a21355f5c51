/** The pages as a server shows them. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { DocsPages } from "../../gateway/docs/pages.ts";
import { resources } from "../../gateway/http/openapi/resources.ts";
import { type FuzzWorld, openWorld } from "../fuzz/world.ts";

setDefaultTimeout(60_000);

const context: { world?: FuzzWorld } = {};
const get = (path: string): Promise<Response> => fetch(`${context.world?.url}${path}`);
beforeAll(async () => {
  context.world = await openWorld();
});
afterAll(async () => await context.world?.[Symbol.asyncDispose]());

const addresses = [
  "/docs",
  ...new DocsPages().all.map(({ slug }) => `/docs/${slug}`),
  ...[...resources.map(({ slug }) => slug), "errors"].map((slug) => `/docs/api/${slug}`),
];

describe("every page", () => {
  test("is there, within 60 KB of gzip, without script, and asks for nothing from elsewhere", async () => {
    for (const address of addresses) {
      const response = await get(address);
      expect(response.status, address).toBe(200);
      expect(response.headers.get("content-security-policy")).toStartWith("default-src 'none'; style-src 'self'");
      const text = await response.text();
      expect(Bun.gzipSync(text).byteLength, address).toBeLessThan(60_000);
      expect(text).not.toMatch(
        /<script|<iframe|<object|\son\w+=|@import|<(?:img|link|form)[^>]*(?:src|href|action)="(?!\/docs)/i,
      );
    }
  });

  test("leads by its links to pages and headings that exist", async () => {
    const ids = new Map<string, ReadonlySet<string>>();
    const texts = new Map<string, string>();
    for (const address of addresses) {
      const text = await (await get(address)).text();
      texts.set(address, text);
      ids.set(address, new Set([...text.matchAll(/\sid="([^"]*)"/g)].map(([, id = ""]) => id)));
    }
    const broken = [...texts].flatMap(([address, text]) =>
      [...text.matchAll(/\shref="([^"]*)"/g)].flatMap(([, href = ""]) => {
        if (/^https?:/.test(href) || ["/", "/openapi.json", "/docs/style.css"].includes(href)) return [];
        const [path = "", anchor] = href.split("#");
        const known = ids.get(path === "" ? address : path);
        const isThere = known !== undefined && (anchor === undefined || known.has(anchor));
        return isThere ? [] : [`${address}: ${href}`];
      }),
    );
    expect(broken).toEqual([]);
  });

  test("names each id once", async () => {
    for (const address of addresses) {
      const text = await (await get(address)).text();
      const all = [...text.matchAll(/\sid="([^"]*)"/g)].map(([, id]) => id);
      expect(all.length, address).toBe(new Set(all).size);
    }
  });
});

test("every route is on the page of its resource, with a line that asks for it", async () => {
  const all = (await Promise.all(resources.map(async ({ slug }) => (await get(`/docs/api/${slug}`)).text()))).join("");
  for (const { method, path } of context.world?.routes ?? []) {
    const shown = path.replace(/:(\w+)(\{[^}]*\})?/g, "{$1}");
    expect(all).toContain(`${method} ${shown}</code></a>`);
  }
  expect(all.match(/curl -s/g)?.length).toBe(context.world?.routes.length ?? 0);
});

test("a stream shows the fields of its events, and events as they are sent", async () => {
  const text = (await (await get("/docs/api/admin")).text()).replaceAll("&#34;", '"');
  expect(text).toContain("Blocks of the tenant there at the second");
  expect(text).toMatch(/event: change\nid: [0-9a-f]{16}-\d+\ndata: \{"at":\d+,"blocks":\[\{"tenant_id":"tenant_…"/);
});

test("a search needs no script, and what is searched for is text", async () => {
  const found = await (await get("/docs/search?q=rotate%20salt")).text();
  expect(found).toContain('href="/docs/');
  const hostile = await (await get(`/docs/search?q=${encodeURIComponent('"><img src=x onerror=alert(1)>')}`)).text();
  expect(hostile).not.toContain("<img");
  expect(hostile).toContain('value="&#34;&#62;&#60;img');
  expect((await get(`/docs/search?q=${"x".repeat(1_001)}`)).status).toBe(400);
  expect((await get("/docs/search?other=1")).status).toBe(400);
});

test("what is no page is none, whatever its name", async () => {
  for (const name of ["nothing", "..%2F..%2Fpackage.json", "__proto__", "constructor", "%00"]) {
    expect((await get(`/docs/${name}`)).status, name).toBe(404);
    expect((await get(`/docs/api/${name}`)).status, name).toBe(404);
    expect((await get(`/docs/pictures/${name}`)).status, name).toBe(404);
  }
  expect(context.world?.faults).toEqual([]);
});
