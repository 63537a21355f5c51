/** What of a web site is read. */
import { afterAll, beforeEach, expect, test } from "bun:test";
import { crawl, type WebBounds, type WebPage, type WebProblem } from "../../../gateway/cli/sources/web.ts";

type Answer =
  | string
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

async function read(own: Partial<WebBounds> = {}, etagOf?: (name: string) => string | undefined) {
  const found: (WebPage | WebProblem)[] = [];
  for await (const one of crawl(start, { ...bounds, ...own }, etagOf)) found.push(one);
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

test("what has its old entity tag is not sent again, but for HTML, whose links are needed", async () => {
  pages = {
    "/docs/": link("e.pdf", "a.html"),
    "/docs/e.pdf": { type: "application/pdf", body: "%PDF-" },
    "/docs/a.html": link("b.html"),
    "/docs/b.html": "b",
  };
  const etags = new Map((await read()).found.flatMap((one) => ("name" in one ? [[one.name, one.etag]] : [])));
  const again = await read({}, (name) => etags.get(name));
  expect(again.names).toEqual(["index.html", "e.pdf", "a.html", "b.html"]);
  const unsent = again.found.flatMap((one) => ("name" in one && one.bytes === undefined ? one.name : []));
  expect(unsent).toEqual(["docs.test/docs/e.pdf"]);
});
