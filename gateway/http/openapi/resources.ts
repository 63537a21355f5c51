/** What routes are about: the tags of /openapi.json, and a page of /docs each. Administration comes last. */

export interface Resource {
  /** The tag, and the end of the page's address. */
  readonly slug: string;
  readonly title: string;
  readonly about: string;
  /** Beginnings of its routes' paths, `{}` standing for a parameter; of several that fit the longest counts. */
  readonly paths: readonly string[];
}

const resource = (slug: string, title: string, about: string, ...paths: string[]): Resource => {
  return { slug, title, about, paths };
};

export const resources: readonly Resource[] = [
  resource(
    "chat",
    "Chat completions",
    "Answers to conversations over documents, as OpenAI's clients ask for them.",
    "/v1/chat",
  ),
  resource("responses", "Responses", "OpenAI's newer API: typed items, stored conversations.", "/v1/responses"),
  resource("messages", "Messages", "Anthropic's API, its batches included.", "/v1/messages"),
  resource(
    "completions",
    "Text completions",
    "Plain text and token ids, without a chat template.",
    ...["/v1/completions", "/tokenize", "/detokenize"],
  ),
  resource("query", "Span queries", "Trees in place of prompts: run, prepared, explained, in bulk.", "/v1/query"),
  resource("mcp", "MCP", "Tools for clients of the Model Context Protocol.", "/mcp"),
  resource("files", "Files", "What is uploaded, whole or in parts.", "/v1/files", "/v1/uploads"),
  resource("vector_stores", "Vector stores", "Files that are searched together.", "/v1/vector_stores"),
  resource(
    "embeddings",
    "Embeddings and rankings",
    "Vectors of texts, and texts by how well they answer.",
    ...["/v1/embeddings", "/v1/rerank"],
  ),
  resource("batches", "Batches", "Files of requests that run in the background.", "/v1/batches"),
  resource("models", "Models", "The model that this server runs.", "/v1/models"),
  resource("operation", "Operation", "Whether it runs, metrics, and this description.", "/"),
  resource(
    "prepare",
    "Preparing and pinning",
    "KV that is computed ahead of questions, and what is known of fragments.",
    ...["/admin/v1/vector_stores/{}/prepare", "/admin/v1/vector_stores/{}/fragments"],
    ...["/admin/v1/jobs", "/admin/v1/fragments"],
  ),
  resource(
    "sources",
    "Sources",
    "Web sites and buckets that the server reads into vector stores.",
    ...["/admin/v1/sources", "/admin/v1/vector_stores/{}/sources"],
  ),
  resource(
    "grants",
    "Grants and salts of vector stores",
    "Who else may read a vector store, and making its KV unfindable.",
    "/admin/v1/vector_stores",
  ),
  resource("tenants", "Tenants", "Tenants, their API keys and limits.", "/admin/v1/tenants"),
  resource("keys", "API keys", "Revoking keys, and what one may take.", "/admin/v1/keys"),
  resource("usage", "Usage and audit log", "Tokens by day, and who did what.", "/admin/v1/usage", "/admin/v1/audit"),
  resource(
    "traces",
    "Traces and statistics",
    "What the last requests took, stage by stage, and times and tokens over the day.",
    ...["/admin/v1/traces", "/admin/v1/stats"],
  ),
  resource("console", "The console", "The page for browsers, and signing in to it.", "/console", "/admin/v1/session"),
  resource("admin", "Cache and workers", "Whose KV lies where, and what workers do.", "/admin/v1"),
];

/** The tag of a route. @param path as `/v1/files/:file_id` */
export function resourceOf(path: string): string {
  const plain = path.replace(/:\w+(?:\{[^}]*\})?/g, "{}");
  const fits = (start: string): boolean => start === "/" || plain === start || plain.startsWith(`${start}/`);
  const found = resources.flatMap(({ slug, paths }) => paths.filter(fits).map((start) => ({ slug, start })));
  return found.toSorted((a, b) => b.start.length - a.start.length)[0]?.slug ?? "operation";
}
