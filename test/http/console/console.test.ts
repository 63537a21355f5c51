/** What browsers and others get at /, and the files that the console is made of. */
import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import type { Hono } from "hono";
import { contentSecurityPolicy } from "../../../gateway/console/assets.ts";
import { consoleFolder } from "../../../gateway/console/build.ts";
import { createApp } from "../../../gateway/http/app.ts";
import { addConsoleRoutes } from "../../../gateway/http/console/console.ts";
import type { AppEnv } from "../../../gateway/http/transport/context.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";

setDefaultTimeout(60_000);

const kib = 1024;
/** Of what a first visit loads, compressed; and of each part that a page loads later. */
const most = { firstLoadBytes: 150 * kib, shellBytes: 60 * kib, partBytes: 30 * kib };

let app: Hono<AppEnv>;
let files: readonly string[];
beforeAll(async () => {
  app = createApp({
    authenticator: { authenticate: () => undefined },
    routes: [(it) => addConsoleRoutes(it, "1.2.3")],
    metrics: new Metrics(),
    log: () => undefined,
  });
  files = readdirSync(await consoleFolder());
});

type Headers = Readonly<Record<string, string>>;
const ask = (path: string, headers: Headers = {}, method = "GET") => app.request(path, { method, headers });
const browser = { accept: "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8" };
const gzipBytes = async (file: string): Promise<number> =>
  (await (await ask(`/console/${file}`, { "accept-encoding": "gzip" })).arrayBuffer()).byteLength;

describe("GET /", () => {
  test.each([
    [{}],
    [{ accept: "*/*" }],
    [{ accept: "application/json" }],
    [{ accept: "application/json, text/html;q=0.5" }],
  ])("tells who asks with %j where what is", async (headers) => {
    const response = await ask("/", headers);
    expect(response.headers.get("content-type")).toStartWith("application/json");
    expect(await response.json()).toMatchObject({ object: "server", version: "1.2.3", links: { docs: "/docs" } });
  });

  test("gives browsers a page without a script or a style in it, under a strict policy, that is asked for anew each time", async () => {
    const response = await ask("/", browser);
    const page = await response.text();
    expect(response.headers.get("content-type")).toBe("text/html; charset=utf-8");
    expect(response.headers.get("content-security-policy")).toBe(
      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    );
    expect(contentSecurityPolicy).not.toContain("unsafe");
    expect(response.headers.get("x-content-type-options")).toBe("nosniff");
    expect(response.headers.get("referrer-policy")).toBe("no-referrer");
    expect(response.headers.get("cache-control")).toBe("no-cache");
    expect(response.headers.get("vary")).toContain("accept");
    expect(page).not.toMatch(/<script(?![^>]* src="\/console\/)|<style|style=| on\w+=|https?:/);
    for (const [, link = ""] of page.matchAll(/(?:src|href)="([^"]+)"/g)) {
      if (link !== "/docs") expect([link, (await ask(link)).status]).toEqual([link, 200]);
    }
    const etag = response.headers.get("etag") ?? "";
    expect((await ask("/", { ...browser, "if-none-match": `W/"other", ${etag}` })).status).toBe(304);
    expect((await ask("/", { ...browser, "if-none-match": '"other"' })).status).toBe(200);
  });
});

describe("the console's files", () => {
  test("are compressed for who takes that, and may be kept for ever, since their names change with them", async () => {
    const scripts = files.filter((file) => file.endsWith(".js"));
    expect(scripts.length).toBeGreaterThan(5);
    for (const file of files.filter((each) => each !== "index.html")) {
      expect(file).toMatch(/^[\w.]+-[0-9a-z]{8}\.(?:js|css|svg)$/);
      const [plain, packed] = [
        await ask(`/console/${file}`),
        await ask(`/console/${file}`, { "accept-encoding": "br, gzip" }),
      ];
      expect(packed.headers.get("content-encoding")).toBe("gzip");
      expect(packed.headers.get("cache-control")).toBe("public, max-age=31536000, immutable");
      expect(packed.headers.get("vary")).toBe("accept-encoding");
      const unpacked = Bun.gunzipSync(new Uint8Array(await packed.arrayBuffer()));
      expect(plain.headers.get("content-encoding")).toBeNull();
      expect(Buffer.from(await plain.arrayBuffer()).equals(unpacked)).toBe(true);
    }
    const [script = ""] = scripts;
    const refusing = await ask(`/console/${script}`, { "accept-encoding": "gzip;q=0, identity" });
    expect(refusing.headers.get("content-encoding")).toBeNull();
  });

  test("are small: what a first visit loads, the frame, and each page's own part", async () => {
    const page = await (await ask("/", browser)).text();
    const [entry = ""] = /main-\w+\.js/.exec(page) ?? [];
    const [style = ""] = /main-\w+\.css/.exec(page) ?? [];
    // What the entry loads at once, and that again; what it loads later it names in a call.
    const loaded = new Set([entry, style]);
    for (const file of loaded) {
      const text = await (await ask(`/console/${file}`)).text();
      for (const [, name = ""] of text.matchAll(/(?:from|import)"(?:\.\/|\/console\/)([\w.-]+\.js)"/g))
        loaded.add(name);
    }
    const sizes = await Promise.all([...loaded].map(gzipBytes));
    const shell = sizes.reduce((sum, bytes) => sum + bytes, 0);
    expect(shell).toBeLessThanOrEqual(most.shellBytes);
    const parts = files.filter((file) => file.endsWith(".js") && !loaded.has(file));
    const partSizes = await Promise.all(parts.map(gzipBytes));
    expect(Math.max(...partSizes)).toBeLessThanOrEqual(most.partBytes);
    // Even who visits every page loads no more than a first load may be.
    const all = shell + partSizes.reduce((sum, bytes) => sum + bytes, 0);
    process.stdout.write(`gzip: ${shell} bytes at first, ${all} with every page\n`);
    expect(all).toBeLessThanOrEqual(most.firstLoadBytes);
  });

  test.each(["index.html", "none.js", "..%2Findex.html", "..%2f..%2fpackage.json", "%00", "main.tsx"])(
    "%s is none of them",
    async (name) => {
      expect((await ask(`/console/${name}`)).status).toBe(404);
    },
  );

  test("load nothing from elsewhere, and make no code of text", async () => {
    const folder = await consoleFolder();
    for (const file of files) {
      const text = await Bun.file(join(folder, file)).text();
      const outside = /\beval\(|new Function\(|(?:from|import\()\s*["']https?:|url\(\s*["']?(?:https?:)?\/\/|@import/;
      expect([file, outside.exec(text)?.[0]]).toEqual([file, undefined]);
    }
  });
});
