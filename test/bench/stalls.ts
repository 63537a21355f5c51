/**
 * What one tenant's single requests cost everybody else: every route of /openapi.json at its largest and its nastiest,
 * one after the other, while another tenant asks for the models and for a short chat answer all the time.
 */
import type { HttpClient } from "../../gateway/cli/support/client.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import type { Bench, BenchContext, BenchReport } from "./bench.ts";
import { bodyCases } from "./support/stalls/bodies.ts";
import type { StallCase, StallRequest } from "./support/stalls/case.ts";
import { casesOfRoutes } from "./support/stalls/cases.ts";
import { forgetPeak, peakBytes, residentBytes } from "./support/stalls/memory.ts";
import { WaitMeter, type Waits } from "./support/stalls/meter.ts";
import { aloneText, keptBoundMib, lineOf, reportOf, type StallResult, worstOf } from "./support/stalls/report.ts";
import { mib } from "./support/stalls/texts.ts";
import { openStallWorld, type StallWorld } from "./support/stalls/world.ts";
import { median, quantile } from "./support/stats.ts";

const backMs = 10_000;
const defaultRounds = 2;
const [usualAfterMs, streamMs, giveUpMs] = [300, 1_000, 10_000];
/** The server's code is compiled while it runs, for so long; then what it does for one tenant alone is timed. */
const [warmUpMs, aloneMs] = [20_000, 5_000];
/** A file that is ingested is watched for so long; the next request waits longer for its end. */
const [ingestMs, ingestEndMs] = [8_000, 120_000];

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const rounds = Number(option("rounds") ?? defaultRounds);
  const only = (option("only") ?? "").split(",");
  if (!(rounds >= 1)) throw new CommandError("--rounds is 1 or more");
  await using world = await openStallWorld(say);
  const routes = await declaredRoutes(world);
  const all = [...casesOfRoutes, ...bodyCases(routes.withJson)];
  const uncovered = routes.all.filter((route) => !all.some((each) => each.route === route));
  const cases = all.filter(({ route, name }) => only.some((text) => `${route} ${name}`.includes(text)));
  const chat = { model: world.model, messages: [{ role: "user", content: "Who is Anna?" }], ...shortAnswer };
  using meter = new WaitMeter({ url: world.server.url, apiKey: world.other.apiKey, chat });
  say("the other tenant alone, until the server is warm");
  await Bun.sleep(warmUpMs);
  const before = await waitsAlone(meter, say);
  const results: StallResult[] = [];
  for (let round = 0; round < rounds; round++) {
    for (const each of cases) {
      const result = await runCase(world, meter, each);
      results.push(result);
      say(lineOf(result));
    }
  }
  const alone = { before, after: await waitsAlone(meter, say) };
  return reportOf(world.model, { results: worstOf(results), alone, uncovered, routeCount: routes.all.length, rounds });
}

/** What the other tenant sees while nobody else asks for anything. */
async function waitsAlone(meter: WaitMeter, say: (line: string) => void): Promise<Waits> {
  await meter.take();
  await Bun.sleep(aloneMs);
  const waits = await meter.take();
  say(`alone: ${aloneText(waits)}`);
  return waits;
}

const shortAnswer = { temperature: 0, max_tokens: 8, min_tokens: 8, ignore_eos: true };

async function declaredRoutes({
  server,
}: StallWorld): Promise<{ readonly all: string[]; readonly withJson: string[] }> {
  type Operation = { readonly requestBody?: { readonly content: object } };
  const { paths } = await server.admin.json<{ paths: Record<string, Record<string, Operation>> }>(
    "GET",
    "/openapi.json",
  );
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ route: `${method.toUpperCase()} ${path}`, operation })),
  );
  const takesJson = ({ requestBody }: Operation) =>
    requestBody !== undefined && "application/json" in requestBody.content;
  return {
    all: operations.map(({ route }) => route),
    withJson: operations.filter(({ operation }) => takesJson(operation)).map(({ route }) => route),
  };
}

async function runCase(world: StallWorld, meter: WaitMeter, each: StallCase): Promise<StallResult> {
  const { pid } = world.server.process;
  const apiKey = each.as === "platform" ? world.server.adminKey : world.hostile.apiKey;
  const request = await each.make(world);
  await Bun.sleep(100);
  await meter.take();
  forgetPeak(pid);
  const beforeBytes = residentBytes(pid);
  const startMs = performance.now();
  const { status, text } = await send(world, apiKey, request, each.stream === true);
  const answerMs = performance.now() - startMs;
  if (each.ingests === true) await untilIngested(world.hostile.client, ingestMs);
  await Bun.sleep(each.afterMs ?? usualAfterMs);
  const waits = await meter.take();
  const growthMib = (peakBytes(pid) - beforeBytes) / mib;
  const keptMib = await keptAfter(pid, beforeBytes);
  await settle(world.hostile.client, text);
  const ended = each.ingests === true ? await endOfIngestion(world.hostile.client, request) : "";
  return {
    route: each.route,
    name: each.name,
    bodyBytes: bytesOf(request.body),
    status,
    refusal: status >= 400 ? text.slice(0, 160) : ended,
    answerMs,
    waitMs: quantile(waits.modelsMs, 1),
    chatMs: median(waits.chatMs),
    longestChatMs: quantile(waits.chatMs, 1),
    failures: waits.failures,
    growthMib,
    keptMib,
  };
}

