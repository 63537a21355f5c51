/**
 * Questions that the server asks itself before it is ready. A process's first request runs code that has never run, so
 * it takes twice as long as the next one. An app of its own answers here, with the code of the real one, from the bytes
 * of a request to the last piece of the stream. Nothing is counted, logged or charged, and nobody reads the answer.
 */
import type { FileId } from "../../db/ids.ts";
import type { KeptFragment } from "../../db/kv-objects.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { limits } from "../config.ts";
import { Pipeline } from "../generate/pipeline.ts";
import { createApp } from "../http/app.ts";
import { ConcurrencyLimiter } from "../http/middleware/concurrency.ts";
import { addChatRoutes } from "../http/openai/chat.ts";
import { Metrics } from "../telemetry/metrics.ts";
import type { TextSide } from "./text.ts";
import type { Workers } from "./workers.ts";

export interface RehearsalParts {
  readonly text: Pick<TextSide, "lowererFor" | "tokenBytes">;
  readonly workers: Pick<Workers, "registry" | "dispatcher">;
  /** When the texts were read: what was deleted since is not brought back. */
  readonly readAtMs: number;
}

/** A fragment with the salt of its corpus. */
export interface SaltedFragment extends Pick<KeptFragment, "id" | "text" | "corpusId" | "tenantId"> {
  readonly fileId: FileId;
  readonly salt: CacheSalt;
}

/** @returns asks a question over these fragments, which are at least one; resolves when it is answered */
export function openRehearsal({ text, workers, readAtMs }: RehearsalParts) {
  return async (question: string, fragments: readonly [SaltedFragment, ...SaltedFragment[]]): Promise<void> => {
    const [{ tenantId, salt }] = fragments;
    const found = fragments.map((fragment) => ({ ...fragment, filename: "", attributes: {}, score: 1 }));
    const pipeline = new Pipeline({
      // As of prepared spans: no tenant is charged.
      dispatcher: { submit: (request) => workers.dispatcher.submit({ ...request, tenantId: "", readAtMs }) },
      tokenBytes: text.tokenBytes,
      card: () => workers.registry.card(),
      lowererFor: text.lowererFor,
      grammars: { of: () => Promise.reject(new Error("no format is asked for")) },
      cacheSalt: () => salt,
      retrieve: () => found,
      readFiles: async () => [],
      fragmentsUsed: () => undefined,
      requestMs: limits.warmUpMs,
    });
    const log = (): void => undefined;
    const principal = { keyId: "", tenantId, scopes: new Set(["inference"] as const) };
    const limiter = new ConcurrencyLimiter(1);
    const deps = { pipeline, limiter, tokenBytes: text.tokenBytes, nowMs: Date.now, log };
    const app = createApp({
      authenticator: { authenticate: () => principal },
      routes: [(it) => addChatRoutes(it, deps)],
      metrics: new Metrics(),
      log,
    });
    const answer = await app.request("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", authorization: "Bearer rehearsal" },
      body: JSON.stringify({
        model: workers.registry.card()?.id,
        messages: [{ role: "user", content: question }],
        file_search: { vector_store_ids: [fragments[0].corpusId], max_num_results: fragments.length },
        ...{ temperature: 0, max_tokens: 2, stream: true, stream_options: { include_usage: true } },
      }),
    });
    await answer.text();
  };
}
