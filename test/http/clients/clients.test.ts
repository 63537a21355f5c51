/**
 * Requests as five clients send them to servers with OpenAI's API: each is answered, and with what the least body that
 * asks for the same gets. The prompt and its parameters are compared too, since the worker behind these routes says the
 * same to many prompts.
 */
import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Hono } from "hono";
import { z } from "zod";
import type { EmbedderMeter } from "../../../gateway/generate/token-metering.ts";
import { createApp } from "../../../gateway/http/app.ts";
import { ConcurrencyLimiter } from "../../../gateway/http/middleware/concurrency.ts";
import { addEmbeddingRoutes, type EmbeddingDeps } from "../../../gateway/http/openai/embeddings.ts";
import type { AppEnv } from "../../../gateway/http/transport/context.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import type { Principal, Scope } from "../../../gateway/tenant/principal.ts";
import { chatRig, post } from "../chat-rig.ts";

const body = z.record(z.string(), z.unknown());
const request = z.strictObject({
  name: z.string(),
  path: z.enum(["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]),
  body,
  plain: body,
  /** What `x-spangate-ignored` says. */
  ignored: z.string().nullable(),
});
const source = z.strictObject({ repository: z.string(), version: z.string(), files: z.array(z.string()).min(1) });
const recorded = z.strictObject({
  client: z.string(),
  note: z.string(),
  sources: z.array(source).min(1),
  requests: z.array(request).min(1),
});
type Request = z.output<typeof request>;

const clients = readdirSync(import.meta.dir)
  .filter((file) => file.endsWith(".json"))
  .map((file) => recorded.parse(JSON.parse(readFileSync(join(import.meta.dir, file), "utf8"))));

/** What a completion says, whole or streamed. */
const choices = z.object({
  choices: z.array(
    z.object({
      message: z.object({ content: z.string().nullable() }).optional(),
      delta: z.object({ content: z.string().nullish() }).optional(),
      text: z.string().optional(),
    }),
  ),
});

function saidIn(answer: string, isStream: boolean): string {
  const parts = isStream ? answer.split("\n\n").map((frame) => frame.replace(/^data: /, "")) : [answer];
  const objects = parts.filter((part) => part.startsWith("{")).map((part) => choices.parse(JSON.parse(part)));
  return objects
    .flatMap((object) => object.choices)
    .map(({ message, delta, text }) => message?.content ?? delta?.content ?? text ?? "")
    .join("");
}

/** Which fields were left out, in any order. */
const ignoredBy = (response: Response): ReadonlySet<string> => namesIn(response.headers.get("x-spangate-ignored"));
const namesIn = (list: string | null): ReadonlySet<string> => new Set(list === null ? [] : list.split(", "));

async function completionOf(path: string, sent: Record<string, unknown>) {
  const rig = chatRig();
  const response = await post(rig.app, sent, { path });
  const answer = await response.text();
  if (response.status !== 200) return { status: response.status, ignored: ignoredBy(response), answer };
  const [submit] = rig.submits();
  const { sampling, grammar, ...params } = submit?.params ?? {};
  // Where the caller gives no seed, each request draws its own.
  const drawn = { ...sampling, seed: sent.seed };
  const said = saidIn(answer, sent.stream === true);
  expect(said).not.toBe("");
  return {
    status: 200,
    ignored: ignoredBy(response),
    same: { said, runs: submit?.plan.runs, params, drawn, isBound: grammar !== undefined },
  };
}

/** A server that embeds: a character's code is a token, and a text's vector is its tokens. */
function embedder() {
  const caller: Principal = { keyId: "k1", tenantId: "tenant_a", scopes: new Set<Scope>(["inference"]) };
  const card = { modelName: "letters", modelId: "letters-1", dimensions: 3, maxTokens: 8, vocabSize: 256 };
  const embedding: EmbeddingDeps["embedding"] = {
    card: async () => card,
    rerankerCard: async () => undefined,
    encodePairs: async () => undefined,
    scorePairs: async () => [],
    encode: async (text) => Int32Array.from(text, (char) => char.charCodeAt(0)),
    embedTokens: async (sequences) => sequences.map((ids) => Float32Array.from(ids)),
  };
  const meter: EmbedderMeter = (_work, embed) => embed();
  const limiter = new ConcurrencyLimiter(8);
  return createApp({
    authenticator: { authenticate: () => caller },
    routes: [(it: Hono<AppEnv>) => addEmbeddingRoutes(it, { embedding, limiter, meter })],
    metrics: new Metrics(),
    log: () => undefined,
  });
}

async function vectorsOf(sent: Record<string, unknown>) {
  const response = await post(embedder(), sent, { path: "/v1/embeddings" });
  return { status: response.status, ignored: ignoredBy(response), same: await response.json(), answer: undefined };
}

describe.each(clients.map((client) => [client.client, client.requests] as const))("%s", (_client, requests) => {
  const named = requests.map((each): [string, Request] => [each.name, each]);

  test.each(named)("%s", async (_name, { path, body: sent, plain, ignored }) => {
    const answerOf = async (given: Record<string, unknown>) =>
      path === "/v1/embeddings" ? await vectorsOf(given) : await completionOf(path, given);
    const [theirs, least] = [await answerOf(sent), await answerOf(plain)];
    const { status, ignored: named } = theirs;
    expect({ status, named, answer: theirs.answer }).toEqual({
      status: 200,
      named: namesIn(ignored),
      answer: undefined,
    });
    expect([least.status, least.ignored]).toEqual([200, namesIn(null)]);
    expect(theirs.same).toEqual(least.same);
  });
});

test("the models that clients list have the fields that they read", async () => {
  const { app } = chatRig();
  const response = await app.request("/v1/models", { headers: { authorization: "Bearer key-a" } });
  expect(await response.json()).toMatchObject({
    object: "list",
    data: [{ id: "fake-model", object: "model", created: expect.any(Number), owned_by: expect.any(String) }],
  });
});
