/** What `spangate/query` exports: span queries for clients. */
export { type AugmentDocument, type Part, q } from "../query/builder.ts";
export { QueryError, type QueryErrorCode } from "../query/errors.ts";
export type { JsonObject, JsonValue } from "../query/json.ts";
export { parseQuery, parseQueryText } from "../query/parse.ts";
export { canonicalText, printQuery } from "../query/print.ts";
export type * from "../query/wire.ts";
export * from "./answers.ts";
export {
  type BulkOptions,
  type CallOptions,
  type ExecuteOptions,
  type QuerySource,
  SpanQueryClient,
  type SpanQueryClientOptions,
  SpanQueryError,
} from "./span-query-client.ts";