/** How a file ended that the request attached: "completed", or why not. */
async function endOfIngestion(client: HttpClient, { path, body }: StallRequest): Promise<string> {
  type Ingested = { readonly status: string; readonly last_error: { readonly message: string } | null };
  const { file_id: fileId } = JSON.parse(String(body)) as { readonly file_id: string };
  const { status, last_error: error } = await client.json<Ingested>("GET", `${path}/${fileId}`);
  return error === null ? status : `${status}: ${error.message}`;
}

function bytesOf(body: StallRequest["body"]): number {
  if (body === undefined) return 0;
  if (typeof body === "string") return Buffer.byteLength(body);
  const parts: readonly (string | Blob)[] = [...body.values()];
  return parts.reduce((sum, part) => sum + (typeof part === "string" ? part.length : part.size), 0);
}

/** @returns status 0 when it was given up, the beginning of the answer */
async function send(world: StallWorld, apiKey: string, request: StallRequest, isStream: boolean) {
  const headers: Record<string, string> = { authorization: `Bearer ${apiKey}` };
  if (request.contentType !== undefined) headers["content-type"] = request.contentType;
  // MCP's clients say that they take both; no other route asks.
  headers.accept = "application/json, text/event-stream";
  const { method, path, body } = request;
  const signal = AbortSignal.timeout(isStream ? streamMs : giveUpMs);
  let status = 0;
  let text = "";
  try {
    const answer = await fetch(world.server.url + path, {
      method,
      headers,
      signal,
      ...(body === undefined ? {} : { body }),
    });
    status = answer.status;
    const decoder = new TextDecoder();
    for await (const chunk of answer.body ?? [])
      if (text.length < 4_096) text += decoder.decode(chunk, { stream: true });
  } catch (error) {
    if (!signal.aborted) throw error;
    if (!isStream) status = 0;
  }
  return { status, text };
}

/** Waits until the process is near what it was, for 10 s at most. */
async function keptAfter(pid: number, beforeBytes: number): Promise<number> {
  const untilMs = performance.now() + backMs;
  const keptMib = () => Math.max(0, (residentBytes(pid) - beforeBytes) / mib);
  while (keptMib() > keptBoundMib && performance.now() < untilMs) await Bun.sleep(100);
  return keptMib();
}

interface Batches {
  readonly data: readonly { readonly id: string; readonly status?: string; readonly processing_status?: string }[];
}

/** Ends what still runs of the hostile tenant's, so that the next request is measured alone. */
async function settle(client: HttpClient, answer: string): Promise<void> {
  const [, jobId] = /"id":"([^"]+)","object":"prepare_job"/.exec(answer) ?? [];
  if (jobId !== undefined) await client.json("POST", `/admin/v1/jobs/${jobId}/cancel`, {}).catch(() => undefined);
  for (const path of ["/v1/batches", "/v1/messages/batches"]) {
    const { data } = await client.json<Batches>("GET", `${path}?limit=20`);
    const open = data.filter(
      ({ status, processing_status: state }) => status === "in_progress" || state === "in_progress",
    );
    for (const { id } of open) await client.json("POST", `${path}/${id}/cancel`, {}).catch(() => undefined);
  }
  await untilIngested(client, ingestEndMs);
}

/** Waits until no file is being ingested, for so long at most. */
async function untilIngested(client: HttpClient, maxMs: number): Promise<void> {
  type Stores = { data: readonly { readonly file_counts: { readonly in_progress: number } }[] };
  const untilMs = performance.now() + maxMs;
  while (performance.now() < untilMs) {
    const { data } = await client.json<Stores>("GET", "/v1/vector_stores?limit=100");
    if (data.every(({ file_counts: counts }) => counts.in_progress === 0)) return;
    await Bun.sleep(250);
  }
}

export const stallsBench: Bench = {
  name: "stalls",
  summary: "Every route at its largest and its nastiest: how long another tenant waits, what memory it takes",
  options: {
    rounds: `N  times that each request is sent (default ${defaultRounds})`,
    only: "TEXT,TEXT  requests whose route and name hold one of these",
  },
  run,
};
