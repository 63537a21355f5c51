/** The body of a batch of messages, in pieces of any size. */
import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../gateway/base/errors.ts";
import { batchLimits } from "../../../gateway/batches/limits.ts";
import { MessageRequests } from "../../../gateway/http/anthropic/message-requests.ts";

function inPieces(bytes: Uint8Array, pieceBytes: number): ReadableStream<Uint8Array> {
  let at = 0;
  return new ReadableStream({
    pull: (controller) => {
      if (at < bytes.length) controller.enqueue(bytes.slice(at, at + pieceBytes));
      else controller.close();
      at += pieceBytes;
    },
  });
}

const bodyOf = (bytes: Uint8Array, pieceBytes: number) => ({
  req: { raw: new Request("http://a", { method: "POST", body: inPieces(bytes, pieceBytes) }) },
});

async function linesOf(body: string, pieceBytes: number): Promise<{ readonly lines: string[]; readonly most: number }> {
  let [text, most] = ["", 0];
  await new MessageRequests().read(bodyOf(Buffer.from(body), pieceBytes), async (lines) => {
    most = Math.max(most, lines.byteLength);
    text += new TextDecoder().decode(lines);
  });
  return { lines: text.trimEnd().split("\n"), most };
}

const refusal = (body: string, pieceBytes = 5): Promise<unknown> =>
  linesOf(body, pieceBytes).then(
    () => undefined,
    (error: unknown) => (error instanceof ApiError ? [error.code, error.param] : error),
  );

describe("requests of a batch of messages", () => {
  const texts = ['\u00e9"\\', "]},{", '"requests": [', "\u{1f600} plain"];
  const requests = texts.map((text, i) => ({ custom_id: `${i}`, params: { text, list: [[], {}, [1, { a: "}" }]] } }));

  test.each([1, 2, 3, 7, 64, 4_096])("are the same lines in pieces of %d bytes", async (pieceBytes) => {
    const { lines } = await linesOf(JSON.stringify({ requests }, null, 1), pieceBytes);
    const expected = requests.map(({ custom_id, params: body }) => {
      return { custom_id, method: "POST", url: "/v1/messages", body };
    });
    expect(lines.map((line) => JSON.parse(line) as unknown)).toEqual(expected);
  });

  test("are given as they come, never many at once", async () => {
    const many = Array.from({ length: 2_000 }, (_, i) => ({ custom_id: `${i}`, params: { text: "x".repeat(100) } }));
    const { lines, most } = await linesOf(JSON.stringify({ requests: many }), 1_024);
    expect(lines).toHaveLength(2_000);
    expect(most).toBeLessThan(4_096);
  });

  test.each([
    ['{"requests": [{"custom_id": "a", "params": {}}]', ["invalid_json", undefined]],
    ['{"requests": [{"custom_id": "a", "params": {}}]}{}', ["invalid_json", undefined]],
    ['{"requests": [{"custom_id": "a", "params": {}},]}', ["invalid_json", undefined]],
    ['{"requests": [,]}', ["invalid_json", undefined]],
    ['{"requests": [{"custom_id": "a", "params": {]}}', ["invalid_json", undefined]],
    ["[]", ["invalid_value", undefined]],
    ['{"requests": []}', ["invalid_value", "requests"]],
    ['{"x": [1], "requests": [{"custom_id": "a", "params": {}}]}', ["unknown_field", "x"]],
    [
      '{"requests": [{"custom_id": "a", "params": {"__proto__": {}}}]}',
      ["unknown_field", "requests[0].params.__proto__"],
    ],
    ['{"requests": [{"custom_id": "a", "params": {"a": "\\ud800"}}]}', ["invalid_value", "requests[0].params.a"]],
    [`{"x": "${"y".repeat(70_000)}", "requests": []}`, ["invalid_request", undefined]],
    [`{"requests": [${"[".repeat(40)}`, ["nesting_too_deep", undefined]],
  ])("that are wrong are refused: %s", async (body, expected) => {
    expect(await refusal(body)).toEqual(expected as never);
    expect(await refusal(body, 1_000_000)).toEqual(expected as never);
  });

  const one = { custom_id: "a", params: {} };
  const tooMany = Array.from({ length: batchLimits.maxLines + 1 }, (_, i) => ({ ...one, custom_id: `${i}` }));
  test.each([
    [{}, "requests"],
    [{ requests: 5 }, "requests"],
    [{ requests: tooMany }, "requests"],
    [{ requests: [one, null] }, "requests[1]"],
    [{ requests: [{ params: {} }] }, "requests[0].custom_id"],
    [{ requests: [{ ...one, custom_id: "a b" }] }, "requests[0].custom_id"],
    [{ requests: [{ ...one, custom_id: "a".repeat(65) }] }, "requests[0].custom_id"],
    [{ requests: [one, { ...one, custom_id: "b" }, one] }, "requests[2].custom_id"],
    [{ requests: [{ custom_id: "a" }] }, "requests[0].params"],
    [{ requests: [{ ...one, params: [] }] }, "requests[0].params"],
    [{ requests: [{ ...one, params: { stream: true } }] }, "requests[0].params.stream"],
    [{ requests: [{ ...one, method: "POST" }] }, "requests[0].method"],
    [{ requests: [one], metadata: {} }, "metadata"],
  ])("name the field that is wrong, case %#", async (body, param) => {
    expect(await refusal(JSON.stringify(body), 65_536)).toMatchObject([expect.any(String), param]);
  });
});
