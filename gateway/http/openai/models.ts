/** GET /v1/models, /v1/models/{id}: the model that is served and the one for embeddings; to Anthropic's clients the former, in their own words. */
import type { Context, Hono } from "hono";
import type { EmbedderCard, RerankerCard } from "../../../worker/contract/embedding.ts";
import type { ModelCard } from "../../../worker/contract/model-card.ts";
import { ApiError } from "../../base/errors.ts";
import { modelAnswer, modelsAnswer } from "../transport/answer-schemas.ts";
import type { AppEnv } from "../transport/context.ts";
import { declare } from "../transport/route.ts";

export interface ModelsDeps {
  readonly card: () => ModelCard | undefined;
  /** An embedding model of its own; undefined: embeddings are made by the model that is served. */
  readonly embeddingCard?: (() => Promise<EmbedderCard>) | undefined;
  /** A cross-encoder; undefined: rankings are made by embeddings. */
  readonly rerankerCard?: (() => Promise<RerankerCard | undefined>) | undefined;
  /** When the server started. */
  readonly createdMs: number;
}

/** What the routes do, for /openapi.json. */
const about = {
  list: {
    summary: "The model that is served and, if there are any, those for embeddings and rankings.",
    answer: modelsAnswer,
  },
  // A model of the hub is called `org/name`, and clients write the slash as it is.
  get: { summary: "Describes a model.", answer: modelAnswer, takesSlashes: true },
};

export function addModelRoutes(app: Hono<AppEnv>, deps: ModelsDeps): void {
  const describe = (id: string, maxTokens: number) => ({
    id,
    object: "model",
    created: Math.floor(deps.createdMs / 1000),
    owned_by: "spangate",
    max_model_len: maxTokens,
  });
  const describeAll = async (card: ModelCard | undefined) => {
    const embedder = await deps.embeddingCard?.();
    const reranker = await deps.rerankerCard?.();
    return [
      ...(card === undefined ? [] : [describe(card.id, card.contextTokens)]),
      ...(embedder === undefined ? [] : [describe(embedder.modelName, embedder.maxTokens)]),
      ...(reranker === undefined ? [] : [describe(reranker.modelName, reranker.maxTokens)]),
    ];
  };
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
  declare(app, "GET /v1/models", about.list, async (context) => {
    const card = deps.card();
    if (!isAnthropics(context)) return context.json({ object: "list", data: await describeAll(card) });
    const id = card?.id ?? null;
    const data = card === undefined ? [] : [describeInfo(card)];
    return context.json({ data, first_id: id, last_id: id, has_more: false });
  });
  declare(app, "GET /v1/models/:id", about.get, async (context) => {
    const card = deps.card();
    if (card === undefined) throw new ApiError("not_ready");
    const id = context.req.param("id");
    if (isAnthropics(context) && card.id === id) return context.json(describeInfo(card));
    const found = isAnthropics(context) ? undefined : (await describeAll(card)).find((model) => model.id === id);
    if (found === undefined) throw new ApiError("model_not_found", { param: "model" });
    return context.json(found);
  });
}

/** Every request of Anthropic's clients names a version. */
const isAnthropics = (context: Context<AppEnv>): boolean => context.req.header("anthropic-version") !== undefined;
