/** The APIs over the one pipeline: conversations, texts, and their tokens. */
import type { Hono } from "hono";
import { addMessagesRoutes, type MessagesDeps } from "./anthropic/messages.ts";
import { addChatRoutes, type ChatDeps } from "./openai/chat.ts";
import { addTextCompletionRoutes, type TextCompletionDeps } from "./openai/text-completions.ts";
import { addTokenizeRoutes, type TokenizeDeps } from "./openai/tokenize.ts";
import { addResponsesRoutes, type ResponsesDeps } from "./responses/responses.ts";
import type { AppEnv } from "./transport/context.ts";

export interface GenerationDeps extends ChatDeps, MessagesDeps, ResponsesDeps, TextCompletionDeps, TokenizeDeps {
  readonly pipeline: ChatDeps["pipeline"] &
    MessagesDeps["pipeline"] &
    ResponsesDeps["pipeline"] &
    TextCompletionDeps["pipeline"] &
    TokenizeDeps["pipeline"];
}

export function addGenerationRoutes(app: Hono<AppEnv>, deps: GenerationDeps): void {
  addChatRoutes(app, deps);
  addMessagesRoutes(app, deps);
  addResponsesRoutes(app, deps);
  addTextCompletionRoutes(app, deps);
  addTokenizeRoutes(app, deps);
}
