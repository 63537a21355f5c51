/** POST /v1/embeddings and /v1/rerank: both by the embedder. Shapes of the `openai` package, and of vLLM's rerank. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { EmbedderCard } from "../../../worker/contract/embedding.ts";
import { ApiError } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { limits } from "../../config.ts";
import type { EmbeddingService } from "../../embedding/embedding-service.ts";
import type { EmbedderMeter } from "../../generate/token-metering.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { optional, shortString, tokenIds } from "../transport/fields.ts";
import { declare } from "../transport/route.ts";
import { type Framing, textStreamResponse } from "../transport/text-stream.ts";

export interface EmbeddingDeps {
  readonly embedding: Pick<
    EmbeddingService,
    "card" | "encode" | "embedTokens" | "rerankerCard" | "encodePairs" | "scorePairs"
  >;
  readonly limiter: ConcurrencyLimiter;
  readonly meter: EmbedderMeter;
}

const text = z.string().min(1).max(limits.embeddingTextChars);
const tokenIdList = tokenIds(limits.embeddingTokens);
const inputs = limits.embeddingInputs;

/** The schema tries token ids before texts: a list of ids that is checked as texts makes an error for each id. */
const embeddingsSchema = z.strictObject({
  model: z.string().min(1).max(limits.shortStringChars),
  input: z.union([text, tokenIdList, z.array(text).min(1).max(inputs), z.array(tokenIdList).min(1).max(inputs)], {
    error: `must be a text, a list of token ids, or a list of up to ${inputs} of either, none of them empty`,
  }),
  encoding_format: optional(z.enum(["float", "base64"])),
  dimensions: optional(z.int().min(1)),
  user: optional(shortString),
});

const rerankSchema = z.strictObject({
  model: z.string().min(1).max(limits.shortStringChars),
  query: text,
  documents: z
    .array(z.union([text, z.strictObject({ text }).transform((document) => document.text)]))
    .min(1)
    .max(limits.rerankDocuments),
  top_n: optional(z.int().min(1)),
  return_documents: optional(z.boolean()),
  user: optional(shortString),
});

const unsupportedEmbeddingFields = new Set(["truncate_prompt_tokens", "add_special_tokens", "priority", "task"]);
const unsupportedRerankFields = new Set([
  ...["truncate_prompt_tokens", "max_tokens_per_doc", "max_chunks_per_doc", "priority", "rank_fields", "truncation"],
  ...["return_embeddings", "mm_processor_kwargs", "score_template"],
]);

/** What the routes do, for /openapi.json. */
const about = {
  embeddings: { summary: "Vectors of texts.", body: embeddingsSchema },
  rerank: { summary: "Documents by how well they answer a query, best first.", body: rerankSchema },
};

export function addEmbeddingRoutes(app: Hono<AppEnv>, { embedding, limiter, meter }: EmbeddingDeps): void {
  declare(app, "POST /v1/embeddings", about.embeddings, async (context) => {
    const tenantId = tenantIdOf(context);
    const body = await readJson(context, embeddingsSchema, { unsupported: unsupportedEmbeddingFields });
    using _hold = limiter.enter(tenantId);
    const card = requireModel(await embedding.card(), body.model);
    if (body.dimensions !== undefined && body.dimensions !== card.dimensions) {
      const message = `The model ${card.modelName} has ${card.dimensions} dimensions and cannot be cut to others.`;
      throw new ApiError("invalid_value", { param: "dimensions", message });
    }
    const sequences = await encodeInput(embedding, card, body.input);
    const tokens = tokensOf(sequences);
    const work = { requestId: context.get("requestId"), tenantId, tokens };
    const vectors = await meter(work, () => embedding.embedTokens(sequences, context.req.raw.signal));
    const encode = body.encoding_format === "base64" ? base64Of : (vector: Float32Array) => [...vector];
    return vectorsResponse(context, { vectors, encode, model: card.modelName, tokens });
  });

  declare(app, "POST /v1/rerank", about.rerank, async (context) => {
    const tenantId = tenantIdOf(context);
    const body = await readJson(context, rerankSchema, { unsupported: unsupportedRerankFields });
    using _hold = limiter.enter(tenantId);
    const { tokens, scores } = await rankerFor(embedding, body);
    const work = { requestId: context.get("requestId"), tenantId, tokens };
    const found = await meter(work, () => scores(context.req.raw.signal));
    const scored = found.map((score, index) => ({ index, relevance_score: score }));
    scored.sort((a, b) => b.relevance_score - a.relevance_score || a.index - b.index);
    const results = scored.slice(0, body.top_n).map((result) => ({
      ...result,
      ...(body.return_documents === false ? {} : { document: { text: body.documents[result.index] } }),
    }));
    const id = `rerank-${context.get("requestId")}`;
    return context.json({ id, model: body.model, usage: { total_tokens: tokens }, results });
  });
}

/** Vectors that are written between two turns of the event loop: those of a long list are megabytes of JSON. */
const vectorsPerPiece = 64;
const framing: Framing = { contentType: "application/json", ping: " ", error: () => "" };

interface VectorsAnswer {
  readonly vectors: readonly Float32Array[];
  readonly encode: (vector: Float32Array) => string | readonly number[];
  readonly model: string;
  readonly tokens: number;
}

