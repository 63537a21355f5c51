/** Schemas that many bodies share. */
import { expect, test } from "bun:test";
import { z } from "zod";
import { chatFields } from "../../../gateway/http/openai/chat-schema.ts";
import { mostlyUnset, optional } from "../../../gateway/http/transport/fields.ts";
import { fc } from "../../support/fast-check.ts";

const firstFaultOnly = { abortEarly: true } as object;

/** What a schema makes of a value, in a form that can be compared. */
function outcome(schema: z.ZodType, value: unknown) {
  const result = schema.safeParse(value, firstFaultOnly);
  if (result.success) return { data: result.data };
  return { issues: result.error.issues.map(({ code, path, message }) => ({ code, path, message })) };
}

/** Mostly one of the values that a field takes, sometimes one that it does not. */
const mostly = (taken: unknown[], ...others: unknown[]) =>
  fc.oneof({ weight: 12, arbitrary: fc.constantFrom(...taken) }, { weight: 1, arbitrary: fc.constantFrom(...others) });

const fields = {
  model: mostly(["demo"], "", 3),
  messages: mostly([[{ role: "user", content: "hello" }]], [], "hello", [{ role: "nobody" }]),
  temperature: mostly([0, 1, null], -1, "warm"),
  max_tokens: mostly([1, null], 0),
  n: mostly([1, null], 1.5),
  stream: mostly([true, false], "yes"),
  stop: mostly(["end", ["a", "b"], null], [1]),
  documents: mostly([[{ text: "a document" }], null], [{ words: "none" }]),
  metadata: mostly([{ a: "b" }], { a: 1 }),
};
/** Bodies of chats: with some of the fields, and sometimes with one that nobody knows. */
const body = fc
  .tuple(fc.record(fields, { requiredKeys: [] }), mostly([{}], { unknown_to_all: 1 }))
  .map(([some, other]) => ({ ...some, ...(other as object) }));

test("a schema of mostly unset fields reads and refuses what the plain one does, whichever fields are set", () => {
  const checked = () =>
    z.strictObject(chatFields).superRefine((fields, context) => {
      if (fields.n === 1 && fields.stream === true)
        context.addIssue({ code: "custom", path: ["n"], message: "together" });
    });
  const [plain, made] = [checked(), mostlyUnset(checked())];
  let read = 0;
  const withRequired = body.map((fields) => ({ model: "demo", messages: [{ role: "user", content: "a" }], ...fields }));
  const any = fc.oneof(body, withRequired, fc.constantFrom(null, undefined, 7, "text", [], [{}]));
  fc.assert(
    fc.property(any, (value) => {
      const expected = outcome(plain, structuredClone(value));
      expect(outcome(made, structuredClone(value))).toEqual(expected);
      if ("data" in expected) read += 1;
    }),
    { numRuns: 3_000 },
  );
  expect(read).toBeGreaterThan(300);
});

test("fields that mean something when they are not set are read all the same", () => {
  const fields = {
    needed: z.string(),
    counted: optional(z.int()).transform((count) => count ?? 16),
    defaulted: z.boolean().default(true),
    anything: z.unknown(),
    unset: optional(z.string()),
  };
  const [plain, made] = [z.strictObject(fields), mostlyUnset(z.strictObject(fields))];
  for (const value of [
    {},
    { needed: "a" },
    { needed: "a", anything: 1 },
    { needed: "a", anything: 1, counted: null },
  ]) {
    expect(outcome(made, value)).toEqual(outcome(plain, value));
  }
  expect(outcome(made, { needed: "a", anything: 1 })).toEqual({
    data: { needed: "a", anything: 1, counted: 16, defaulted: true },
  });
});

test("more sets of fields than are remembered are read too", () => {
  const names = Array.from({ length: 8 }, (_, at) => `field_${at}`);
  const schema = mostlyUnset(z.strictObject(Object.fromEntries(names.map((name) => [name, optional(z.int())]))));
  for (let set = 0; set < 256; set++) {
    const value = Object.fromEntries(names.flatMap((name, at) => (((set >> at) & 1) === 1 ? [[name, at]] : [])));
    expect(outcome(schema, value)).toEqual({ data: value });
  }
});
