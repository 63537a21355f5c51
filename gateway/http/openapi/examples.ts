/** A request for each route that takes a body, as /docs shows it; test/http/openapi/examples.test.ts sends them all. */
import type { RouteName } from "../transport/routes.ts";
import type { Json } from "./json.ts";

/** `{file_id}` and its like stand for ids, by the names of the paths' parameters. */
export interface Example {
  readonly json?: Json;
  /** A body of another kind. */
  readonly text?: { readonly type: string; readonly body: string };
  /** Headers beside those that the body needs. */
  readonly headers?: Readonly<Record<string, string>>;
  /** A form; a value that begins with @ is a file of that name. */
  readonly form?: Readonly<Record<string, string>>;
  readonly search?: string;
}

const model = "demo";
const question = "What is the extension of Jon Vale?";
const facts = "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.";
const messages = [{ role: "user", content: question }];
const query = {
  g: { model, temperature: 0, max_tokens: 32, input: { cross: [{ fragment: { text: facts } }, { user: question }] } },
};
const yaml = `g:
  model: ${model}
  temperature: 0
  max_tokens: 32
  input:
    cross:
      - plus:
          - fragment: { text: "The extension of Jon Vale is 3057." }
          - fragment: { text: "Mara Ellison works as a cartographer." }
      - user: ${question}
`;
const rates = { requests_per_minute: 600, tokens_per_minute: 200_000, concurrency: 8 };

export const examples: Partial<Readonly<Record<RouteName, Example>>> = {
  "POST /v1/chat/completions": { json: { model, messages, documents: [{ text: facts }], temperature: 0 } },
  "POST /v1/completions": { json: { model, prompt: "The extension of Jon Vale", max_tokens: 16 } },
  "POST /tokenize": { json: { model, prompt: question } },
  "POST /detokenize": { json: { model, tokens: [40, 41, 42] } },
  "POST /v1/responses": { json: { model, input: question, documents: [{ text: facts }], temperature: 0 } },
  "POST /v1/responses/input_tokens": { json: { model, input: question } },
  "POST /v1/messages": {
    json: {
      ...{ model, max_tokens: 64, temperature: 0 },
      messages: [
        {
          role: "user",
          content: [
            {
              ...{ type: "document", title: "staff.txt", citations: { enabled: true } },
              source: { type: "text", media_type: "text/plain", data: facts },
            },
            { type: "text", text: question },
          ],
        },
      ],
    },
  },
  "POST /v1/messages/count_tokens": { json: { model, messages } },
  "POST /v1/messages/batches": {
    json: { requests: [{ custom_id: "first", params: { model, max_tokens: 32, messages } }] },
  },
  "POST /v1/query/execute": { text: { type: "application/yaml", body: yaml } },
  "POST /v1/query/prepare": { text: { type: "application/yaml", body: yaml } },
  "POST /v1/query/explain": { text: { type: "application/yaml", body: yaml } },
  "POST /v1/query/bulk": {
    text: { type: "application/x-ndjson", body: `${JSON.stringify({ id: "first", query })}\n` },
  },
  "POST /v1/embeddings": { json: { model, input: [question] } },
  "POST /v1/rerank": {
    json: {
      model,
      query: question,
      documents: ["Mara Ellison works as a cartographer.", "The extension of Jon Vale is 3057."],
    },
  },
  "POST /admin/v1/session": {
    json: { api_key: "{api_key}" },
    headers: { "X-Spangate-Console": "1", "Sec-Fetch-Site": "same-origin" },
  },
  "POST /mcp": { json: { jsonrpc: "2.0", id: 1, method: "tools/list" } },
  "POST /v1/files": { form: { purpose: "assistants", file: "@handbook.md" } },
  "POST /v1/uploads": {
    json: { purpose: "assistants", filename: "handbook.md", mime_type: "text/markdown", bytes: 35 },
  },
  "POST /v1/uploads/:upload_id/parts": { form: { data: "@handbook.md" } },
  "POST /v1/uploads/:upload_id/complete": { json: { part_ids: ["{part_id}"] } },
  "POST /v1/vector_stores": { json: { name: "handbook", file_ids: ["{file_id}"] } },
  "POST /v1/vector_stores/:vector_store_id": { json: { name: "handbook of 2026" } },
  "POST /v1/vector_stores/:vector_store_id/search": { json: { query: question, max_num_results: 4 } },
  "POST /v1/vector_stores/:vector_store_id/files": {
    json: { file_id: "{file_id}", attributes: { department: "telephony" } },
  },
  "POST /v1/vector_stores/:vector_store_id/files/:file_id": { json: { attributes: { department: "telephony" } } },
  "POST /v1/vector_stores/:vector_store_id/file_batches": { json: { file_ids: ["{file_id}"] } },
  "POST /v1/batches": {
    json: { input_file_id: "{input_file_id}", endpoint: "/v1/chat/completions", completion_window: "24h" },
  },
  "POST /admin/v1/vector_stores/:vector_store_id/prepare": { json: { target: "device" } },
  "POST /admin/v1/fragments/:fragment_id/pin": { json: { tier: "device" } },
  "POST /admin/v1/vector_stores/:vector_store_id/sources": {
    json: { url: "https://docs.example.com/sitemap.xml", interval_minutes: 360 },
  },
  "POST /admin/v1/vector_stores/:vector_store_id/grants": { json: { tenant_id: "{other_tenant_id}" } },
  "POST /admin/v1/tenants": { json: { name: "Acme" } },
  "PATCH /admin/v1/tenants/:tenant_id": { json: { name: "Acme Ltd" } },
  "POST /admin/v1/tenants/:tenant_id/keys": {
    json: { name: "website", scopes: ["inference", "corpus:read"], expires_in_seconds: 2_592_000 },
  },
  "PUT /admin/v1/tenants/:tenant_id/limits": { json: { ...rates, tokens_per_day: 2_000_000 } },
  "PUT /admin/v1/keys/:key_id/limits": { json: rates },
  "GET /admin/v1/usage": { search: "?from=2026-01-01&to=2026-01-31" },
};

