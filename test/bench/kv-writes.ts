/**
 * What KV in files costs a disk whose texts are asked about once: bytes written for requests that have a fragment each
 * that nobody asks for again, against the bytes of the KV that they compute. Beside it what is written for fragments
 * that a few requests in a row ask for, and for prepared ones, so that a server that writes nothing at all is seen.
 */
import type { HttpClient } from "../../gateway/cli/support/client.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { prepareStore } from "../../gateway/cli/support/operations.ts";
import { firstWorkerOf } from "../support/operator.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { ingestTexts } from "./support/fragment-store.ts";
import { SpanTexts } from "./support/prompts.ts";
import { figure } from "./support/stats.ts";
import { workerCounters } from "./support/worker-stats.ts";

const defaultRequests = 1_000;
const tokens = 256;
const [usedOften, usesEach, prepared] = [32, 4, 32];
const atOnce = 8;

interface Phase {
  readonly name: string;
  readonly computedBytes: number;
  readonly writtenBytes: number;
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const requests = Number(option("requests") ?? defaultRequests);
  if (!Number.isInteger(requests) || requests < 1) throw new CommandError("--requests is a whole number, 1 or more");
  await using server = await startTestServer({ env: { SPANGATE_KV_DISK_BYTES: "auto" } });
  const { client } = await server.tenant("bench");
  const texts = new SpanTexts();
  const textAt = (index: number): string => texts.textOf(tokens, index + 1);
  const once = await phaseOf(server, `${requests} fragments, used once`, async () => {
    await mapConcurrent(Array.from({ length: requests }), atOnce, async (_, index) => {
      if (index % 100 === 0) say(`request ${index} of ${requests}`);
      await ask(client, server.model, textAt(index));
    });
  });
  const often = await phaseOf(server, `${usedOften} fragments, used ${usesEach} times each`, async () => {
    for (let use = 0; use < usesEach; use++) {
      for (let index = 0; index < usedOften; index++) await ask(client, server.model, textAt(requests + index));
    }
  });
  const ready = await phaseOf(server, `${prepared} fragments, prepared`, async () => {
    const first = requests + usedOften;
    const some = Array.from({ length: prepared }, (_, index) => textAt(first + index));
    const { id } = await ingestTexts(client, some, tokens);
    await prepareStore(client, id, () => undefined, "disk");
  });
  const shareOf = ({ writtenBytes, computedBytes }: Phase): number => writtenBytes / computedBytes;
  const phases = [once, often, ready];
  return {
    model: server.model,
    header: ["", "KV computed, MB", "written to files, MB", "share"],
    rows: phases.map((phase) => [
      phase.name,
      ...[phase.computedBytes, phase.writtenBytes].map((bytes) => figure(bytes / 1e6)),
      `${(100 * shareOf(phase)).toFixed(2)} %`,
    ]),
    notes: [`Fragments of ${tokens} tokens, with a question each; the first two come with their requests.`],
    bars: [
      atMost("bytes written / computed, fragments that are used once", shareOf(once), 0.01),
      atLeast("bytes written / computed, prepared fragments", shareOf(ready), 0.9),
    ],
    details: { requests, phases },
  };
}

/** What was computed and written by the time that the worker has come to rest. */
async function phaseOf(server: TestServer, name: string, work: () => Promise<void>): Promise<Phase> {
  const before = await workerCounters(server);
  await work();
  const after = await workerCounters(server);
  const { kv_bytes_per_block: blockBytes, block_tokens: blockTokens } = await firstWorkerOf(server);
  const writtenBy = ({ tiers = [] }: typeof after): number =>
    tiers.reduce((sum, { tier, writtenBytes }) => sum + (tier === "disk" ? writtenBytes : 0), 0);
  return {
    name,
    computedBytes: ((after.computedTokens - before.computedTokens) * blockBytes) / blockTokens,
    writtenBytes: writtenBy(after) - writtenBy(before),
  };
}

async function ask(client: HttpClient, model: string, text: string): Promise<void> {
  const messages = [{ role: "user", content: `What is it about? ${text.slice(0, 12)}` }];
  await client.json("POST", "/v1/chat/completions", { model, messages, documents: [{ text }], max_tokens: 1 });
}

export const kvWritesBench: Bench = {
  name: "kv-writes",
  summary:
    "Bytes of KV written to files for fragments that are used once, used often and prepared, against those computed",
  options: { requests: `N  with a fragment of their own (default ${defaultRequests})` },
  run,
};
