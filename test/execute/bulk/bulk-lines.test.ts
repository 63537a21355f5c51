import { heapStats } from "bun:jsc";
import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../gateway/base/errors.ts";
import { limits } from "../../../gateway/config.ts";
import { type BulkLine, findBulkLines } from "../../../gateway/execute/bulk/bulk-lines.ts";
import { until } from "../../support/until.ts";

const times = <Item>(count: number, make: (at: number) => Item): Item[] =>
  Array.from({ length: count }, (_, at) => make(at));
const query = { g: { model: "", max_tokens: 1, input: { user: "hello" } } };
const line = (fields: object): string => JSON.stringify(fields);
const errorOf = ({ query: result }: BulkLine) =>
  result instanceof ApiError ? { code: result.code, param: result.param } : undefined;
const { signal } = new AbortController();
async function readBulkLines(...pieces: readonly string[]): Promise<readonly BulkLine[]> {
  const lines = await findBulkLines(pieces, signal);
  return Array.from({ length: lines.length }, (_, index) => lines.at(index));
}
const refusal = (text: string): Promise<unknown> =>
  readBulkLines(text).then(
    () => undefined,
    ({ code, param, message }: ApiError) => ({ code, param, message }),
  );

describe("lines of a bulk body", () => {
  test("ids are the client's, else line numbers; blank lines count but are no queries", async () => {
    const text = `\n${line({ id: "a", query })}\r\n  \n${line({ query })}\n${line({ query: { user: "x" } })}`;
    const lines = await readBulkLines(text);
    expect(lines.map(({ id, index }) => [id, index])).toEqual([
      ["a", 0],
      ["4", 1],
      ["5", 2],
    ]);
    expect(lines.map(({ query: parsed }) => (parsed instanceof Error ? "error" : parsed.kind))).toEqual([
      "generate",
      "generate",
      "message",
    ]);
  });

  test.each([
    ["{", { code: "invalid_json", param: "$" }],
    ["[]", { code: "invalid_value", param: undefined }],
    ["null", { code: "invalid_value", param: undefined }],
    [line({ id: "x" }), { code: "missing_field", param: "query" }],
    [line({ query, model: "m" }), { code: "unknown_field", param: "model" }],
    [line({ id: 7, query }), { code: "invalid_value", param: "id" }],
    [line({ id: "", query }), { code: "invalid_value", param: "id" }],
    [line({ id: "i".repeat(limits.bulkIdChars + 1), query }), { code: "invalid_value", param: "id" }],
    [line({ query: { nothing: 1 } }), { code: "unknown_field", param: "$.nothing" }],
    [line({ query: { g: { ...query.g, temperature: -1 } } }), { code: "invalid_value", param: "$.g.temperature" }],
    ["[".repeat(100_000), { code: "nesting_too_deep", param: "$" }],
  ])("what is wrong with one line is its own affair: %p", async (bad, expected) => {
    const lines = await readBulkLines(`${line({ id: "before", query })}\n${bad}\n${line({ id: "after", query })}`);
    expect(lines.map(errorOf)).toEqual([undefined, expected as never, undefined]);
  });

  test("a line whose query is wrong keeps its id", async () => {
    const longest = "i".repeat(limits.bulkIdChars);
    const [first, second] = await readBulkLines(
      `${line({ id: "mine", query: 5 })}\n${line({ id: longest, query: 5 })}`,
    );
    expect([first?.id, second?.id]).toEqual(["mine", longest]);
  });

  test("an id twice is refused, with both lines; a line number is an id too", async () => {
    const twice = `${line({ id: "a", query })}\n\n${line({ id: "a", query })}`;
    expect(await refusal(twice)).toEqual({
      code: "invalid_value",
      param: "[3].id",
      message: 'Line 3: the id "a" is that of line 1 already.',
    });
    expect(await refusal(`${line({ id: "2", query })}\n${line({ query })}`)).toMatchObject({ param: "[2].id" });
  });

  test("the body may come in pieces that are cut anywhere", async () => {
    const text = `\n${line({ id: "a", query })}\r\n  \n${line({ query })}\n${line({ query: { user: "x" } })}\n`;
    const whole = await readBulkLines(text);
    expect(whole.map(({ id }) => id)).toEqual(["a", "4", "5"]);
    for (let at = 0; at <= text.length; at++) {
      expect(await readBulkLines(text.slice(0, at), text.slice(at))).toEqual(whole);
    }
    expect(await readBulkLines(...text)).toEqual(whole);
  });

  test("nothing is kept of a line but its text", async () => {
    const text = times(limits.bulkLines, (at) => line({ id: `${at}`, query })).join("\n");
    const objects = (): number => {
      Bun.gc(true);
      return heapStats().objectCount;
    };
    const before = objects();
    const lines = await findBulkLines([text], signal);
    // A place on the stack that nothing has used since may still lead to what is not needed any more: for a moment.
    await until(() => objects() - before < 1.1 * limits.bulkLines, "what was read of the lines is collected");
    expect(lines.at(limits.bulkLines - 1)).toMatchObject({ id: `${limits.bulkLines - 1}` });
  });

  test("no query, and too many", async () => {
    expect(await refusal("")).toMatchObject({ code: "invalid_request" });
    expect(await refusal("\n \n".repeat(50_000))).toMatchObject({ code: "invalid_request" });
    const short = line({ query: { user: "" } });
    expect(await readBulkLines(`${short}\n`.repeat(limits.bulkLines))).toHaveLength(limits.bulkLines);
    expect(await refusal(`${short}\n`.repeat(limits.bulkLines + 1))).toMatchObject({ code: "invalid_request" });
  });
});
