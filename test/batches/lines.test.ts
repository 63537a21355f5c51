import { describe, expect, test } from "bun:test";
import { batchLimits } from "../../gateway/batches/limits.ts";
import { checkLines, readLines } from "../../gateway/batches/lines.ts";

const endpoint = "/v1/chat/completions";
const line = (customId: string, fields: object = {}) =>
  JSON.stringify({ custom_id: customId, method: "POST", url: endpoint, body: { model: "m" }, ...fields });

describe("a batch's file", () => {
  test("its lines, with their numbers; blank ones are none", async () => {
    const text = `${line("a")}\n\n  \r\n${line("b", { body: { n: 1 } })}\r\n`;
    expect(await checkLines(text, endpoint)).toEqual({ faults: [], total: 2 });
    expect([...readLines(text)]).toEqual([
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
});