/** How ids look in what is shown. */
export const shownIds: Readonly<Record<string, string>> = {
  ...{ file_id: "file-…", input_file_id: "file-…", upload_id: "upload_…", part_id: "part_…" },
  ...{ vector_store_id: "vs_…", batch_id: "vsfb_…", request_batch_id: "batch_…", message_batch_id: "msgbatch_…" },
  ...{ job_id: "job_…", source_id: "source_…", fragment_id: "frag_…", response_id: "resp_…" },
  ...{ tenant_id: "tenant_…", other_tenant_id: "tenant_…", key_id: "key_…", bulk_id: "bulk_…", result_id: "first" },
  ...{ id: model, request_id: "req_…", api_key: "sk-…", asset: "main-….js" },
};

/** The text with its ids filled in. @param ids by name; a name that it lacks stays */
export const withIds = (text: string, ids: Readonly<Record<string, string>>): string =>
  text.replace(/\{(\w+)\}/g, (all, name: string) => ids[name] ?? all);

/** A line of shell that sends it. @param route as the description names it */
export function curlLine(
  route: { readonly method: string; readonly path: string; readonly needsKey: boolean; readonly streams: boolean },
  { json, text, form, headers = {}, search = "" }: Example,
): string {
  const { method, path, needsKey, streams } = route;
  const isDefault = method === "GET" || (method === "POST" && (json ?? text ?? form) !== undefined);
  const lines = [
    `curl -s${streams ? "N" : ""}${isDefault ? "" : ` -X ${method}`} ${quoted(`$SPANGATE_URL${path}${search}`)}`,
    ...(needsKey ? ['-H "Authorization: Bearer $SPANGATE_API_KEY"'] : []),
    ...Object.entries(headers).map(([name, value]) => `-H '${name}: ${value}'`),
    ...(json === undefined
      ? []
      : ["-H 'Content-Type: application/json'", `-d '${shell(JSON.stringify(json, null, 2))}'`]),
    ...(text === undefined ? [] : [`-H 'Content-Type: ${text.type}'`, `--data-binary '${shell(text.body)}'`]),
    ...Object.entries(form ?? {}).map(([name, value]) => `-F '${shell(`${name}=${value}`)}'`),
  ];
  return withIds(lines.join(" \\\n  "), shownIds);
}

const shell = (text: string): string => text.replaceAll("'", "'\\''");
const quoted = (address: string): string => (/[?&]/.test(address) ? `"${address}"` : address);
