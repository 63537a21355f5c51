/** What of a web site is read. */
import { afterAll, beforeEach, expect, test } from "bun:test";
import { gzipSync } from "node:zlib";
import { crawl, type KnownPage, type WebBounds, type WebPage, type WebProblem } from "../../gateway/sources/web.ts";

type Answer =
  | string
  | Uint8Array
  | { readonly body?: string; readonly type?: string; readonly status?: number; readonly to?: string };
let pages: Record<string, Answer> = {};
let asked: string[] = [];
const site = Bun.serve({
  ...{ hostname: "127.0.0.1", port: 0 },
  fetch(request) {
    const { pathname, search } = new URL(request.url);
    asked.push(pathname + search);
    const found = pages[pathname];
    if (found === undefined) return new Response("", { status: 404 });
    if (found instanceof Uint8Array) return new Response(found, { headers: { "content-type": "application/gzip" } });
    const { body = "", type = "text/html", status = 200, to } = typeof found === "string" ? { body: found } : found;
    const etag = `"${Bun.hash.crc32(body)}"`;
    if (to !== undefined) return new Response(null, { status: 302, headers: { location: to } });
    if (request.headers.get("if-none-match") === etag) return new Response(null, { status: 304 });
    return new Response(body, { status, headers: { "content-type": type, etag } });
  },
});
afterAll(() => site.stop(true));
beforeEach(() => {
  asked = [];
  pages = {};
});

const bounds: WebBounds = {
  ...{ maxPages: 100, maxDepth: 8, maxTotalBytes: 1e6, maxMs: 20_000 },
  ...{ isAllowed: () => true, resolve: () => Promise.resolve(["127.0.0.1"]) },
};
const start = new URL(`http://docs.test:${site.port}/docs/`);
const link = (...paths: string[]) => paths.map((path) => `<a href="${path}">x</a>`).join("");

async function read(own: Partial<WebBounds> = {}, knownAt?: (url: string) => KnownPage | undefined, from = start) {
  const found: (WebPage | WebProblem)[] = [];
  for await (const one of crawl(from, { ...bounds, ...own }, knownAt)) found.push(one);
  const names = found.flatMap((one) => ("name" in one ? one.name.replace("docs.test/docs/", "") : []));
  return { found, names, problems: found.flatMap((one) => ("reason" in one ? one : [])) };
}

test("pages below the first one's folder that links lead to, each once, with an end that says its type", async () => {
  pages = {
    "/docs/": link(
      "a",
      "a#part",
      "/docs/b.html",
      "deep/c.php",
      "../outside",
      "http://else.test/docs/x",
      "d?page=1",
      "e.pdf",
      "img.png",
      "mailto:x@y",
    ),
    "/docs/a": `<base href="/docs/deep/">${link("from-base", "../../docs/")}`,
    "/docs/b.html": link("/docs/gone", "/docs/moved", "/docs/away", "/docs/secret"),
    "/docs/deep/c.php": "C",
    "/docs/deep/from-base": { type: "text/plain", body: "plain" },
    "/docs/e.pdf": { type: "application/pdf", body: "%PDF-" },
    "/docs/img.png": { type: "image/png" },
    "/docs/moved": { to: "/docs/b.html" },
    "/docs/away": { to: "http://else.test/docs/" },
    "/docs/secret": { status: 403 },
    "/outside": "no",
  };
  const { names, problems } = await read();
  const expected = ["index.html", "a.html", "b.html", "deep/c.php.html", "deep/from-base.txt", "e.pdf"];
  expect(names.toSorted()).toEqual(expected.toSorted());
  expect(problems).toEqual([]);
  expect(asked.filter((path) => /outside|page=1/.test(path))).toEqual([]);
});

test("robots.txt is kept, and nothing is read while it cannot be", async () => {
  pages = {
    "/robots.txt": { type: "text/plain", body: "User-agent: *\nDisallow: /docs/no" },
    "/docs/": link("no/x", "yes"),
    "/docs/yes": "y",
    "/docs/no/x": "n",
  };
  expect((await read()).names).toEqual(["index.html", "yes.html"]);
  expect(asked).not.toContain("/docs/no/x");
  pages["/robots.txt"] = { type: "text/plain", body: "User-agent: spangate\nDisallow: /" };
  await expect(read()).rejects.toThrow("robots.txt of docs.test");
  pages["/robots.txt"] = { status: 503 };
  await expect(read()).rejects.toThrow("the site answered 503");
});

test("pages, depth and bytes have bounds, and who reaches one is told that pages may be missing", async () => {
  for (let i = 0; i < 30; i++) pages[`/docs/${i}`] = `${link(`/docs/${i + 1}`)} page ${i} ${"x".repeat(100)}`;
  pages["/docs/"] = link("/docs/0");
  expect((await read()).names.length).toBe(10 - 1);
  expect((await read({ maxDepth: 3 })).names.length).toBe(4);
  const few = await read({ maxPages: 5 });
  expect([few.names.length, few.problems.length, few.problems[0]?.isPassing]).toEqual([5, 1, true]);
  expect((await read({ maxTotalBytes: 300 })).names.length).toBeLessThan(5);
});

