/** Which addresses are fetched from, and that no answer of a name server or a site leads elsewhere. */
import { afterAll, expect, test } from "bun:test";
import { allowing, type FetchPolicy, fetchPublic, isPublicAddress } from "../../gateway/sources/public-fetch.ts";
import { FetchError } from "../../gateway/sources/source-url.ts";

let secretReads = 0;
const secret = Bun.serve({ hostname: "127.0.0.2", port: 0, fetch: () => new Response(`secret ${++secretReads}`) });
const site = Bun.serve({
  ...{ hostname: "127.0.0.1", port: secret.port ?? 0 },
  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === "/to")
      return new Response(null, { status: 302, headers: { location: searchParams.get("url") ?? "" } });
    if (pathname === "/large") return new Response("x".repeat(4_096));
    if (pathname === "/slow") await Bun.sleep(2_000);
    return new Response(request.headers.get("host"), {
      headers: { etag: '"1"', "content-type": "Text/Plain; charset=x" },
    });
  },
});
afterAll(() => Promise.all([site.stop(true), secret.stop(true)]));

/** 127.0.0.1 stands for the public internet here, and 127.0.0.2 for what must not be reached. */
const isAllowed = (address: string): boolean => address === "127.0.0.1";
const names: Record<string, readonly string[]> = {
  "docs.test": ["127.0.0.1"],
  "inside.test": ["127.0.0.2"],
  "mixed.test": ["127.0.0.1", "127.0.0.2"],
};
const policy: FetchPolicy = { isAllowed, resolve: (host) => Promise.resolve(names[host] ?? []) };
const at = (host: string, path = "/") => new URL(`http://${host}:${site.port}${path}`);
const textOf = async (url: URL, own: FetchPolicy = policy) =>
  new TextDecoder().decode((await fetchPublic(url, own)).bytes);

test("private, loopback, link-local and reserved addresses are not public, however they are written", () => {
  const refused = [
    ...["127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"],
    ...["224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "::", "::1", "fe80::1", "fc00::1"],
    ...[
      "ff02::1",
      "::ffff:127.0.0.1",
      "::ffff:7f00:1",
      "::ffff:10.0.0.1",
      "64:ff9b::7f00:1",
      "2002:7f00:1::",
      "2001:db8::1",
    ],
    ...["::127.0.0.1", "::a9fe:a9fe", "4000::1"],
    ...["", "localhost", "1.2.3"],
  ];
  expect(refused.filter(isPublicAddress)).toEqual([]);
  const allowed = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8"];
  expect(allowed.filter(isPublicAddress)).toEqual(allowed);
});

test("networks that are named are allowed beside the public internet, and nothing next to them", () => {
  const may = allowing(["10.1.0.0/16", "fd00:1::/32"]);
  expect(["10.1.2.3", "::ffff:10.1.2.3", "fd00:1::9", "8.8.8.8"].filter(may).length).toBe(4);
  expect(["10.2.0.1", "127.0.0.1", "fd00:2::9", "fe80::1", "", "x"].filter(may)).toEqual([]);
  expect(() => allowing(["10.1.0.0"])).toThrow();
});

test("what is sent to the first address is not sent to where it redirects", async () => {
  const got: (string | null)[] = [];
  using both = Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    fetch(request) {
      got.push(request.headers.get("authorization"));
      const isFirst = new URL(request.url).pathname === "/from";
      return isFirst ? new Response(null, { status: 307, headers: { location: "/to" } }) : new Response("there");
    },
  });
  await fetchPublic(new URL(`http://docs.test:${both.port}/from`), policy, { headers: { authorization: "signed" } });
  expect(got).toEqual(["signed", null]);
});

test.each([
  "http://127.0.0.1/",
  "http://2130706433/",
  "http://0x7f.1/",
  "http://0177.0.0.1/",
  "http://[::1]/",
  "http://[::ffff:127.0.0.1]/",
  "http://[::ffff:a9fe:a9fe]/",
  "http://169.254.169.254/latest/meta-data",
  "http://localhost/",
])("%s is refused by the rules that people have", async (url) => {
  const { hostname } = new URL(url);
  const resolve = () => Promise.resolve(["127.0.0.1"]);
  await expect(fetchPublic(new URL(url), { resolve })).rejects.toThrow(
    `${hostname.replace(/[[\]]/g, "")} is not of the`,
  );
});

test("a name is fetched from its address, under its name", async () => {
  const got = await fetchPublic(at("docs.test"), policy);
  expect(new TextDecoder().decode(got.bytes)).toBe(`docs.test:${site.port}`);
  expect([got.status, got.mediaType, got.etag]).toEqual([200, "text/plain", '"1"']);
});

test("names of private addresses are refused, also when only one of several is", async () => {
  for (const host of ["inside.test", "mixed.test"]) {
    await expect(fetchPublic(at(host), policy)).rejects.toThrow("is not of the public internet");
  }
  await expect(fetchPublic(at("unknown.test"), policy)).rejects.toThrow("has no address");
  expect(secretReads).toBe(0);
});

test("a redirect to a private address is refused, by name and by number", async () => {
  for (const target of [at("inside.test").href, at("127.0.0.2").href, "file:///etc/passwd", "http://u:p@docs.test/"]) {
    const path = `/to?url=${encodeURIComponent(target)}`;
    await expect(fetchPublic(at("docs.test", path), policy)).rejects.toThrow(FetchError);
  }
  const around = `/to?url=${encodeURIComponent("/to")}`;
  await expect(fetchPublic(at("docs.test", around), policy)).rejects.toThrow(FetchError);
  expect(await textOf(at("docs.test", `/to?url=${encodeURIComponent(at("docs.test", "/x").href)}`))).toStartWith(
    "docs.test",
  );
  expect(secretReads).toBe(0);
});

test("a name whose second answer differs: what was checked is what is connected to", async () => {
  let asked = 0;
  const resolve = () => Promise.resolve([asked++ === 0 ? "127.0.0.1" : "127.0.0.2"]);
  expect(await textOf(at("rebind.test"), { isAllowed, resolve })).toBe(`rebind.test:${site.port}`);
  expect(asked).toBe(1);
  await expect(fetchPublic(at("rebind.test"), { isAllowed, resolve })).rejects.toThrow("is not of the public internet");
  asked = 0;
  const path = `/to?url=${encodeURIComponent(at("rebind.test").href)}`;
  await expect(fetchPublic(at("rebind.test", path), { isAllowed, resolve })).rejects.toThrow("is not of the public");
  expect(secretReads).toBe(0);
});

test("bytes and time have bounds", async () => {
  await expect(fetchPublic(at("docs.test", "/large"), { ...policy, maxBytes: 4_095 })).rejects.toThrow(
    "more than 4095",
  );
  expect((await fetchPublic(at("docs.test", "/large"), { ...policy, maxBytes: 4_096 })).bytes.byteLength).toBe(4_096);
  await expect(fetchPublic(at("docs.test", "/slow"), { ...policy, timeoutMs: 100 })).rejects.toThrow("too long");
});
