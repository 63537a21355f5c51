/** What is fetched of a site, as a sync gets it. */
import { expect, test } from "bun:test";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gatherRemote } from "../../gateway/sources/gather.ts";

test("pages of the same name: the last one counts, and no other's bytes are lost", async () => {
  const links = ["a", "a.html", "b.html", "c.html"].map((path) => `<a href="${path}">x</a>`).join("");
  using site = Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    fetch(request) {
      const { pathname } = new URL(request.url);
      if (pathname === "/robots.txt") return new Response("", { status: 404 });
      return new Response(pathname === "/" ? links : `page ${pathname}`, { headers: { "content-type": "text/html" } });
    },
  });
  const { files } = await gatherRemote("site", `http://127.0.0.1:${site.port}/`, [], {
    ...{ folder: mkdtempSync(join(tmpdir(), "spangate gather ")), s3: undefined, maxObjects: 1, maxObjectBytes: 1 },
    web: { maxPages: 10, maxDepth: 2, maxTotalBytes: 1e6, maxMs: 10_000, isAllowed: () => true },
    readStored: () => Promise.reject(new Error("nothing is stored")),
    onProgress: () => undefined,
  });
  const texts = files.map(async ({ name, bytesAt = "" }) => [name.slice(-6), await Bun.file(bytesAt).text()]);
  expect(Object.fromEntries(await Promise.all(texts))).toEqual({
    "x.html": links,
    "a.html": "page /a.html",
    "b.html": "page /b.html",
    "c.html": "page /c.html",
  });
});