/** A long list is written piece by piece, as its client reads it. */
async function vectorsResponse(
  context: Context<AppEnv>,
  { vectors, encode, model, tokens }: VectorsAnswer,
): Promise<Response> {
  const itemsOf = (from: number, end: number) =>
    vectors
      .slice(from, end)
      .map((vector, at) => ({ object: "embedding", index: from + at, embedding: encode(vector) }));
  const about = { model, usage: { prompt_tokens: tokens, total_tokens: tokens } };
  if (vectors.length <= vectorsPerPiece) {
    return context.json({ object: "list", data: itemsOf(0, vectors.length), ...about });
  }
  return textStreamResponse(context, framing, async (stream) => {
    for (let at = 0; at < vectors.length && !stream.closed; at += vectorsPerPiece) {
      const items = JSON.stringify(itemsOf(at, at + vectorsPerPiece)).slice(1, -1);
      await stream.write(`${at === 0 ? '{"object":"list","data":[' : ","}${items}`);
      await yieldToOthers();
    }
    await stream.write(`],${JSON.stringify(about).slice(1)}`);
  });
}

/** @throws ApiError model_not_found */
/** @param other a model that would do as well */
function requireModel(card: EmbedderCard, name: string, other?: string): EmbedderCard {
  if (card.modelName !== name) {
    const names = other === undefined ? card.modelName : `${other} and ${card.modelName}`;
    const message = `No such embedding model; this server has ${names}.`;
    throw new ApiError("model_not_found", { param: "model", message });
  }
  return card;
}

type Input = z.output<typeof embeddingsSchema>["input"];

/** Token ids of every input. @throws ApiError naming the input that is too long or has an id that is none */
async function encodeInput(
  embedding: EmbeddingDeps["embedding"],
  card: EmbedderCard,
  input: Input,
): Promise<readonly Int32Array[]> {
  const single = typeof input === "string" || typeof input[0] === "number";
  const items = (single ? [input] : input) as readonly (string | readonly number[])[];
  const sequences: Int32Array[] = [];
  let tokens = 0;
  for (const [index, item] of items.entries()) {
    const param = single ? "input" : `input[${index}]`;
    const sequence = typeof item === "string" ? await embedding.encode(item) : checkedIds(item, card, param);
    if (sequence.length > card.maxTokens) {
      const message = `The text has ${sequence.length} tokens; the model takes ${card.maxTokens}.`;
      throw new ApiError("context_length_exceeded", { param, message });
    }
    tokens += sequence.length;
    refuseTooMany(tokens, "input");
    sequences.push(sequence);
  }
  return sequences;
}

function checkedIds(ids: readonly number[], card: EmbedderCard, param: string): Int32Array {
  const wrong = ids.findIndex((id) => id >= card.vocabSize);
  if (wrong < 0) return Int32Array.from(ids);
  const message = `The model's token ids are below ${card.vocabSize}.`;
  throw new ApiError("invalid_value", { param: `${param}[${wrong}]`, message });
}

interface Ranker {
  readonly tokens: number;
  readonly scores: (signal: AbortSignal) => Promise<readonly number[]>;
}

/** Ranks by the cross-encoder where the request names it, else by the vectors of the embedding model. @throws ApiError */
async function rankerFor(
  embedding: EmbeddingDeps["embedding"],
  { model, query, documents }: z.output<typeof rerankSchema>,
): Promise<Ranker> {
  const reranker = await embedding.rerankerCard();
  if (reranker?.modelName === model) {
    let tokens = 0;
    const pairs = await embedding.encodePairs(query, documents, (count) => {
      tokens += count;
      refuseTooMany(tokens, "documents");
    });
    return { tokens, scores: (signal) => embedding.scorePairs(pairs ?? [], signal) };
  }
  const card = requireModel(await embedding.card(), model, reranker?.modelName);
  const sequences = await encodeRanked(embedding, card, query, documents);
  const scores = async (signal: AbortSignal) => {
    const [first, ...others] = await embedding.embedTokens(sequences, signal);
    return others.map((vector) => relevance(first, vector));
  };
  return { tokens: tokensOf(sequences), scores };
}

/** The query, then the documents; what is too long for the model loses its end. @throws ApiError */
async function encodeRanked(
  embedding: EmbeddingDeps["embedding"],
  card: EmbedderCard,
  query: string,
  documents: readonly string[],
): Promise<readonly Int32Array[]> {
  const sequences = [await embedding.encode(query, "query", card.maxTokens)];
  let tokens = tokensOf(sequences);
  for (const document of documents) {
    const sequence = await embedding.encode(document, "document", card.maxTokens);
    tokens += sequence.length;
    refuseTooMany(tokens, "documents");
    sequences.push(sequence);
  }
  return sequences;
}

const tokensOf = (sequences: readonly Int32Array[]): number => sequences.reduce((sum, { length }) => sum + length, 0);

function refuseTooMany(tokens: number, param: string): void {
  if (tokens <= limits.embeddingTokens) return;
  const message = `The texts of a request may have ${limits.embeddingTokens} tokens together.`;
  throw new ApiError("invalid_value", { param, message });
}

/** Little-endian float32, as the clients read it. */
function base64Of(vector: Float32Array): string {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString("base64");
}

/** Cosine similarity, moved to 0..1. */
function relevance(query: Float32Array | undefined, document: Float32Array): number {
  let cosine = 0;
  for (const [at, value] of document.entries()) cosine += value * (query?.[at] ?? 0);
  return Math.min(1, Math.max(0, (1 + cosine) / 2));
}
