/**
 * What the answer has to be: `response_format`, responses' `text.format`, messages' `output_config.format`. Here its size
 * is bounded; the grammar is made of it later, by the pipeline.
 */
import { z } from "zod";
import { limits } from "../../config.ts";
import type { AnswerFormat } from "../../tools/answer-rules.ts";
import { answerLimits } from "../../tools/limits.ts";

/** The same pattern as the OpenAI client's. */
const formatName = z.string().regex(/^[a-zA-Z0-9_-]{1,64}$/, "must be 1 to 64 letters, digits, _ or -");

const boundedSchema = z.unknown().superRefine((schema, context) => {
  const { schemaChars: chars, schemaValues: values } = answerLimits;
  if (!isLargerThan(schema, { chars, values })) return;
  const message = `has more than ${chars} characters as JSON, or more than ${values} values`;
  context.addIssue({ code: "custom", message, input: schema });
});
const jsonSchemaFields = {
  name: formatName,
  description: z.string().max(limits.shortStringChars).optional(),
  schema: boundedSchema.optional(),
  // An answer keeps to the schema in either case.
  strict: z.boolean().nullish(),
};

const schemaFormat = (schema: unknown, param: string): AnswerFormat => ({
  kind: "schema",
  schema: schema ?? {},
  param,
});

/** @returns undefined when the answer may be any text */
export const responseFormat = z
  .discriminatedUnion("type", [
    z.strictObject({ type: z.literal("text") }),
    z.strictObject({ type: z.literal("json_object") }),
    z.strictObject({ type: z.literal("json_schema"), json_schema: z.strictObject(jsonSchemaFields) }),
  ])
  .transform((format): AnswerFormat | undefined => {
    if (format.type === "text") return undefined;
    if (format.type === "json_object") return { kind: "object" };
    return schemaFormat(format.json_schema.schema, "response_format.json_schema.schema");
  });

/** As responses have it: the schema stands beside the type. `shown` is what the response tells of it. */
export const responseTextFormat = z
  .discriminatedUnion("type", [
    z.strictObject({ type: z.literal("text") }),
    z.strictObject({ type: z.literal("json_object") }),
    z.strictObject({ type: z.literal("json_schema"), ...jsonSchemaFields }),
  ])
  .transform((shown): { readonly shown: object; readonly format: AnswerFormat | undefined } => {
    if (shown.type === "text") return { shown, format: undefined };
    if (shown.type === "json_object") return { shown, format: { kind: "object" } };
    return { shown, format: schemaFormat(shown.schema, "text.format.schema") };
  });

/** As Anthropic's messages have it, with no other type. */
export const messageFormat = z
  .strictObject({ type: z.literal("json_schema"), schema: boundedSchema.pipe(z.record(z.string(), z.unknown())) })
  .transform(({ schema }) => schemaFormat(schema, "output_config.format.schema"));

export interface SizeBounds {
  /** Characters of its strings and names, and one more for every value and name. */
  readonly chars: number;
  readonly values: number;
}

/** Tells whether a parsed JSON value is larger than the bounds, without writing it out; looks at no more than they allow. */
export function isLargerThan(value: unknown, { chars, values }: SizeBounds): boolean {
  const open = [value];
  let [charsLeft, valuesLeft] = [chars, values];
  while (open.length > 0) {
    const next = open.pop();
    valuesLeft -= 1;
    charsLeft -= typeof next === "string" ? next.length + 2 : 1;
    if (Array.isArray(next)) {
      if (next.length > valuesLeft) return true;
      open.push(...next);
    } else if (typeof next === "object" && next !== null) {
      for (const [name, field] of Object.entries(next)) {
        charsLeft -= name.length + 4;
        open.push(field);
      }
    }
    if (charsLeft < 0 || valuesLeft < open.length) return true;
  }
  return false;
}
