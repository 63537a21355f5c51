/** Bodies with a fault in each of very many places: the first is told, and the others cost nothing. */
import { expect, test } from "bun:test";
import { z } from "zod";
import { ApiError } from "../../../gateway/base/errors.ts";
import { checked } from "../../../gateway/http/transport/schema-check.ts";
import { chatRig, post } from "../chat-rig.ts";

const rig = chatRig();
const times = <Item>(count: number, item: Item): readonly Item[] => Array.from({ length: count }, () => item);
const model = { model: "fake-model", max_tokens: 4 };

interface Refused {
  readonly error: {
    readonly code: string;
    readonly param?: string;
    readonly details?: Readonly<Record<string, string>>;
  };
}

async function refusedParam(path: string, body: unknown): Promise<string | undefined> {
  const response = await post(rig.app, body, { path });
  expect(response.status).toBe(400);
  const { error } = (await response.json()) as Refused;
  return error.param ?? error.details?.param;
}

test("a list is looked at until the first entry that is wrong, in objects and unions too", () => {
  let looked = 0;
  const entry = z.custom(() => {
    looked += 1;
    return false;
  });
  const inner = z.array(z.strictObject({ parts: z.union([z.string(), z.array(entry)]) }));
  const fault = (): unknown => checked(z.strictObject({ list: inner }), { list: times(900, { parts: times(200, 1) }) });
  expect(fault).toThrow(ApiError);
  expect(looked).toBe(1);
});

test.each<[string, string, (parts: readonly unknown[]) => object, object]>([
  ["/v1/chat/completions", "messages", (content) => ({ role: "user", content }), { type: "text" }],
  ["/v1/responses", "input", (content) => ({ role: "user", content }), { type: "input_text" }],
  ["/v1/messages", "messages", (content) => ({ role: "user", content }), { type: "text" }],
])("%s names the first of many parts with a misspelt field", async (path, list, messageOf, part) => {
  const message = messageOf(times(200, { ...part, txt: "a" }));
  const { max_tokens: max, ...rest } = model;
  const base = path === "/v1/responses" ? { ...rest, max_output_tokens: max } : model;
  expect(await refusedParam(path, { ...base, [list]: times(60, message) })).toBe(`${list}[0].content[0].text`);
});
