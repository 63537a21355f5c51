/** The text side of a model's folder: tokenizer.json, tokenizer_config.json, chat_template.jinja. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";

const addedTokenSchema = z.looseObject({
  id: z.int().nonnegative(),
  content: z.string().min(1),
  special: z.boolean().default(false),
  lstrip: z.boolean().default(false),
  rstrip: z.boolean().default(false),
});

export type AddedToken = z.infer<typeof addedTokenSchema>;

const tokenizerSchema = z.looseObject({
  added_tokens: z.array(addedTokenSchema).default([]),
  model: z.looseObject({ vocab: z.union([z.record(z.string(), z.int()), z.array(z.tuple([z.string(), z.number()]))]) }),
  decoder: z.looseObject({ type: z.string() }).nullish(),
});

export type TokenizerJson = z.infer<typeof tokenizerSchema>;

/** Names of special tokens are strings, or objects with the string in `content`. */
const tokenNameSchema = z
  .union([z.string(), z.looseObject({ content: z.string() }).transform((token) => token.content)])
  .nullish();
const templateSchema = z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]).nullish();

const tokenizerConfigSchema = z.looseObject({
  bos_token: tokenNameSchema,
  eos_token: tokenNameSchema,
  pad_token: tokenNameSchema,
  unk_token: tokenNameSchema,
  chat_template: templateSchema,
});

export interface ModelText {
  readonly tokenizer: TokenizerJson;
  readonly config: z.infer<typeof tokenizerConfigSchema>;
  readonly chatTemplate: string;
  /** The template for conversations with tools, where the model has one of its own for them. */
  readonly toolTemplate?: string | undefined;
}

/**
 * Reads the files; they are small next to the weights, so they are read at once.
 * @throws Error naming the file and what is wrong with it
 */
export function readModelText(modelDir: string): ModelText {
  const tokenizer = readJson(modelDir, "tokenizer.json", tokenizerSchema);
  const config = readJson(modelDir, "tokenizer_config.json", tokenizerConfigSchema);
  const ownFile = readOptional(modelDir, "chat_template.jinja");
  const inConfig = config.chat_template;
  const namedOf = (name: string) =>
    Array.isArray(inConfig) ? inConfig.find((entry) => entry.name === name)?.template : undefined;
  const chatTemplate = ownFile ?? (Array.isArray(inConfig) ? namedOf("default") : inConfig);
  const toolTemplate =
    readOptional(modelDir, join("additional_chat_templates", "tool_use.jinja")) ?? namedOf("tool_use");
  if (chatTemplate === undefined || chatTemplate === null) {
    throw new Error(`${modelDir}: no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)`);
  }
  return { tokenizer, config, chatTemplate, toolTemplate };
}

function readJson<Schema extends z.ZodType>(modelDir: string, name: string, schema: Schema): z.infer<Schema> {
  const text = readOptional(modelDir, name);
  if (text === undefined) throw new Error(`${join(modelDir, name)}: no such file`);
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (cause) {
    throw new Error(`${join(modelDir, name)}: not valid JSON`, { cause });
  }
  const result = schema.safeParse(parsed);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  throw new Error(`${join(modelDir, name)}: ${issue?.path.join(".") ?? ""}: ${issue?.message ?? "not as expected"}`);
}

function readOptional(modelDir: string, name: string): string | undefined {
  try {
    return readFileSync(join(modelDir, name), "utf8");
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return undefined;
    throw error;
  }
}
