/** Many cases by seed: each request is sent, its answer judged, and the first faults are shown with what replays them. */
import { fc } from "../support/fast-check.ts";
import { faultOf, maxWaitMs, processorMs } from "./oracle.ts";
import { bytesOf, encodingHeader, type HostileRequest, requestToAny, targetOf } from "./requests.ts";
import type { FuzzWorld } from "./world.ts";

export interface CampaignOptions {
  readonly cases: number;
  readonly seed: number;
  /** Of requests that are on their way together. */
  readonly concurrency?: number;
  readonly maxFaults?: number;
}

export interface CampaignReport {
  readonly cases: number;
  /** Answers by route and status. */
  readonly statuses: ReadonlyMap<string, number>;
  readonly faults: readonly string[];
  readonly slowestMs: number;
}

/** Cases that are made at a time. */
const chunkCases = 500;

export async function runCampaign(world: FuzzWorld, options: CampaignOptions): Promise<CampaignReport> {
  const { cases, seed, concurrency = 8, maxFaults = 20 } = options;
  const run = new Campaign(world);
  const request = requestToAny(world.routes);
  for (let start = 0; start < cases && run.faults.length < maxFaults; start += chunkCases) {
    const chunkSeed = seed + start;
    const requests = fc.sample(request, { seed: chunkSeed, numRuns: Math.min(chunkCases, cases - start) });
    const waiting = requests.entries();
    const sendRest = async (): Promise<void> => {
      for (const [index, next] of waiting) await run.send(next, `seed ${chunkSeed}, case ${index}`);
    };
    await Promise.all(Array.from({ length: concurrency }, sendRest));
  }
  return run.report();
}

class Campaign {
  readonly faults: string[] = [];
  readonly #world: FuzzWorld;
  readonly #statuses = new Map<string, number>();
  #slowestMs = 0;
  #cases = 0;

  constructor(world: FuzzWorld) {
    this.#world = world;
  }

  async send(request: HostileRequest, name: string): Promise<void> {
    const { ids, faults } = this.#world;
    const { route } = request;
    const startMs = processorMs();
    const answer = await this.#answer(request).catch((error: unknown) => String(error));
    const ms = processorMs() - startMs;
    this.#cases += 1;
    this.#slowestMs = Math.max(this.#slowestMs, ms);
    const label = `${route.method} ${route.path}`;
    const fault = typeof answer === "string" ? answer : faultOf({ ...answer, ms });
    const within = faults.splice(0);
    if (fault !== undefined || within.length > 0) {
      const shown = typeof answer === "string" ? "" : answer.text.slice(0, 300);
      this.faults.push([`${name}: ${label}: ${fault ?? ""}`, shown, ...within, described(request, ids)].join("\n  "));
    }
    if (typeof answer === "string") return;
    const key = `${label} ${answer.status}`;
    this.#statuses.set(key, (this.#statuses.get(key) ?? 0) + 1);
    if (route.method === "DELETE" && answer.status < 300) await this.#world.renew();
  }

  report(): CampaignReport {
    return { cases: this.#cases, statuses: this.#statuses, faults: this.faults, slowestMs: this.#slowestMs };
  }

  async #answer(request: HostileRequest) {
    const { url, ids, caller, adminKey } = this.#world;
    const headers = new Headers({ authorization: `Bearer ${request.key === "admin" ? adminKey : caller.apiKey}` });
    if (request.contentType !== undefined) headers.set("content-type", request.contentType);
    const coded = encodingHeader(request.encoding);
    if (coded !== undefined) headers.set("content-encoding", coded);
    const bytes = bytesOf(request, ids);
    const path = targetOf(request, ids);
    const response = await fetch(url + path, {
      method: request.route.method,
      headers,
      signal: AbortSignal.timeout(maxWaitMs),
      ...(bytes === undefined ? {} : { body: request.chunked ? inPieces(bytes) : (bytes as Uint8Array<ArrayBuffer>) }),
    });
    return {
      path,
      status: response.status,
      contentType: response.headers.get("content-type") ?? "",
      requestId: response.headers.get("x-request-id"),
      text: endless.has(request.route.path) && response.ok ? await firstOf(response) : await response.text(),
    };
  }
}

/** Streams without an end. */
const endless: ReadonlySet<string> = new Set(["/admin/v1/kv-events", "/admin/v1/cache/events"]);

async function firstOf(response: Response): Promise<string> {
  const reader = response.body?.getReader();
  const first = await reader?.read();
  await reader?.cancel();
  return new TextDecoder().decode(first?.value);
}

/** Sent chunked, without a length. */
function inPieces(bytes: Uint8Array): ReadableStream<Uint8Array> {
  const half = Math.ceil(bytes.length / 2);
  const pieces = [bytes.subarray(0, half), bytes.subarray(half)].filter((piece) => piece.length > 0);
  return new ReadableStream({
    pull: (controller) => {
      const next = pieces.shift();
      if (next === undefined) controller.close();
      else controller.enqueue(next);
    },
  });
}

function described(request: HostileRequest, ids: Readonly<Record<string, string>>): string {
  const { contentType, encoding, chunked, bytes } = request;
  const body = Buffer.from(bytesOf({ ...request, encoding: "none" }, ids) ?? [])
    .toString("latin1")
    .slice(0, 600);
  return `${targetOf(request, ids).slice(0, 300)} ${JSON.stringify({ contentType, encoding, chunked, bytes, body })}`;
}
