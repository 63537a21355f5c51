/** Sends hostile heads and judges what comes back. */
import { fc } from "../support/fast-check.ts";
import { type HostileHead, hostileHead } from "./heads.ts";
import { faultOf } from "./oracle.ts";
import { exchange, type RawExchange } from "./socket.ts";
import type { FuzzWorld } from "./world.ts";

/** An answer to a request that is whole comes within this; with others the server may wait for the rest. */
const quietMs = 10_000;
const impatientMs = 40;

/** Sends so many, and gives the first faults with what replays them. */
export async function runHeads(
  world: FuzzWorld,
  { cases, seed, concurrency = 16 }: HeadOptions,
): Promise<readonly string[]> {
  const faults: string[] = [];
  const waiting = fc.sample(hostileHead, { seed, numRuns: cases }).entries();
  const sendRest = async (): Promise<void> => {
    for (const [index, head] of waiting) {
      const fault = await headFault(world, head);
      if (fault !== undefined)
        faults.push(`seed ${seed}, case ${index}: ${fault}\n  ${JSON.stringify(head).slice(0, 1_000)}`);
      if (faults.length >= maxFaults) return;
    }
  };
  await Promise.all(Array.from({ length: concurrency }, sendRest));
  return faults;
}

export interface HeadOptions {
  readonly cases: number;
  readonly seed: number;
  readonly concurrency?: number;
}

const maxFaults = 20;

/** What is wrong with what came back; undefined when nothing is. */
async function headFault(world: FuzzWorld, head: HostileHead): Promise<string | undefined> {
  const text = `${head.lines.join(head.lineBreak)}${head.lineBreak}${head.lineBreak}${head.body}`;
  const bytes = Buffer.from(text.replaceAll("{key}", world.caller.apiKey), "latin1");
  const options = { quietMs: head.mayWait ? impatientMs : quietMs, end: false };
  const result = await exchange(world.url, bytes, options).catch((error: unknown) => String(error));
  const within = world.faults.splice(0);
  if (within.length > 0) return within.join("\n");
  return typeof result === "string" ? result : exchangeFault(result, head);
}

function exchangeFault(
  { answers, closedByServer, ms }: RawExchange,
  { mayWait, lines }: HostileHead,
): string | undefined {
  if (answers.length === 0 && !closedByServer && !mayWait) return `no answer in ${Math.round(ms)} ms`;
  for (const { status, headers, body } of answers) {
    if (status === 100) continue;
    if (headers.has("x-injected") || headers.has("set-cookie")) return "a header that the caller made";
    const requestId = headers.get("x-request-id");
    // What the parser refuses never becomes a request, and has no id.
    if (requestId === undefined && [400, 413, 431, 505].includes(status)) continue;
    // A HEAD has no body, and a chunked one is not put together here.
    if (lines[0]?.startsWith("HEAD") || headers.has("transfer-encoding")) {
      if (status >= 500 || requestId === undefined) return `status ${status}, request id ${requestId}`;
      continue;
    }
    const contentType = headers.get("content-type") ?? "";
    const utf8 = Buffer.from(body, "latin1").toString();
    const fault = faultOf({ path: "", status, contentType, requestId: requestId ?? null, text: utf8, ms: 0 });
    if (fault !== undefined) return `${fault}: ${utf8.slice(0, 200)}`;
  }
  return undefined;
}
