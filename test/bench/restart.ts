/**
 * Time to first token of the first question over prepared fragments after kill -9 and a new start, against the same
 * fragments in a server that was not killed (warm), and computed without reuse (cold). All three in one run, through
 * HTTP: from sending the request to the first text. After a start the question is sent as soon as the server is ready.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ChatAnswer } from "../../gateway/cli/support/operations.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { type FragmentStore, makeFragmentStore, StoreAsker } from "./support/fragment-store.ts";
import { kvOption, kvSettings } from "./support/kv.ts";
import { SpanTexts } from "./support/prompts.ts";
import { figure, median } from "./support/stats.ts";

const fragmentTokenCounts = [128, 512];
const fragmentCount = 32;
const rounds = 3;

interface Cell {
  readonly store: FragmentStore;
  readonly warm: ChatAnswer[];
  readonly cold: ChatAnswer[];
  readonly restarted: ChatAnswer[];
}

async function measure(dataDir: string, env: Record<string, string>, say: (line: string) => void): Promise<Cell[]> {
  const texts = new SpanTexts();
  let server = await startTestServer({ dataDir, env });
  try {
    const { client, apiKey } = await server.tenant("bench");
    const asker = new StoreAsker(apiKey);
    const cells: Cell[] = [];
    for (const tokens of fragmentTokenCounts) {
      say(`preparing ${fragmentCount} x ${tokens}`);
      const store = await makeFragmentStore(client, texts, fragmentCount, tokens);
      cells.push({ store, warm: [], cold: [], restarted: [] });
    }
    for (const { store, warm, cold } of cells) {
      say(`warm and cold, ${fragmentCount} x ${store.tokens}`);
      await asker.ask(server, store, true);
      for (let round = 0; round < rounds; round++) {
        warm.push(await asker.ask(server, store, true));
        cold.push(await asker.ask(server, store, false));
      }
    }
    for (const { store, restarted } of cells) {
      for (let round = 0; round < rounds; round++) {
        say(`kill -9 and start, ${fragmentCount} x ${store.tokens}`);
        server.process.kill("SIGKILL");
        await server.process.exited;
        server = await startTestServer({ dataDir, env });
        restarted.push(await asker.ask(server, store, true));
      }
    }
    return cells;
  } finally {
    await server[Symbol.asyncDispose]();
  }
}

const ttft = (answers: readonly ChatAnswer[]): number => median(answers.map(({ clientTtftMs }) => clientTtftMs));
const found = (answers: readonly ChatAnswer[]): number =>
  Math.min(...answers.map(({ usage }) => usage.prompt_tokens_details.cached_tokens));

async function run({ say, option }: BenchContext): Promise<BenchReport> {
  const dataDir = mkdtempSync(join(tmpdir(), "spangate-restart-"));
  const model = option("model");
  const kv = option("kv");
  const env = {
    ...{ SPANGATE_KV_DISK_BYTES: "auto", ...kvSettings(kv) },
    ...(model !== undefined && { SPANGATE_MODEL: model }),
  };
  try {
    const cells = await measure(dataDir, env, say);
    const rows = cells.map(({ store: { tokens }, warm, cold, restarted }) => {
      const times = [warm, restarted, cold].map(ttft);
      const [warmMs = 0, restartedMs = 0, coldMs = 0] = times;
      const worstMs = Math.max(...restarted.map(({ clientTtftMs }) => clientTtftMs));
      const counts = [found(warm), found(restarted)].map(String);
      const ratios = [figure(restartedMs / warmMs), figure(coldMs / restartedMs)];
      return [`${fragmentCount} x ${tokens}`, ...counts, ...times.map(figure), figure(worstMs), ...ratios];
    });
    const bars = cells.flatMap(({ store: { tokens }, warm, cold, restarted }) => {
      const name = `${fragmentCount} x ${tokens}`;
      return [
        atMost(`first ttft after a restart / warm, ${name}`, ttft(restarted) / ttft(warm), 2),
        atLeast(`ttft cold / first after a restart, ${name}`, ttft(cold) / ttft(restarted), 10),
        atLeast(`fragment tokens found after a restart, share, ${name}`, found(restarted) / found(warm), 1),
      ];
    });
    const header = [
      "fragments",
      "found warm",
      "restarted",
      "warm ms",
      "restarted ms",
      "cold ms",
      "worst",
      "/ warm",
      "cold /",
    ];
    return { model: `${model ?? "demo"}${kv === undefined ? "" : ` (KV ${kv})`}`, header, rows, bars };
  } finally {
    rmSync(dataDir, { recursive: true, force: true });
  }
}

export const restartBench: Bench = {
  name: "restart",
  summary: "TTFT of the first question over prepared fragments after kill -9 and a start, against warm and cold",
  options: { model: "DIR  a model's folder (default: the demo model)", kv: kvOption },
  run,
};
