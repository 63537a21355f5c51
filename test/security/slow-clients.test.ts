/**
 * Clients that send or read a byte now and then: those that are merely slow are served to the end, those that hold
 * what they were given without using it are let go. The server's own socket code, with times of a second.
 */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { connect, type Socket } from "node:net";
import { createApp } from "../../gateway/http/app.ts";
import { listen } from "../../gateway/http/listen.ts";
import { readBody } from "../../gateway/http/transport/body.ts";
import { byteStreamResponse } from "../../gateway/http/transport/byte-stream.ts";
import { declareRoute } from "../../gateway/http/transport/route.ts";
import { textStreamResponse } from "../../gateway/http/transport/text-stream.ts";
import { Metrics } from "../../gateway/telemetry/metrics.ts";

setDefaultTimeout(60_000);

const stallMs = 500;
const bodyMs = 800;
const framing = { contentType: "text/plain", ping: "", error: () => "failed" };
/** What the server did for its clients. */
const seen = { pieces: 0, pieceBytes: 64 * 1024, filesClosed: 0, texts: 0, textsEnded: 0 };

async function* endlessFile(): AsyncGenerator<Uint8Array> {
  try {
    for (;;) {
      seen.pieces += 1;
      yield new Uint8Array(seen.pieceBytes);
    }
  } finally {
    seen.filesClosed += 1;
  }
}

const app = createApp({
  authenticator: { authenticate: () => undefined },
  routes: [
    (it) =>
      declareRoute(it, { method: "POST", path: "/body", scope: "public", count: "free" }, async (c) =>
        c.text(String((await readBody(c, 2 ** 24, bodyMs)).byteLength)),
      ),
    (it) =>
      declareRoute(it, { method: "GET", path: "/answer", scope: "public", count: "free" }, (c) =>
        c.body(new Uint8Array(40_000_000)),
      ),
    (it) =>
      declareRoute(it, { method: "GET", path: "/file", scope: "public", count: "free" }, (c) =>
        byteStreamResponse(c, endlessFile(), stallMs),
      ),
    (it) =>
      declareRoute(it, { method: "GET", path: "/steady", scope: "public", count: "free" }, (c) =>
        textStreamResponse(c, framing, async (stream) => {
          for (let part = 0; part < 30; part++) {
            await stream.write("x");
            await Bun.sleep(200);
          }
        }),
      ),
    (it) =>
      declareRoute(it, { method: "GET", path: "/texts", scope: "public", count: "free" }, (c) =>
        textStreamResponse(
          c,
          framing,
          async (stream) => {
            while (!stream.closed) {
              seen.texts += 1;
              await stream.write("x".repeat(seen.pieceBytes));
            }
            seen.textsEnded += 1;
          },
          { stallMs },
        ),
      ),
  ],
  metrics: new Metrics(),
  log: () => undefined,
});

const config = { host: "127.0.0.1", port: 0 };
const times = { idleS: 1, answerS: 1 };
let server: ReturnType<typeof listen>;
beforeAll(() => {
  server = listen(
    config,
    (request, env) => app.fetch(request, env),
    () => undefined,
    times,
  );
});
afterAll(() => server.stop(true));

interface Client {
  readonly socket: Socket;
  /** All that came, once the server has closed the connection. */
  readonly ended: Promise<string>;
}

function client(head: string, { reads = true } = {}): Client {
  const socket = connect({ host: config.host, port: server.port ?? 0 });
  const pieces: Buffer[] = [];
  const ended = new Promise<string>((resolve) => {
    socket.on("close", () => resolve(Buffer.concat(pieces).toString("latin1")));
    socket.on("error", () => undefined);
  });
  if (reads) socket.on("data", (piece: Buffer) => void pieces.push(piece));
  else socket.pause();
  socket.write(head);
  return { socket, ended };
}

/** Sends the same piece again and again, until so many are sent or nobody is there. */
async function drip({ socket }: Client, piece: string, times_: number, gapMs: number): Promise<void> {
  for (let sent = 0; sent < times_ && !socket.destroyed; sent++) {
    socket.write(piece);
    await Bun.sleep(gapMs);
  }
}

const get = (path: string): string => `GET ${path} HTTP/1.1\r\nhost: a\r\n\r\n`;
const post = (bytes: number): string => `POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: ${bytes}\r\n\r\n`;
const until = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await Bun.sleep(20);
};
/** What the kernel takes for a reader that does not read is some megabytes. */
const mostPieces = 400;

test.concurrent("a body that takes longer than a socket may be silent is read to its end", async () => {
  const slow = client(post(30 * 32_000));
  await drip(slow, "a".repeat(32_000), 30, 200);
  const answer = await slow.ended;
  expect(answer).toStartWith("HTTP/1.1 200");
  expect(answer).toEndWith(String(30 * 32_000));
});

test.concurrent("a body of a byte at a time, or of none, is given up with 408, and the socket with it", async () => {
  const [dripping, silent] = [client(post(1_000)), client(post(1_000))];
  void drip(dripping, "a", 1_000, 50);
  for (const answer of [await dripping.ended, await silent.ended]) {
    expect(answer).toStartWith("HTTP/1.1 408");
    expect(answer).toContain("request_timeout");
  }
});

test.concurrent("a head of a byte at a time is given up", async () => {
  const slow = client("GET /answer HTTP/1.1\r\nhost: a\r\nx: ");
  void drip(slow, "a", 1_000, 100);
  expect(await slow.ended).not.toContain("200 OK");
});

test.concurrent("a stream goes on for as long as it is read, and after it the socket may not be silent for ever", async () => {
  const answer = await client(get("/steady")).ended;
  expect(answer).toEndWith("0\r\n\r\n");
  expect(answer.match(/\r\nx\r\n/g)?.length).toBe(30);
});

test.concurrent("a socket that is kept open after a body was read is closed when it is silent", async () => {
  expect(await client(`${post(1)}a`).ended).toEndWith("1");
});

test.concurrent("who reads no file, no stream and no answer holds neither memory nor socket", async () => {
  const [file, texts] = [client(get("/file"), { reads: false }), client(get("/texts"), { reads: false })];
  const answer = client(get("/answer"), { reads: false });
  await until(() => seen.filesClosed === 1 && seen.textsEnded === 1);
  expect(seen.pieces).toBeLessThan(mostPieces);
  expect(seen.texts).toBeLessThan(mostPieces);
  // The others of these tests end by themselves.
  await until(() => server.pendingRequests === 0);
  for (const { socket } of [file, texts, answer]) socket.destroy();
});
