/** The APIs over the one pipeline: conversations, texts, and their tokens. */
import type { Hono } from "hono";
import type { AppEnv } from "./auth.ts";
import { addChatRoutes, type ChatDeps } from "./chat.ts";
import { addMessagesRoutes, type MessagesDeps } from "./messages.ts";
import { addResponsesRoutes, type ResponsesDeps } from "./responses.ts";
import { addTextCompletionRoutes, type TextCompletionDeps } from "./text-completions.ts";
import { addTokenizeRoutes, type TokenizeDeps } from "./tokenize.ts";

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
