/** GET /v1/models, /v1/models/{id}: the one model that is served, to Anthropic's clients in their own words. */
import type { Context, Hono } from "hono";
import type { ModelCard } from "../../../worker/contract/model-card.ts";
import { ApiError } from "../../base/errors.ts";
import { modelAnswer, modelsAnswer } from "../transport/answer-schemas.ts";
import type { AppEnv } from "../transport/context.ts";
import { declare } from "../transport/route.ts";

export interface ModelsDeps {
  readonly card: () => ModelCard | undefined;
  /** When the server started. */
  readonly createdMs: number;
}

/** What the routes do, for /openapi.json. */
const about = {
  list: { summary: "The model that is served.", answer: modelsAnswer },
  get: { summary: "Describes a model.", answer: modelAnswer },
};

export function addModelRoutes(app: Hono<AppEnv>, deps: ModelsDeps): void {
  const describe = (card: ModelCard) => ({
    id: card.id,
    object: "model",
    created: Math.floor(deps.createdMs / 1000),
    owned_by: "spangate",
    max_model_len: card.contextTokens,
  });
  const describeInfo = ({ id, contextTokens }: ModelCard) => ({
    type: "model",
    id,
    display_name: id,
    created_at: new Date(deps.createdMs).toISOString(),
    max_input_tokens: contextTokens,
    max_tokens: contextTokens,
    lifecycle: "active",
    ...{ capabilities: null, line: null, deprecated_at: null, retires_at: null },
  });
  // Anyone with a key may know which model is served.
  declare(app, "GET /v1/models", about.list, (context) => {
    const cards = [deps.card()].filter((card) => card !== undefined);
    if (!isAnthropics(context)) return context.json({ object: "list", data: cards.map(describe) });
    const id = cards[0]?.id ?? null;
    return context.json({ data: cards.map(describeInfo), first_id: id, last_id: id, has_more: false });
  });
  declare(app, "GET /v1/models/:id", about.get, (context) => {
    const card = deps.card();
    if (card === undefined) throw new ApiError("not_ready");
    if (card.id !== context.req.param("id")) throw new ApiError("model_not_found", { param: "model" });
    return context.json(isAnthropics(context) ? describeInfo(card) : describe(card));
  });
}

/** Every request of Anthropic's clients names a version. */
const isAnthropics = (context: Context<AppEnv>): boolean => context.req.header("anthropic-version") !== undefined;
