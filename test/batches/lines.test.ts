import { describe, expect, test } from "bun:test";
import { batchLimits } from "../../gateway/batches/limits.ts";
import { type CheckedLines, checkLines as checkSlices } from "../../gateway/batches/line-checks.ts";
import { findLines, firstLine, readLines } from "../../gateway/batches/lines.ts";

const endpoint = "/v1/chat/completions";
const line = (customId: string, fields: object = {}) =>
  JSON.stringify({ custom_id: customId, method: "POST", url: endpoint, body: { model: "m" }, ...fields });

/** A file in memory. */
function fileOf(content: string | Uint8Array) {
  const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
  return { read: (start: number, most: number) => Promise.resolve(bytes.subarray(start, start + most)) };
}

async function checkLines(content: string | Uint8Array, endpoint: string): Promise<CheckedLines> {
  const slices = checkSlices(fileOf(content), endpoint);
  for (;;) {
    const slice = await slices.next();
    if (slice.done === true) return slice.value;
  }
}

describe("a batch's file", () => {
  test("its lines, with their numbers; blank ones are none", async () => {
    const text = `${line("a")}\n\n  \r\n${line("b", { body: { n: 1 } })}\r\n`;
    expect(await checkLines(text, endpoint)).toEqual({ faults: [], total: 2 });
    expect(await Array.fromAsync(readLines(fileOf(text)))).toEqual([
      { number: 1, customId: "a", body: '{"model":"m"}' },
      { number: 4, customId: "b", body: '{"n":1}' },
    ]);
  });

  const deep = `{"custom_id":"a","method":"POST","url":"${endpoint}","body":${'{"a":'.repeat(5_000)}1${"}".repeat(5_000)}}`;
  test.each<[string, string, string, string | null]>([
    ["no JSON", "{", "invalid_json_line", null],
    ["a list", "[]", "invalid_json_line", null],
    ["nested without end", deep, "invalid_json_line", null],
    ["an unknown field", line("a", { extra: 1 }), "unknown_field", "extra"],
    ["no id", line(""), "invalid_custom_id", "custom_id"],
    ["an id that is a number", line(1 as never), "invalid_custom_id", "custom_id"],
    ["a long id", line("x".repeat(513)), "invalid_custom_id", "custom_id"],
    ["another method", line("a", { method: "GET" }), "invalid_method", "method"],
    ["another endpoint", line("a", { url: "/v1/embeddings" }), "mismatched_endpoint", "url"],
    ["a way out of it", line("a", { url: "/v1/../admin/v1/tenants" }), "mismatched_endpoint", "url"],
    ["no body", line("a", { body: null }), "invalid_body", "body"],
    ["a stream", line("a", { body: { stream: true } }), "invalid_body", "body.stream"],
  ])("%s is told with its line", async (_name, text, code, param) => {
    const { faults } = await checkLines(`${line("first")}\n${text}\n`, endpoint);
    expect(faults).toMatchObject([{ code, param, line: 2 }]);
  });

  test("an id twice, no line, too many lines, and as many faults as are told", async () => {
    const twice = await checkLines(`${line("a")}\n${line("b")}\n${line("a")}`, endpoint);
    expect(twice.faults).toMatchObject([{ code: "duplicate_custom_id", line: 3 }]);
    expect((await checkLines("\n \n", endpoint)).faults).toMatchObject([{ code: "empty_file", line: null }]);
    const most = Array.from({ length: batchLimits.maxLines }, (_, i) => line(String(i))).join("\n");
    expect(await checkLines(most, endpoint)).toEqual({ faults: [], total: batchLimits.maxLines });
    const many = await checkLines(`${most}\n${line("more")}`, endpoint);
    expect(many.faults).toMatchObject([{ code: "too_many_lines", line: batchLimits.maxLines + 1 }]);
    const bad = await checkLines("{\n".repeat(batchLimits.maxFaults + 50), endpoint);
    expect(bad.faults).toHaveLength(batchLimits.maxFaults);
  });

  test("is found in pieces from where one was left, whatever the lines' lengths", async () => {
    const long = "x".repeat(3 * 1024 * 1024);
    const text = `\ufeff{"a":1}\n${"\n \t\r".repeat(2_000_000)}\n${long}\né`;
    const bytes = new TextEncoder().encode(text);
    let reads = 0;
    const file = {
      read: (start: number, most: number) => {
        reads += 1;
        return fileOf(bytes).read(start, most);
      },
    };
    const found: string[] = [];
    let mostReads = 0;
    for (let cursor: typeof firstLine | undefined = firstLine; cursor !== undefined; ) {
      const before = reads;
      const { places, next } = await findLines(file, cursor, 1);
      // A line that is longer than a look is looked through whole.
      mostReads = Math.max(mostReads, reads - before);
      for (const { number, startByte, byteCount } of places) {
        found.push(`${number} ${new TextDecoder().decode(bytes.subarray(startByte, startByte + byteCount)).length}`);
      }
      cursor = next;
    }
    expect(found).toEqual(["1 7", `2000003 ${long.length}`, "2000004 1"]);
    expect(mostReads).toBeLessThan(80);
  });

  test("a mark of the byte order is one at the file's start only, and what is not UTF-8 is none", async () => {
    expect((await checkLines(`\ufeff${line("a")}`, endpoint)).faults).toEqual([]);
    expect((await checkLines(`${line("b")}\n\ufeff${line("a")}`, endpoint)).faults).toMatchObject([{ line: 2 }]);
    const cut = new TextEncoder().encode(`${line("a")}\n${line("é")}`).filter((byte) => byte !== 0xa9);
    expect(await checkLines(cut, endpoint)).toMatchObject({ faults: [{ code: "invalid_file", line: null }] });
  });

  test("a line that no endpoint would take is refused without being read", async () => {
    const read = fileOf(`${line("a")}\n"${"x".repeat(batchLimits.maxLineBytes)}"`).read;
    let most = 0;
    const file = {
      read: (start: number, count: number) => {
        most = Math.max(most, count);
        return read(start, count);
      },
    };
    const slices = checkSlices(file, endpoint);
    let slice = await slices.next();
    while (slice.done !== true) slice = await slices.next();
    expect(slice.value.faults).toMatchObject([{ code: "invalid_json_line", line: 2 }]);
    expect(most).toBeLessThan(1024 * 1024);
  });

  test("is checked in slices of a MiB", async () => {
    const lines = Array.from({ length: 200 }, (_, i) => line(String(i), { body: { text: "x".repeat(128 * 1024) } }));
    const slices = checkSlices(fileOf(lines.join("\n")), endpoint);
    let count = 0;
    while ((await slices.next()).done !== true) count += 1;
    expect(count).toBeGreaterThanOrEqual(22);
  });
});
