/** The server's operations that the command line uses. */

import type { z } from "zod";
import type { SpangateReport, Usage } from "../../client/answers.ts";
import type {
  apiKeyAnswer,
  jobAnswer,
  mintedKeyAnswer,
  sourceAnswer,
  tenantAnswer,
  tenantLimitsAnswer,
  usageDayAnswer,
  vectorStoreAnswer,
  vectorStoreFileAnswer,
} from "../../http/transport/answer-schemas.ts";
import type { HttpClient } from "./client.ts";
import { CommandError } from "./command.ts";

export type Tenant = z.infer<typeof tenantAnswer>;
export type ApiKey = z.infer<typeof apiKeyAnswer>;
export type MintedKey = z.infer<typeof mintedKeyAnswer>;
export type TenantLimits = z.infer<typeof tenantLimitsAnswer>;
export type VectorStore = z.infer<typeof vectorStoreAnswer>;
export type VectorStoreFile = z.infer<typeof vectorStoreFileAnswer>;
export type UsageDay = z.infer<typeof usageDayAnswer>;
export type Source = z.infer<typeof sourceAnswer>;
export type PrepareJob = z.infer<typeof jobAnswer>;

/** What chat completions report beside their text. */
type ChatReport = Pick<
  SpangateReport,
  "request_id" | "worker" | "queue_ms" | "prefill_ms" | "ttft_ms" | "spans" | "citations"
>;

/** Where an answer stands: a line for each quote of a file or of a document with a title. */
export function sourceLines({ citations = [] }: Pick<SpangateReport, "citations">): string[] {
  const lines = citations.flatMap(({ filename, title, page, page_name: name, quote }) => {
    const source = filename ?? title;
    if (source === undefined) return [];
    const place = [source, page === undefined ? "" : `page ${page}`, name].filter(Boolean).join(", ");
    return [`  [${place}] ${quote.replace(/\s+/g, " ")}`];
  });
  return [...new Set(lines)];
}

export interface ChatRequest {
  readonly model: string;
  readonly messages: readonly { readonly role: string; readonly content: string }[];
  readonly [field: string]: unknown;
}

/** A streamed answer as the client saw it. */
export interface ChatAnswer {
  readonly text: string;
  readonly finishReason: string | null;
  /** From sending the request to the first text (or to the end of an answer without any), as this side measured it. */
  readonly clientTtftMs: number;
  readonly totalMs: number;
  readonly usage: Usage;
  readonly spangate: ChatReport;
}

interface ChatChunk {
  readonly error?: { readonly message: string };
  readonly choices: readonly {
    readonly delta: { readonly content?: string | null };
    readonly finish_reason: string | null;
  }[];
  readonly usage?: Usage | null;
  readonly spangate?: ChatReport;
}

interface ListPage<Item> {
  readonly data: readonly Item[];
  readonly has_more?: boolean;
  readonly last_id?: string | null;
}

/** Every item of a paged list. */
export async function listAll<Item extends { readonly id: string }>(client: HttpClient, path: string): Promise<Item[]> {
  const items: Item[] = [];
  const first = `${path}${path.includes("?") ? "&" : "?"}limit=100`;
  for (let after = ""; ; ) {
    const page: ListPage<Item> = await client.json("GET", `${first}${after}`);
    items.push(...page.data);
    const last = page.data.at(-1);
    if (!page.has_more || last === undefined) return items;
    after = `&after=${encodeURIComponent(last.id)}`;
  }
}

export async function firstModelId(client: HttpClient): Promise<string> {
  const { data } = await client.json<ListPage<{ id: string }>>("GET", "/v1/models");
  const model = data[0];
  if (model === undefined) throw new CommandError("the server has no model ready yet");
  return model.id;
}

/**
 * Uploads a text and puts it into the store; resolves when the server has accepted it for ingestion.
 * @param fields what the call that attaches the file says beside its id
 */
export async function addFile(
  client: HttpClient,
  storeId: string,
  name: string,
  content: Blob,
  fields: Partial<Pick<VectorStoreFile, "attributes" | "chunking_strategy">> = {},
): Promise<string> {
  const form = new FormData();
  form.set("purpose", "assistants");
  form.set("file", content, name);
  const file = await client.upload<{ id: string }>("/v1/files", form);
  await client.json("POST", `/v1/vector_stores/${storeId}/files`, { file_id: file.id, ...fields });
  return file.id;
}

/** Polls until the file has been ingested. @throws CommandError with the server's reason when it could not be. */
export async function waitForFile(client: HttpClient, storeId: string, fileId: string, pollMs = 50): Promise<void> {
  for (;;) {
    const file = await client.json<VectorStoreFile>("GET", `/v1/vector_stores/${storeId}/files/${fileId}`);
    if (file.status === "completed") return;
    if (file.status !== "in_progress") {
      throw new CommandError(
        `${fileId} was not ingested (${file.status}): ${file.last_error?.message ?? "no reason given"}`,
      );
    }
    await Bun.sleep(pollMs);
  }
}

/** Starts a prepare job and reports its progress until it ends. @throws CommandError unless it completes. */
export async function prepareStore(
  client: HttpClient,
  storeId: string,
  onProgress: (job: PrepareJob) => void,
  target?: string,
): Promise<PrepareJob> {
  const body = target === undefined ? {} : { target };
  let job = await client.json<PrepareJob>("POST", `/admin/v1/vector_stores/${storeId}/prepare`, body);
  onProgress(job);
  for await (const event of client.events("GET", `/admin/v1/jobs/${job.id}/events`)) {
    job = JSON.parse(event.data) as PrepareJob;
    onProgress(job);
    if (job.status !== "queued" && job.status !== "running") break;
  }
  if (job.status !== "completed") {
    const reason = job.error?.message ?? "";
    throw new CommandError(`preparing ${storeId} ended as ${job.status}${reason && `: ${reason}`}`);
  }
  return job;
}

/** Asks with streaming. @throws CommandError when the stream ends without `[DONE]` or carries an error. */
export async function askChat(
  client: HttpClient,
  request: ChatRequest,
  onText: (text: string) => void = () => undefined,
  signal?: AbortSignal,
): Promise<ChatAnswer> {
  const startMs = performance.now();
  const answer = { text: "", finishReason: null as string | null, clientTtftMs: Number.NaN };
  let usage: Usage | undefined;
  let spangate: ChatReport | undefined;
  const body = { ...request, stream: true, stream_options: { include_usage: true } };
  for await (const { data } of client.events("POST", "/v1/chat/completions", body, signal)) {
    if (data === "[DONE]") {
      if (usage === undefined || spangate === undefined) throw new CommandError("the answer came without its usage");
      return { ...answer, totalMs: performance.now() - startMs, usage, spangate };
    }
    const chunk = JSON.parse(data) as ChatChunk;
    if (chunk.error) throw new CommandError(chunk.error.message);
    usage = chunk.usage ?? usage;
    spangate = chunk.spangate ?? spangate;
    const choice = chunk.choices[0];
    answer.finishReason = choice?.finish_reason ?? answer.finishReason;
    const text = choice?.delta.content ?? "";
    const isFirst = Number.isNaN(answer.clientTtftMs);
    if (isFirst && (text !== "" || answer.finishReason !== null)) answer.clientTtftMs = performance.now() - startMs;
    if (text === "") continue;
    answer.text += text;
    onText(text);
  }
  throw new CommandError("the answer ended early: the stream closed without [DONE]");
}
