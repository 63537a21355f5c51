/**
 * What a caller can make the server hold or misread before any route has its request: bodies that do not end, hosts that
 * are none, requests behind requests. Bytes by hand, over the server's own socket code.
 */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { connect, type Socket } from "node:net";
import { createApp } from "../../gateway/http/app.ts";
import { listen } from "../../gateway/http/listen.ts";
import { readBody } from "../../gateway/http/transport/body.ts";
import { BodyMemory } from "../../gateway/http/transport/body-memory.ts";
import { declareRoute } from "../../gateway/http/transport/route.ts";
import { Metrics } from "../../gateway/telemetry/metrics.ts";
import type { Scope } from "../../gateway/tenant/principal.ts";

setDefaultTimeout(60_000);

const kib = 1024;
const bounds = { totalBytes: 1_024 * kib, tenantBytes: 256 * kib, reserveBytes: 64 * kib, tenantBodies: 12 };
const memory = new BodyMemory(bounds);
/** What handlers were asked for, and what became of those that wait. */
const seen = { paths: [] as string[], aborted: 0 };

const app = createApp({
  authenticator: {
    authenticate: (apiKey) =>
      apiKey.startsWith("key-")
        ? { keyId: apiKey, tenantId: `tenant_${apiKey.slice(4)}` as const, scopes: new Set<Scope>(["inference"]) }
        : undefined,
  },
  bodyMemory: memory,
  routes: [
    (it) =>
      declareRoute(it, { method: "POST", path: "/body", scope: "inference", count: "request" }, async (c) =>
        c.text(String((await readBody(c, 8_192 * kib)).length)),
      ),
    (it) =>
      declareRoute(it, { method: "GET", path: "/health", scope: "public", count: "free" }, (c) => {
        seen.paths.push(c.req.path);
        return c.text("health");
      }),
    (it) =>
      declareRoute(it, { method: "GET", path: "/v1/health", scope: "public", count: "free" }, (c) => {
        seen.paths.push(c.req.path);
        return c.text("other");
      }),
    (it) =>
      declareRoute(it, { method: "GET", path: "/slow", scope: "public", count: "free" }, async (c) => {
        const { promise, resolve } = Promise.withResolvers<void>();
        c.req.raw.signal.addEventListener("abort", () => {
          seen.aborted += 1;
          resolve();
        });
        await promise;
        return c.text("late");
      }),
  ],
  metrics: new Metrics(),
  log: () => undefined,
});

let server: ReturnType<typeof listen>;
beforeAll(() => {
  server = listen(
    { host: "127.0.0.1", port: 0 },
    (request, env) => app.fetch(request, env),
    () => undefined,
  );
});
afterAll(() => server.stop(true));

interface Client {
  readonly socket: Socket;
  text(): string;
  readonly closed: Promise<void>;
}

function client(bytes: string): Client {
  const socket = connect({ host: "127.0.0.1", port: server.port ?? 0, allowHalfOpen: true });
  let text = "";
  socket.on("data", (piece: Buffer) => {
    text += piece.toString("latin1");
  });
  socket.on("error", () => undefined);
  const closed = new Promise<void>((resolve) => {
    socket.on("end", () => {
      socket.destroy();
      resolve();
    });
    socket.on("close", () => resolve());
  });
  socket.write(bytes);
  return { socket, text: () => text, closed };
}

const until = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await Bun.sleep(5);
};
const answered = async (it: Client): Promise<string> => {
  await until(() => it.text().includes("\r\n\r\n"));
  return it.text();
};
const post = (key: string, length: number): string =>
  `POST /body HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${key}\r\ncontent-length: ${length}\r\n\r\n`;
const chunked = (key: string): string =>
  `POST /body HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${key}\r\ntransfer-encoding: chunked\r\n\r\n`;
const chunk = (bytes: number): string => `${bytes.toString(16)}\r\n${"a".repeat(bytes)}\r\n`;

test("bodies that do not end hold their tenant's part, and what is beyond is refused at its head", async () => {
  const length = 150 * kib;
  const open = Array.from({ length: 40 }, () => client(post("key-hostile", length) + "a".repeat(length - 1)));
  await until(() => open.filter((it) => it.text() !== "").length === 38);
  const refused = open.filter((it) => it.text() !== "");
  for (const it of refused) {
    expect(it.text()).toStartWith("HTTP/1.1 429");
    expect(it.text().toLowerCase()).toContain("retry-after: 1");
    expect(it.text()).toContain("concurrency_limited");
  }
  await until(() => memory.heldBytes === 2 * (length - 1));
  // Another tenant's bodies are taken as ever.
  const other = client(post("key-other", length) + "a".repeat(length));
  expect(await answered(other)).toEndWith(String(length));
  // Who is let go of, or comes to its end, gives its part back.
  const [first, second] = open.filter((it) => it.text() === "");
  first?.socket.destroy();
  second?.socket.write("a");
  if (second !== undefined) expect(await answered(second)).toEndWith(String(length));
  await until(() => memory.heldBytes === 0);
  for (const it of [...open, other]) it.socket.destroy();
});

