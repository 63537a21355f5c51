import { describe, expect, test } from "bun:test";
import { z } from "zod";
import { limits } from "../../../gateway/config.ts";
import { createApp } from "../../../gateway/http/app.ts";
import { readJson } from "../../../gateway/http/transport/body.ts";
import { JsonCost } from "../../../gateway/http/transport/json-cost.ts";
import { declareRoute } from "../../../gateway/http/transport/route.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import { fc } from "../../support/fast-check.ts";

const small = { depth: 4, commas: 6, fields: 3, nodes: 8 };

function refusal(pieces: readonly string[], bounds = small): string | undefined {
  const cost = new JsonCost(bounds);
  try {
    for (const piece of pieces) cost.look(piece);
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

describe("what a JSON text costs", () => {
  test.each([
    ['["a","b","c","d","e","f","g"]', undefined],
    ['{"a":["b","c"],"d":["e","f",[]]}', "The body may have at most 8 strings, lists and objects."],
    ["[[],[],[],[],[],[],[]]", undefined],
    ["[[],{},[],[],[{}],[{}]]", "The body may have at most 8 strings, lists and objects."],
    ["[1,2,3,4,5,6,7]", undefined],
    ["[1,2,3,4,5,6,7,8]", "The body may have at most 6 values."],
    ["[[[[]]]]", undefined],
    ["[[[[[]]]]]", "The body may be nested 4 deep at most."],
    ['{"a":1,"b":2,"c":3}', undefined],
    ['{"a":1,"b":2,"c":3,"d":4}', "An object may have at most 3 fields."],
    ['"[[[[[{,,,,,,,,,,"', undefined],
    [String.raw`"\"[[[[[{,,,,,,,,,,\\\""`, undefined],
    [String.raw`"\\",[[[[[`, "The body may be nested 4 deep at most."],
  ])("%s", (text, message) => expect(refusal([text])).toBe(message));

  test("is the same however the text is cut", () => {
    const signs = fc.constantFrom('"', "\\", "[", "]", "{", "}", ",", "a", '\\"', '","');
    const texts = fc.array(signs, { maxLength: 30 }).map((found) => found.join(""));
    const cuts = fc.array(fc.nat(30), { maxLength: 6 });
    const property = fc.property(texts, cuts, (text, at) => {
      const sorted = [0, ...at.toSorted((a, b) => a - b), text.length];
      const pieces = sorted.slice(1).map((end, index) => text.slice(sorted[index], end));
      expect(refusal(pieces)).toBe(refusal([text]));
    });
    fc.assert(property, { numRuns: 2_000 });
  });
});

describe("a JSON body", () => {
  const seen = { sent: 0 };
  const app = createApp({
    authenticator: { authenticate: () => undefined },
    routes: [
      (it) =>
        declareRoute(it, { method: "POST", path: "/", scope: "public", count: "free" }, async (c) =>
          c.json((await readJson(c, z.unknown())) ?? null),
        ),
    ],
    metrics: new Metrics(),
    log: () => undefined,
  });
  const send = async (body: string | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>) => {
    const headers = { "content-type": "application/json" };
    const response = await app.request("/", { method: "POST", headers, body });
    return { status: response.status, text: await response.text() };
  };
  const errorOf = async (body: string | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>) =>
    (JSON.parse((await send(body)).text) as { error?: object }).error;

  test("that is too costly is not read to its end", async () => {
    const piece = Buffer.from(`${'"a",'.repeat(4_000)}`);
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        if (seen.sent === 0) controller.enqueue(Buffer.from("["));
        seen.sent += 1;
        if (seen.sent === 400) controller.close();
        else controller.enqueue(piece);
      },
    });
    expect(await errorOf(body)).toMatchObject({ code: "invalid_request" });
    expect(seen.sent).toBeLessThan(limits.jsonNodes / 4_000 + 10);
  });

  test("comes in pieces that may end within a character", async () => {
    const bytes = Buffer.from(JSON.stringify({ a: 'é世😀\\"' }));
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (const byte of bytes) controller.enqueue(Uint8Array.of(byte));
        controller.close();
      },
    });
    expect((await send(body)).text).toBe(bytes.toString());
    expect(await errorOf(bytes.subarray(0, 9))).toMatchObject({ code: "invalid_json" });
  });

  test.each([
    ['{"cache_salt":"\\ud800"}', "cache_salt"],
    ['{"cache_salt":"\\uDFFF\\uD800"}', "cache_salt"],
    ['{"a":[{"b":"x\\udc00y"}]}', "a[0].b"],
    ['{"metadata":{"\\ud83d":1}}', "metadata.\ufffd"],
  ])("%s has half of a character, which is refused by its field", async (body, param) => {
    expect(await errorOf(body)).toMatchObject({ code: "invalid_value", param });
  });

  test("may have whole characters as two escapes", async () => {
    expect((await send('{"a":"\\ud83d\\ude00"}')).text).toBe('{"a":"😀"}');
    expect(await errorOf('"\\ud83d"')).toMatchObject({ code: "invalid_value", param: null });
  });
});
