/** The span-query routes of a server, over fetch. */
import type { QueryJson } from "../query/wire.ts";
import type { BulkItem, BulkLine, ErrorBody, Explanation, Prepared, QueryAnswer, QueryChunk } from "./answers.ts";
import { type CallErrors, type CallOptions, HttpClient, type HttpClientOptions } from "./http-client.ts";
import { readLines } from "./lines.ts";
import { readSse } from "./sse.ts";

export type { CallOptions };
export type SpanQueryClientOptions = HttpClientOptions;

export interface ExecuteOptions extends CallOptions {
  /** false: the outermost generation computes its whole prompt, to compare with. */
  readonly reuse?: boolean;
}

export interface BulkOptions extends CallOptions {
  /** "ingestion": in the order of the lines, to compare with. */
  readonly order?: "planned" | "ingestion";
  /** Queries that run at the same time. */
  readonly concurrency?: number;
}

/** The server refused or failed, in its own words. */
export class SpanQueryError extends Error {
  override readonly name = "SpanQueryError";
  /** Status of the HTTP answer; 200 when an answer failed in mid-stream. */
  readonly status: number;
  readonly code: string;
  /** Path of what is wrong with the query: `$.g.input.plus[2].g.max_tokens`. */
  readonly path: string | undefined;

  constructor(status: number, { message, code, type, param }: ErrorBody) {
    super(message);
    this.status = status;
    this.code = code ?? type ?? "error";
    this.path = param ?? undefined;
  }
}

/** What a call takes: the tree itself, or its text. */
export type QuerySource = QueryJson | string;

const spanQueryErrors: CallErrors = { refused: (status, body) => new SpanQueryError(status, body) };

/** Every call throws SpanQueryError when the server says no, and what fetch throws when there is none. */
export class SpanQueryClient {
  readonly #http: HttpClient;
  readonly #errors: CallErrors;

  /** @throws TypeError when the URL is none. */
  constructor(options: SpanQueryClientOptions, errors: CallErrors = spanQueryErrors) {
    this.#http = new HttpClient(options, errors);
    this.#errors = errors;
  }

  /** Runs the tree and answers with the outermost generation. */
  async execute(query: QuerySource, options: ExecuteOptions = {}): Promise<QueryAnswer> {
    const path = `/v1/query/execute?${executeParameters(options)}`;
    return (await (await this.#query(path, query, options)).json()) as QueryAnswer;
  }

  /** The same, as it is generated. @throws SpanQueryError when the answer ends early */
  async *stream(query: QuerySource, options: ExecuteOptions = {}): AsyncGenerator<QueryChunk> {
    const path = `/v1/query/execute?${executeParameters(options, "true")}`;
    const response = await this.#query(path, query, options);
    for await (const { data } of readSse(this.#http.bodyOf(response))) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data) as QueryChunk | { readonly error: ErrorBody };
      if ("error" in chunk) throw this.#errors.refused(response.status, chunk.error);
      yield chunk;
    }
    throw this.#http.endedEarly(response);
  }

  /** Computes and keeps the KV of the query's spans; generates nothing. Answers with what became resident. */
  async prepare(query: QuerySource, options: CallOptions = {}): Promise<Prepared> {
    return (await (await this.#query("/v1/query/prepare", query, options)).json()) as Prepared;
  }

  /** What the query becomes and what of it is cached; runs nothing. */
  async explain(query: QuerySource, options: CallOptions = {}): Promise<Explanation> {
    return (await (await this.#query("/v1/query/explain", query, options)).json()) as Explanation;
  }

  /** Runs many queries. @returns lines as they come. @throws SpanQueryError when the answer ends early */
  async *bulk(items: Iterable<BulkItem>, options: BulkOptions = {}): AsyncGenerator<BulkLine> {
    const parameters = new URLSearchParams();
    if (options.order !== undefined) parameters.set("order", options.order);
    if (options.concurrency !== undefined) parameters.set("concurrency", String(options.concurrency));
    const response = await this.#http.send({
      method: "POST",
      path: `/v1/query/bulk?${parameters}`,
      body: Array.from(items, (item) => `${JSON.stringify(item)}\n`).join(""),
      contentType: "application/x-ndjson",
      options,
    });
    let isComplete = false;
    for await (const text of readLines(this.#http.bodyOf(response))) {
      const line = JSON.parse(text) as BulkLine | { readonly error: ErrorBody };
      // An error without an id concerns the whole answer, not one query.
      if ("error" in line && !("id" in line)) throw this.#errors.refused(response.status, line.error);
      isComplete = "bulk" in line && line.bulk.status !== "running";
      yield line;
    }
    if (!isComplete) throw this.#http.endedEarly(response);
  }

  #query(path: string, query: QuerySource, options: CallOptions): Promise<Response> {
    const body = typeof query === "string" ? query : JSON.stringify(query);
    return this.#http.send({ method: "POST", path, body, contentType: "application/json", options });
  }
}

function executeParameters({ reuse }: ExecuteOptions, stream = "false"): URLSearchParams {
  return new URLSearchParams({ stream, ...(reuse === undefined ? {} : { reuse: String(reuse) }) });
}
