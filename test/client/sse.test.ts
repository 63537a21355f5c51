import { expect, test } from "bun:test";
import { readLines } from "../../gateway/client/lines.ts";
import { readSse, type SseEvent } from "../../gateway/client/sse.ts";
import { fc } from "../support/fast-check.ts";

/** The bytes in pieces that end at the given places. */
function streamOf(text: string, cuts: readonly number[]): ReadableStream<Uint8Array> {
  const bytes = new TextEncoder().encode(text);
  const places = [0, ...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  return new ReadableStream({
    start(controller) {
      for (let i = 1; i < places.length; i++) controller.enqueue(bytes.slice(places[i - 1], places[i]));
      controller.close();
    },
  });
}

const read = async (text: string, cuts: readonly number[] = []): Promise<SseEvent[]> =>
  await Array.fromAsync(readSse(streamOf(text, cuts)));

test("reads data, event names, ids and several data lines", async () => {
  const text = 'data: {"a":1}\n\nevent: progress\nid: 7\ndata: one\ndata: two\n\ndata:tight\n\n';
  expect(await read(text)).toEqual([
    { event: "message", data: '{"a":1}' },
    { event: "progress", data: "one\ntwo", id: "7" },
    { event: "message", data: "tight" },
  ]);
});

test("passes over comments, unknown fields and an event that never ended", async () => {
  expect(await read(": ping\n\nretry: 5\n\ndata: x\n\ndata: cut off")).toEqual([{ event: "message", data: "x" }]);
});

test("both line ends mean the same", async () => {
  for (const end of ["\n", "\r\n"]) {
    const text = ["data: a", "data: b", "", "data: c", "", ""].join(end);
    expect((await read(text)).map(({ data }) => data)).toEqual(["a\nb", "c"]);
  }
});

/** The same piece again and again. */
const endlessly = (piece: string): ReadableStream<Uint8Array> => {
  const bytes = new TextEncoder().encode(piece);
  return new ReadableStream({ pull: (controller) => controller.enqueue(bytes) });
};

test("an event without an end is refused, of one line or of many", async () => {
  const mib = 1024 * 1024;
  await expect(Array.fromAsync(readSse(endlessly("x".repeat(mib))))).rejects.toThrow("without an end");
  await expect(Array.fromAsync(readSse(endlessly(`data: ${"x".repeat(mib)}\n`)))).rejects.toThrow("without an end");
  await expect(Array.fromAsync(readLines(endlessly("x".repeat(mib))))).rejects.toThrow("without an end");
});

test("where the bytes are cut makes no difference", async () => {
  const line = fc.string({ unit: "grapheme" }).map((text) => text.replaceAll(/[\r\n]/g, " "));
  const cases = fc.tuple(fc.array(line, { minLength: 1 }), fc.array(fc.nat()), fc.constantFrom("\n", "\r\n"));
  const property = fc.asyncProperty(cases, async ([lines, cuts, end]) => {
    const text = lines.map((data) => `data: ${data}${end}${end}`).join("");
    expect((await read(text, cuts)).map(({ data }) => data)).toEqual(lines);
  });
  await fc.assert(property, { numRuns: 200 });
});
