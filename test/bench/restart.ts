/**
 * Time to first token of the first question over prepared fragments after kill -9 and a new start, against the same
 * fragments in a server that was not killed (warm), and computed without reuse (cold). All three in one run, through
 * HTTP: from sending the request to the first text. After a start the question is sent as soon as the server is ready.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { addFile, askChat, type ChatAnswer, prepareStore, waitForFile } from "../../gateway/cli/support/operations.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { kvOption, kvSettings } from "./support/kv.ts";
import { SpanTexts } from "./support/prompts.ts";
import { figure, median } from "./support/stats.ts";

const fragmentTokenCounts = [128, 512];
const fragmentCount = 32;
const rounds = 3;

interface Store {
  readonly tokens: number;
  readonly id: string;
}

interface Cell {
  readonly tokens: number;
  readonly warm: ChatAnswer[];
  readonly cold: ChatAnswer[];
  readonly restarted: ChatAnswer[];
}

/** Asks over all fragments of a store. Every question is another one, so that only fragments can be found. */
class Asker {
  readonly #apiKey: string;
  #asked = 0;

  constructor(apiKey: string) {
    this.#apiKey = apiKey;
  }

  async ask(server: TestServer, store: Store, reuse: boolean): Promise<ChatAnswer> {
    this.#asked += 1;
    const answer = await askChat(new HttpClient({ url: server.url, apiKey: this.#apiKey }), {
      model: server.model,
      messages: [{ role: "user", content: `${this.#asked} amber birch cedar delta ember fjord grove heron?` }],
      file_search: { vector_store_ids: [store.id], max_num_results: fragmentCount },
      temperature: 0,
      max_tokens: 1,
      min_tokens: 1,
      ignore_eos: true,
      ...(reuse ? {} : { spangate: { reuse: false } }),
    });
    const { spans } = answer.spangate;
    if (spans.length !== fragmentCount) throw new CommandError(`${spans.length} fragments were found`);
    return answer;
  }
}

async function makeStore(client: HttpClient, texts: SpanTexts, tokens: number): Promise<Store> {
  const { id } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: `${tokens}` });
  const chunking = {
    type: "static",
    static: { max_chunk_size_tokens: Math.max(100, tokens), chunk_overlap_tokens: 0 },
  } as const;
  for (let index = 0; index < fragmentCount; index++) {
    const text = texts.textOf(tokens, tokens * 100 + index);
    const fileId = await addFile(client, id, `${index}.txt`, new Blob([text]), { chunking_strategy: chunking });
    await waitForFile(client, id, fileId, 10);
  }
  await prepareStore(client, id, () => undefined);
  return { tokens, id };
}

async function measure(dataDir: string, env: Record<string, string>, say: (line: string) => void): Promise<Cell[]> {
  const texts = new SpanTexts();
  let server = await startTestServer({ dataDir, env });
  try {
    const { client, apiKey } = await server.tenant("bench");
    const asker = new Asker(apiKey);
    const cells: (Cell & { store: Store })[] = [];
    for (const tokens of fragmentTokenCounts) {
      say(`preparing ${fragmentCount} x ${tokens}`);
      const store = await makeStore(client, texts, tokens);
      cells.push({ tokens, store, warm: [], cold: [], restarted: [] });
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
    const rows = cells.map(({ tokens, warm, cold, restarted }) => {
      const times = [warm, restarted, cold].map(ttft);
      const [warmMs = 0, restartedMs = 0, coldMs = 0] = times;
      const worstMs = Math.max(...restarted.map(({ clientTtftMs }) => clientTtftMs));
      const counts = [found(warm), found(restarted)].map(String);
      const ratios = [figure(restartedMs / warmMs), figure(coldMs / restartedMs)];
      return [`${fragmentCount} x ${tokens}`, ...counts, ...times.map(figure), figure(worstMs), ...ratios];
    });
    const bars = cells.flatMap(({ tokens, warm, cold, restarted }) => {
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
