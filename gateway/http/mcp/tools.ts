/** The tools that MCP clients find: a search of vector stores, and a question that the model answers from them. */
import { type CallToolResult, McpServer } from "@modelcontextprotocol/server";
import { z } from "zod";
import type { TenantId } from "../../../db/ids.ts";
import { version } from "../../../package.json";
import { ApiError, toApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { limits } from "../../config.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import type { RetrievedFragment } from "../../corpus/search/retrieve.ts";
import type { Pipeline } from "../../generate/pipeline.ts";
import type { ChatRequest } from "../../generate/requests.ts";
import type { Scope } from "../../tenant/principal.ts";
import { collect, emptyChoices, finishReasonOf } from "../generation/choice.ts";
import { citationBodies, citationsOf } from "../generation/citations.ts";
import { generateParams } from "../generation/sampling.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { logFailure } from "../middleware/every-request.ts";

export interface ToolDeps {
  readonly corpus: Pick<Corpus, "corpora" | "retrieve">;
  readonly pipeline: Pick<Pipeline, "chat" | "modelCard">;
  readonly limiter: ConcurrencyLimiter;
  /** Turns errors of other layers into errors with a code; gives undefined for any other. */
  readonly translateError: (thrown: unknown) => ApiError | undefined;
  readonly log: Log;
}

/** Who calls, and what the call is bound to. */
export interface ToolCaller {
  readonly requestId: string;
  readonly tenantId: TenantId;
  readonly scopes: ReadonlySet<Scope>;
  readonly signal: AbortSignal;
  /** The vector stores to search where a call names none; undefined: the tenant's newest. */
  readonly stores: readonly string[] | undefined;
}

const stores = z
  .array(z.string().min(1).max(limits.shortStringChars))
  .min(1)
  .max(limits.vectorStoresPerSearch)
  .optional()
  .describe("Ids of the vector stores to search (vs_…). Leave it out to search those that this connection is for.");
const maxResults = z
  .int()
  .min(1)
  .max(corpusLimits.maxSearchResults)
  .default(corpusLimits.defaultSearchResults)
  .describe("The most passages to read.");
const searchInput = z.strictObject({
  query: z.string().min(1).max(corpusLimits.maxQueryChars).describe("What to look for: a question or words."),
  vector_store_ids: stores,
  max_results: maxResults,
});
const askInput = z.strictObject({
  question: z.string().min(1).max(corpusLimits.maxQueryChars).describe("One question, in words of the documents."),
  vector_store_ids: stores,
  max_results: maxResults,
  max_tokens: z.int().min(1).max(limits.mcpAnswerTokens).default(512).describe("The longest answer, in tokens."),
});

const passage = z.object({
  file_id: z.string(),
  filename: z.string(),
  vector_store_id: z.string(),
  score: z.number().min(0).max(1),
  text: z.string(),
});
const citation = z.looseObject({ quote: z.string(), answer_range: z.array(z.int()) });
const searchOutput = z.object({ passages: z.array(passage).describe("Best first.") });
const askOutput = z.object({
  answer: z.string(),
  finish_reason: z.enum(["stop", "length"]).describe("length: the answer was cut at max_tokens."),
  citations: z.array(citation).describe("For a sentence of the answer, the sentence of a passage that it rests on."),
  sources: z.array(passage).describe("The passages that the model answered from, best first."),
});

/** Clients may call these without asking the user: they change nothing, and reach nothing outside this server. */
const annotations = { readOnlyHint: true, openWorldHint: false };

/** A server for one message, with the tools that the caller's key has the scopes for. */
export function makeServer(deps: ToolDeps, caller: ToolCaller): McpServer {
  const server = new McpServer({ name: "spangate", version }, { capabilities: { tools: { listChanged: false } } });
  if (caller.scopes.has("corpus:read")) {
    const description = "Finds passages in the user's own documents. Returns them with file names, best first.";
    const about = { title: "Search documents", description, inputSchema: searchInput, outputSchema: searchOutput };
    server.registerTool("search", { ...about, annotations }, (input) =>
      answered(deps, caller, () => search(deps, caller, input)),
    );
  }
  if (caller.scopes.has("inference")) {
    const description =
      "Answers a question from the user's own documents, with the passages that it was answered from. The model that answers knows nothing of this conversation.";
    const about = { title: "Ask documents", description, inputSchema: askInput, outputSchema: askOutput };
    server.registerTool("ask", { ...about, annotations }, (input) =>
      answered(deps, caller, () => ask(deps, caller, input)),
    );
  }
  return server;
}

async function search(
  { corpus }: ToolDeps,
  caller: ToolCaller,
  input: z.output<typeof searchInput>,
): Promise<CallToolResult> {
  const { query, max_results: wanted } = input;
  const vectorStoreIds = storesOf(corpus, caller, input.vector_store_ids);
  const { tenantId, signal } = caller;
  const searched = { tenantId, vectorStoreIds, query, maxResults: wanted };
  const found = await corpus.retrieve({ ...searched, signal, isAhead: true });
  const text = found.length === 0 ? "Nothing was found." : passagesText(found);
  return { content: [{ type: "text", text }], structuredContent: { passages: found.map(passageOf) } };
}

async function ask(
  { corpus, pipeline }: ToolDeps,
  { requestId, tenantId, signal, ...caller }: ToolCaller,
  input: z.output<typeof askInput>,
): Promise<CallToolResult> {
  const vectorStoreIds = storesOf(corpus, { tenantId, ...caller }, input.vector_store_ids);
  const request: ChatRequest = {
    model: pipeline.modelCard(undefined).id,
    messages: [{ role: "user", content: input.question }],
    documents: [],
    fileSearch: { vectorStoreIds, maxResults: input.max_results },
    maxTokens: input.max_tokens,
    params: generateParams({ temperature: 0 }),
    format: undefined,
    choiceCount: 1,
    stops: [],
    cacheSalt: undefined,
    cacheKey: undefined,
    reuse: true,
    attention: "span",
    diagnose: false,
  };
  const run = await pipeline.chat({ requestId, tenantId, signal, restartable: true, request });
  const [choice] = emptyChoices(1);
  for await (const [, event] of run.events) collect(choice, event);
  const answer = choice?.text.trim() ?? "";
  const sources = run.retrieved.length === 0 ? "" : `\n\nSources:\n\n${passagesText(run.retrieved)}`;
  return {
    content: [{ type: "text", text: answer + sources }],
    structuredContent: {
      answer,
      finish_reason: finishReasonOf(choice?.end?.reason),
      citations: citationBodies(await citationsOf(run, answer), { isBatchLine: false }),
      sources: run.retrieved.map(passageOf),
    },
  };
}

/** Runs a tool in one of the tenant's places. What fails is the tool's result, in the words that every route has for it. */
async function answered(
  { limiter, translateError, log }: ToolDeps,
  { tenantId, requestId, signal }: ToolCaller,
  run: () => Promise<CallToolResult>,
): Promise<CallToolResult> {
  try {
    using _hold = limiter.enter(tenantId);
    return await run();
  } catch (thrown) {
    const error = translateError(thrown) ?? toApiError(thrown);
    if (error.status >= 500 && !signal.aborted) logFailure(log, error, requestId);
    return { isError: true, content: [{ type: "text", text: `${error.code}: ${error.message}` }] };
  }
}

/** @throws ApiError not_found when there is nothing to search */
function storesOf(
  corpus: ToolDeps["corpus"],
  { tenantId, stores: own }: Pick<ToolCaller, "tenantId" | "stores">,
  named: readonly string[] | undefined,
): readonly string[] {
  const given = named ?? own;
  if (given !== undefined) return given;
  const { rows } = corpus.corpora.list(tenantId, { limit: corpusLimits.maxCorporaPerSearch, order: "desc" });
  if (rows.length > 0) return rows.map(({ row }) => row.id);
  throw new ApiError("not_found", { message: "There is no vector store yet. Make one with 'spangate ingest'." });
}

function passageOf({ fileId, filename, corpusId, score, text }: RetrievedFragment): z.output<typeof passage> {
  return { file_id: fileId, filename, vector_store_id: corpusId, score, text };
}

const passagesText = (fragments: readonly RetrievedFragment[]): string =>
  fragments.map(({ filename, text }, index) => `[${index + 1}] ${filename}\n${text}`).join("\n\n");
