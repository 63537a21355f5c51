/** What the answer has to be, as a grammar: `response_format`, responses' `text.format`, messages' `output_config.format`. */
import { z } from "zod";
import type { ByteGrammar } from "../../worker/contract/grammar.ts";
import { limits } from "../config.ts";
import { anyObjectGrammar, schemaGrammar } from "../grammar/json-schema.ts";
import { SchemaFault } from "../grammar/schema-parts.ts";

/** As the OpenAI client's. */
const formatName = z.string().regex(/^[a-zA-Z0-9_-]{1,64}$/, "must be 1 to 64 letters, digits, _ or -");

const jsonSchemaFields = {
  name: formatName,
  description: z.string().max(limits.shortStringChars).optional(),
  schema: z.unknown().optional(),
  // An answer keeps to the schema in either case.
  strict: z.boolean().nullish(),
};
const jsonSchema = z.strictObject(jsonSchemaFields).transform(({ schema }, context) => compiled(schema ?? {}, context));

function compiled(schema: unknown, context: z.RefinementCtx): ByteGrammar {
  try {
    return schemaGrammar(schema);
  } catch (error) {
    if (!(error instanceof SchemaFault)) throw error;
    context.addIssue({ code: "custom", path: ["schema", ...error.path], message: error.message, input: schema });
    return z.NEVER;
  }
}

/** Gives the grammar of the answer; undefined: any text. */
export const responseFormat = z
  .discriminatedUnion("type", [
    z.strictObject({ type: z.literal("text") }),
    z.strictObject({ type: z.literal("json_object") }),
    z.strictObject({ type: z.literal("json_schema"), json_schema: jsonSchema }),
  ])
  .transform((format): ByteGrammar | undefined => {
    if (format.type === "text") return undefined;
    return format.type === "json_object" ? anyObjectGrammar() : format.json_schema;
  });

/** As responses have it: the schema stands beside the type. `shown` is what the response tells of it. */
export const responseTextFormat = z
  .discriminatedUnion("type", [
    z.strictObject({ type: z.literal("text") }),
    z.strictObject({ type: z.literal("json_object") }),
    z.strictObject({ type: z.literal("json_schema"), ...jsonSchemaFields }),
  ])
  .transform((shown, context): { readonly shown: object; readonly grammar: ByteGrammar | undefined } => {
    if (shown.type === "text") return { shown, grammar: undefined };
    return {
      shown,
      grammar: shown.type === "json_object" ? anyObjectGrammar() : compiled(shown.schema ?? {}, context),
    };
  });

/** As Anthropic's messages have it, with no other type. */
export const messageFormat = z
  .strictObject({ type: z.literal("json_schema"), schema: z.record(z.string(), z.unknown()) })
  .transform(({ schema }, context) => compiled(schema, context));
