/** GET /v1/models, /v1/models/{id}: the one model that is served. */
import type { Hono } from "hono";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { ApiError } from "../errors.ts";
import { scopes } from "../principal.ts";
import type { AppEnv } from "./auth.ts";
import { declare } from "./route.ts";

export interface ModelsDeps {
  readonly card: () => ModelCard | undefined;
  /** When the server started. */
  readonly createdMs: number;
}

export function addModelRoutes(app: Hono<AppEnv>, deps: ModelsDeps): void {
  const describe = (card: ModelCard) => ({
    id: card.id,
    object: "model",
    created: Math.floor(deps.createdMs / 1000),
    owned_by: "spangate",
    max_model_len: card.contextTokens,
  });
  // Which model there is, is no secret to anyone with a key.
  declare(app, "GET", "/v1/models", scopes, (context) => {
    const card = deps.card();
    return context.json({ object: "list", data: card === undefined ? [] : [describe(card)] });
  });
  declare(app, "GET", "/v1/models/:id", scopes, (context) => {
    const card = deps.card();
    if (card === undefined) throw new ApiError("not_ready");
    if (card.id !== context.req.param("id")) throw new ApiError("model_not_found", { param: "model" });
    return context.json(describe(card));
  });
}