test("bodies that say nothing of their length are counted as they come, and so many are read at once", async () => {
  const open = Array.from({ length: 12 }, () => client(chunked("key-hostile") + chunk(20 * kib)));
  await until(() => memory.heldBytes === 12 * 20 * kib);
  const late = client(chunked("key-hostile"));
  expect(await answered(late)).toStartWith("HTTP/1.1 429");
  for (const it of open) it.socket.write(chunk(20 * kib));
  await until(() => open.some((it) => it.text() !== ""));
  expect(memory.heldBytes).toBeLessThanOrEqual(bounds.tenantBytes + bounds.reserveBytes);
  for (const it of [...open, late]) it.socket.destroy();
  await until(() => memory.heldBytes === 0);
});

test("announcements hold nothing of what others share", async () => {
  const open = Array.from({ length: 30 }, (_, index) => client(post(`key-${index}`, 300 * kib)));
  const other = client(post("key-other", 300 * kib) + "a".repeat(300 * kib));
  expect(await answered(other)).toEndWith(String(300 * kib));
  for (const it of [...open, other]) it.socket.destroy();
});

test("of a caller without a key no body is read", async () => {
  const open = Array.from({ length: 10 }, () => client(post("none", 1_000 * kib) + "a".repeat(500 * kib)));
  for (const it of open) expect(await answered(it)).toStartWith("HTTP/1.1 401");
  expect(memory.heldBytes).toBe(0);
  for (const it of open) it.socket.destroy();
});

const strangeHosts = [
  ...["a b", "", " ", "a/b", "a?x", "a#x", "a@b", "u:p@b", "a:b", "a:99999", "a\\b", "a%20b", "a%2fb", "a\tb", "<a>"],
  ...[
    "a|b",
    "a^b",
    "[",
    "[::1",
    "::1",
    "http://x",
    "//x",
    "/",
    "?",
    "#",
    "1.2.3.4.5",
    "%zz",
    'a"b',
    "`",
    "{}",
    "\u00e4",
  ],
];

test.each(strangeHosts)("Host: %j is refused, whatever path is asked for", async (host) => {
  seen.paths.length = 0;
  for (const target of ["/v1/health", "/x/v1/health", "//health", "/admin/health", "http://b/v1/health"]) {
    const it = client(`GET ${target} HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
    expect(await answered(it)).toStartWith("HTTP/1.1 400");
    it.socket.destroy();
  }
  expect(seen.paths).toEqual([]);
});

test.each(["a", "a:80", "localhost:8080", "127.0.0.1:1", "[::1]", "[::1]:80", "a_b.example", "A.example."])(
  "Host: %s is a host, and the path that is asked for is routed",
  async (host) => {
    seen.paths.length = 0;
    for (const target of ["/v1/health", "http://other/v1/health", "/v1/health?a=/health", "/v1/health#/health"]) {
      const it = client(`GET ${target} HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
      expect(await answered(it)).toEndWith("other");
      it.socket.destroy();
    }
    expect(seen.paths).toEqual(Array.from({ length: 4 }, () => "/v1/health"));
  },
);

test("requests without a pause between them are answered in their order, where each answer is there at once", async () => {
  const get = (path: string) => `GET ${path} HTTP/1.1\r\nhost: a\r\n\r\n`;
  const it = client(get("/health") + get("/v1/health") + get("/health"));
  await until(() => it.text().split("HTTP/1.1 200").length === 4);
  expect(it.text().match(/health$|other|health/g)).toEqual(["health", "other", "health"]);
  it.socket.destroy();
});

test.each([
  [
    "sends another request before it has its answer",
    (it: Client) => void it.socket.write("GET /health HTTP/1.1\r\nhost: a\r\n\r\n"),
  ],
  ["closes its sending side", (it: Client) => void it.socket.end()],
  ["goes away", (it: Client) => void it.socket.destroy()],
])("who %s gets no answer, and what he asked for ends", async (_name, act) => {
  const before = seen.aborted;
  const pending = server.pendingRequests;
  const it = client("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
  await until(() => server.pendingRequests === pending + 1);
  act(it);
  await it.closed;
  await until(() => seen.aborted === before + 1 && server.pendingRequests === pending);
  expect(it.text()).toBe("");
});