test("a page that fails for now says so, and the first one is needed", async () => {
  pages = { "/docs/": link("broken", "ok"), "/docs/broken": { status: 500 }, "/docs/ok": "fine" };
  const { names, problems } = await read();
  expect(names).toEqual(["index.html", "ok.html"]);
  expect(problems).toMatchObject([{ reason: "the site answered 500", isPassing: true }]);
  delete pages["/docs/"];
  await expect(read()).rejects.toThrow("the site answered 404");
});

test("what is as it is known is not sent again, and links of such a page are read from what is known", async () => {
  pages = {
    "/docs/": link("e.pdf", "a"),
    "/docs/e.pdf": { type: "application/pdf", body: "%PDF-" },
    "/docs/a": link("b.html"),
    "/docs/b.html": "b",
  };
  const known = new Map(
    (await read()).found.flatMap((one) => {
      if (!("name" in one)) return [];
      const { url, bytes = new Uint8Array(0) } = one;
      return [[url, { ...one, read: () => Promise.resolve(bytes) }] as const];
    }),
  );
  pages["/docs/b.html"] = "b, edited";
  const again = await read({}, (url) => known.get(url));
  expect(again.names).toEqual(["index.html", "e.pdf", "a.html", "b.html"]);
  const sent = again.found.flatMap((one) => ("name" in one && one.bytes !== undefined ? one.name : []));
  expect(sent).toEqual(["docs.test/docs/b.html"]);
  expect(again.found[2]).toMatchObject({ etag: known.get(`${start.href}a`)?.etag });
});

test("a site that has dates alone is asked by them; one that answers 304 unasked is a problem", async () => {
  const modified = "Mon, 02 Nov 2026 10:00:00 GMT";
  const asked: (string | null)[] = [];
  using dated = Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    fetch(request) {
      const { pathname } = new URL(request.url);
      if (pathname === "/robots.txt") return new Response("", { status: 404 });
      if (pathname === "/odd") return new Response(null, { status: 304 });
      asked.push(request.headers.get("if-modified-since"));
      if (asked.at(-1) === modified) return new Response(null, { status: 304 });
      const headers = { "content-type": "text/html", "last-modified": modified };
      return new Response(`<a href="/odd">x</a>`, { headers });
    },
  });
  const from = new URL(`http://dated.test:${dated.port}/`);
  const [page] = (await read({}, undefined, from)).found;
  if (page === undefined || !("name" in page)) throw new Error("the page was not read");
  const known = { ...page, read: () => Promise.resolve(page.bytes ?? new Uint8Array(0)) };
  const again = await read({}, (url) => (url === page.url ? known : undefined), from);
  expect(again.found).toMatchObject([
    { name: "dated.test/index.html", bytes: undefined, lastModified: modified },
    { reason: "the site answered 304", isPassing: true },
  ]);
  expect(asked).toEqual([null, modified]);
});

const xml = (root: string, item: string, locations: readonly string[]) =>
  `<?xml version="1.0"?><${root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">${locations
    .map((at) => `<${item}><loc> ${new URL(at, start)} </loc><lastmod>2026-11-01</lastmod></${item}>`)
    .join("")}</${root}>`;
const atMap = new URL("sitemap.xml", start);

test("a sitemap's pages of its own folder are read, and links on them are not followed", async () => {
  pages = {
    "/docs/sitemap.xml": xml("urlset", "url", ["a", "b?x=1&amp;y=2", "../outside", "http://else.test/docs/x", "gone"]),
    "/docs/a": link("b", "c"),
    "/docs/c": "c",
    "/outside": "no",
  };
  const { names, problems } = await read({}, undefined, atMap);
  expect([names, problems]).toEqual([["a.html"], []]);
  expect(asked).toEqual(["/robots.txt", "/docs/sitemap.xml", "/docs/a", "/docs/gone"]);
});

test("an index of sitemaps, one of them compressed; one that is gone says that pages may be missing", async () => {
  pages = {
    "/docs/sitemap.xml": xml("sitemapindex", "sitemap", ["one.xml", "two.xml.gz", "lost.xml", "sitemap.xml"]),
    "/docs/one.xml": xml("urlset", "url", ["a", "b"]),
    "/docs/two.xml.gz": gzipSync(xml("urlset", "url", ["b", "c"])),
    ...{ "/docs/a": "a", "/docs/b": "b", "/docs/c": "c" },
  };
  const { names, problems } = await read({}, undefined, atMap);
  expect(names.toSorted()).toEqual(["a.html", "b.html", "c.html"]);
  expect(problems).toEqual([
    { url: new URL("lost.xml", start).href, reason: "the site answered 404", isPassing: true },
  ]);
});

test("sitemaps have bounds: pages, bytes when decompressed, and what is none is refused", async () => {
  const many = Array.from({ length: 60_000 }, (_, index) => `p${index}`);
  pages = { "/docs/sitemap.xml": gzipSync(xml("urlset", "url", many)), "/docs/p0": "0", "/docs/p1": "1" };
  const few = await read({ maxPages: 3 }, undefined, atMap);
  expect(few.names).toEqual(["p0.html", "p1.html"]);
  expect(few.problems).toMatchObject([{ isPassing: true }]);
  pages["/docs/sitemap.xml"] = gzipSync(new Uint8Array(51 * 2 ** 20));
  await expect(read({}, undefined, atMap)).rejects.toThrow("cannot be decompressed");
  pages["/docs/sitemap.xml"] = "<html>";
  await expect(read({}, undefined, atMap)).rejects.toThrow("it is no sitemap");
});
