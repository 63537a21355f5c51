/** Hostile request lines, headers, credentials and framings. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { effort } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";
import { runHeads } from "./headers.ts";
import { exchange } from "./socket.ts";
import { type FuzzWorld, openWorld } from "./world.ts";

setDefaultTimeout(effort(120_000, 1_200_000));

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

test("no head makes a handler fail, and every error has its shape", async () => {
  expect(await runHeads(world, { cases: effort(1_000, 10_000), seed: testSeed() })).toEqual([]);
  expect((await world.call(undefined, "GET", "/ready")).status).toBe(200);
});

const send = (text: string) => exchange(world.url, Buffer.from(text, "latin1"), { quietMs: 5_000, end: false });

const hidden = "GET /v1/smuggled HTTP/1.1\r\nhost: a\r\nx-a: b\r\n\r\n";
const post = (lines: readonly string[], body: string) =>
  ["POST /v1/none HTTP/1.1", "host: a", ...lines, "", body].join("\r\n");
const chunked = `0\r\n\r\n${hidden}`;
const length = `content-length: ${chunked.length}`;

test.each([
  ["a length and chunks", post([length, "transfer-encoding: chunked"], chunked)],
  ["chunks and a shorter length", post(["transfer-encoding: chunked", "content-length: 5"], chunked)],
  ["two lengths", post(["content-length: 0", `content-length: ${hidden.length}`], hidden)],
  ["two lengths in a line", post([`content-length: 0, ${hidden.length}`], hidden)],
  ["a blank before the colon", post([length, "transfer-encoding : chunked"], chunked)],
  ["a coding that is not known", post([length, "transfer-encoding: xchunked"], chunked)],
  ["a coding before chunked", post(["transfer-encoding: gzip, chunked"], chunked)],
  ["a folded line", post(["x: a", "\ttransfer-encoding: chunked", length], chunked)],
  ["a signed length", post([`content-length: +${hidden.length}`], hidden)],
  ["a negative length", post(["content-length: -1"], hidden)],
  ["a chunk size that overflows", post(["transfer-encoding: chunked"], `10000000000000000\r\n${hidden}`)],
  ["a line break within a chunk's extension", post(["transfer-encoding: chunked"], `0;\n\r\n\r\n${hidden}`)],
  ["a body of GET", `GET /v1/none HTTP/1.1\r\nhost: a\r\ncontent-length: ${hidden.length}\r\n\r\n${hidden}`],
])("%s: no request hides in a body", async (_name, text) => {
  const { answers } = await send(text);
  expect(answers.length).toBeGreaterThan(0);
  // One answer to the request that all agree on; what follows is refused, never served.
  expect(answers.slice(1).map(({ status }) => status)).toEqual(answers.slice(1).map(() => 400));
});

test.each([
  ["an Authorization of 10,000 characters", `authorization: Bearer ${"k".repeat(10_000)}`, [401]],
  ["an Authorization of a megabyte", `authorization: Bearer ${"k".repeat(1_000_000)}`, [431]],
  ["1,000 headers", Array.from({ length: 1_000 }, (_, index) => `x-${index}: ${index}`).join("\r\n"), [400, 401, 431]],
  ["100,000 headers", Array.from({ length: 100_000 }, (_, index) => `x-${index}: ${index}`).join("\r\n"), [400, 431]],
  ["100 credentials", Array.from({ length: 100 }, () => "authorization: Bearer x").join("\r\n"), [401]],
])("%s", async (_name, headers, statuses) => {
  const { answers } = await send(`GET /v1/files HTTP/1.1\r\nhost: a\r\n${headers}\r\n\r\n`);
  expect(statuses).toContain(answers[0]?.status ?? 0);
});

test.each(["GET /docs", "PATCH /docs?x", "GET /v1/files?<x>", "GET /?x", "POST /v1/none"])(
  "%s for a host that is none is refused, with a request id",
  async (line) => {
    for (const host of ["a/b@c", "a/b", "a/docs"]) {
      const { answers } = await send(`${line} HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
      const [answer] = answers;
      expect([answer?.status, answer?.headers.get("x-request-id")]).toEqual([400, expect.stringMatching(/^req_/)]);
    }
  },
);

test("credentials in two headers are not one of them by chance", async () => {
  const { apiKey } = world.caller;
  for (const pair of [
    [`authorization: Bearer ${apiKey}`, "authorization: Bearer x"],
    ["authorization: Bearer x", `authorization: Bearer ${apiKey}`],
    ["authorization: Basic x", `x-api-key: ${apiKey}`],
  ]) {
    const { answers } = await send(`GET /v1/files HTTP/1.1\r\nhost: a\r\n${pair.join("\r\n")}\r\n\r\n`);
    expect([pair[0]?.slice(0, 20), answers[0]?.status]).toEqual([pair[0]?.slice(0, 20), 401]);
  }
});
