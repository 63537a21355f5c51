/** POST /tokenize and /detokenize, as vLLM has them. */
import type { Hono } from "hono";
import { z } from "zod";
import type { TenantId } from "../../../db/ids.ts";
import { limits as contractLimits } from "../../../worker/contract/limits.ts";
import { ApiError } from "../../base/errors.ts";
import { Pace } from "../../base/pace.ts";
import type { Pipeline } from "../../generate/pipeline.ts";
import type { PromptRequest } from "../../generate/requests.ts";
import type { TokenBytes } from "../../text/detokenizer.ts";
import { noWishes, readThinking } from "../generation/thinking.ts";
import { checkTools, toolUseOf } from "../generation/tool-schemas.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { optional, tokenIds } from "../transport/fields.ts";
import { declare } from "../transport/route.ts";
import { chatFields, checkPromptEnd } from "./chat-schema.ts";
import { chatToolsAsked } from "./chat-tools.ts";

export interface TokenizeDeps {
  readonly pipeline: Pick<
    Pipeline,
    "encodeText" | "promptTokenIds" | "modelCard" | "unreadVariables" | "marksThinking" | "showsThinking"
  >;
  readonly tokenBytes: TokenBytes;
  readonly limiter: ConcurrencyLimiter;
}

const tokenizeSchema = z
  .strictObject({
    model: optional(chatFields.model),
    prompt: optional(z.string()),
    messages: optional(chatFields.messages),
    tools: chatFields.tools,
    add_special_tokens: optional(z.boolean()),
    continue_final_message: chatFields.continue_final_message,
    add_generation_prompt: chatFields.add_generation_prompt,
    chat_template_kwargs: chatFields.chat_template_kwargs,
    return_token_strs: optional(z.boolean()),
  })
  .superRefine((body, context) => {
    const refuse = (path: string, message: string): void => {
      context.addIssue({ code: "custom", path: [path], message, input: body });
    };
    if (body.prompt === undefined && body.messages === undefined) refuse("prompt", "is missing, and so is messages");
    if (body.prompt !== undefined && body.messages !== undefined) refuse("prompt", "cannot stand beside messages");
    checkTools(chatToolsAsked(toolsIn(body)), (path, text) => {
      context.addIssue({ code: "custom", path: [...path], message: text, input: body });
    });
    if (body.messages === undefined && body.tools !== undefined) refuse("tools", "are shown beside messages only");
    if (body.messages === undefined) return;
    if (body.add_special_tokens !== undefined) refuse("add_special_tokens", "is the template's affair with messages");
    checkPromptEnd({ ...body, messages: body.messages }, ([field], text) => refuse(String(field), text));
  });
type TokenizeBody = z.output<typeof tokenizeSchema>;

const detokenizeSchema = z.strictObject({
  model: optional(chatFields.model),
  tokens: tokenIds(contractLimits.maxRequestTokens, 0),
});

const unsupportedFields: ReadonlySet<string> = new Set([...["chat_template", "mm_processor_kwargs"]]);

/** What the route does, for /openapi.json. */
const about = { summary: "Token ids of a text, or of a conversation's whole prompt.", body: tokenizeSchema };

export function addTokenizeRoutes(app: Hono<AppEnv>, deps: TokenizeDeps): void {
  const { pipeline, tokenBytes, limiter } = deps;
  declare(app, "POST /tokenize", about, async (context) => {
    const tenantId = tenantIdOf(context);
    const body = await readJson(context, tokenizeSchema, { unsupported: unsupportedFields });
    const card = pipeline.modelCard(body.model);
    using _hold = limiter.enter(tenantId);
    const wishes = { ...noWishes, variables: body.chat_template_kwargs ?? {} };
    const { variables } = readThinking(context, pipeline, card.id, wishes);
    const tokens = await tokensOf(pipeline, tenantId, { model: card.id, variables }, body);
    const names = body.return_token_strs === true ? await namesOf(tokenBytes, tokens) : null;
    return context.json({ count: tokens.length, max_model_len: card.contextTokens, tokens, token_strs: names });
  });

  declare(app, "POST /detokenize", { summary: "The text of token ids.", body: detokenizeSchema }, async (context) => {
    const tenantId = tenantIdOf(context);
    const body = await readJson(context, detokenizeSchema, { unsupported: unsupportedFields });
    const { vocabSize } = pipeline.modelCard(body.model);
    const unknown = body.tokens.findIndex((id) => id >= vocabSize);
    if (unknown >= 0) {
      const param = `tokens[${unknown}]`;
      throw new ApiError("invalid_value", { message: `'${param}' is a token that the model does not have.`, param });
    }
    using _hold = limiter.enter(tenantId);
    return context.json({ prompt: await textOf(tokenBytes, body.tokens) });
  });
}

async function tokensOf(
  pipeline: TokenizeDeps["pipeline"],
  tenantId: TenantId,
  facts: Pick<PromptRequest, "model" | "variables">,
  { prompt, messages, tools, add_special_tokens: opening = true, continue_final_message: continues }: TokenizeBody,
): Promise<readonly number[]> {
  if (messages === undefined) return [...(await pipeline.encodeText(tenantId, prompt ?? "", opening))];
  const nothingElse = { fileSearch: undefined, cacheSalt: undefined, attention: "span" } as const;
  const shown = toolUseOf(chatToolsAsked(toolsIn({ tools })));
  const asked = {
    ...facts,
    messages: messages.lowered,
    documents: messages.files,
    continuesLast: continues ?? false,
    tools: shown,
  };
  return await pipeline.promptTokenIds(tenantId, { ...asked, ...nothingElse });
}

const toolsIn = ({ tools }: Pick<TokenizeBody, "tools">) => {
  return { tools, tool_choice: undefined, parallel_tool_calls: undefined };
};

const tokensPerPiece = 1_024;

/** A long list in pieces, between which other work runs. */
async function* pieces(tokens: readonly number[]): AsyncGenerator<readonly number[]> {
  const pace = new Pace();
  for (let at = 0; at < tokens.length; at += tokensPerPiece) {
    yield tokens.slice(at, at + tokensPerPiece);
    await pace.breathe();
  }
}

async function namesOf(tokenBytes: TokenBytes, tokens: readonly number[]): Promise<readonly string[]> {
  const names: string[] = [];
  for await (const piece of pieces(tokens)) names.push(...piece.map((id) => tokenBytes.describe(id).token));
  return names;
}

/** Special tokens by their names, all others by their bytes: a character may be spread over several. */
async function textOf(tokenBytes: TokenBytes, tokens: readonly number[]): Promise<string> {
  const encoder = new TextEncoder();
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  let text = "";
  for await (const piece of pieces(tokens)) {
    const bytes = piece.map((id) => {
      const own = tokenBytes.of(id);
      return own.length > 0 ? own : encoder.encode(tokenBytes.describe(id).token);
    });
    text += decoder.decode(Buffer.concat(bytes), { stream: true });
  }
  text += decoder.decode();
  return tokenBytes.stripsLeadingSpace && text.startsWith(" ") ? text.slice(1) : text;
}
