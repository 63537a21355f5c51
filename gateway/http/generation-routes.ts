/** The APIs that answer a conversation, over one pipeline. */
import type { Hono } from "hono";
import type { AppEnv } from "./auth.ts";
import { addChatRoutes, type ChatDeps } from "./chat.ts";
import { addMessagesRoutes, type MessagesDeps } from "./messages.ts";
import { addResponsesRoutes, type ResponsesDeps } from "./responses.ts";

export type GenerationDeps = ChatDeps & MessagesDeps & ResponsesDeps;

export function addGenerationRoutes(app: Hono<AppEnv>, deps: GenerationDeps): void {
  addChatRoutes(app, deps);
  addMessagesRoutes(app, deps);
  addResponsesRoutes(app, deps);
}
