/**
 * The whole server over every tier: a question over prepared fragments that lie in the pool, in the host's memory and in
 * files, the latter after kill -9 and a start, and over the same texts after their deletion.
 * `bun test/gpu/server-tiers.ts [MODEL]`, DEVICES: cuda:0 unless given; cpu tries this program without a GPU, and
 * without host memory. NVIDIA's libraries in the loader's path. Writes $OUT/server-tiers-MODEL.json.
 */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import {
  addFile,
  askChat,
  type ChatAnswer,
  type MintedKey,
  prepareStore,
  waitForFile,
} from "../../gateway/cli/support/operations.ts";
import { kvBytesPerBlock } from "../../worker/backend/cuda/pool.ts";
import { parseModelConfig } from "../../worker/model/config.ts";
import { SpanTexts } from "../bench/support/prompts.ts";
import { median } from "../bench/support/stats.ts";
import { metricsText } from "../support/operator.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { assertThat, Report } from "./report.ts";

const { DEVICES: device = "cuda:0", OUT: outFolder, SPANGATE_KV_CODEC: codec = "raw" } = process.env;
const model = process.argv[2] ?? demoModelFolder;
const hasHost = device !== "cpu";
const [fragmentTokens, blockTokens, answerTokens] = [512, 16, 16];
/** Small ones on a CPU, which is there to try the program. */
const fragmentCount = hasHost ? 32 : 8;
const storeCount = 3;
const rounds = hasHost ? 4 : 2;

type Source = ChatAnswer["spangate"]["spans"][number]["source"];

interface Asked {
  readonly text: string;
  readonly ttftMs: number;
  /** Of these, what the worker took: from its taking the request to its first token. */
  readonly workerMs: number;
  /** How many spans came from where. */
  readonly sources: ReadonlyMap<Source, number>;
}

interface Owner extends TestTenant {
  /** Of the scope that gives grants. */
  readonly sharingKey: string;
}

interface Store {
  readonly id: string;
  readonly fileIds: string[];
}

const report = new Report();
const texts = new SpanTexts();
const blockBytes = kvBytesPerBlock(
  parseModelConfig(JSON.parse(readFileSync(join(model, "config.json"), "utf8")), model),
  { blockTokens, kvElement: codec === "mx8" ? "mx8" : "bfloat16" },
);
const setBytes = ((fragmentCount * fragmentTokens) / blockTokens) * blockBytes;
const dataDir = mkdtempSync(join(tmpdir(), "spangate-tiers-"));
const env = {
  SPANGATE_DEVICES: device,
  SPANGATE_MODEL: model,
  // Room for one store's fragments and a question, not for those of two. In the host's memory for all stores', and for
  // what questions leave there.
  ...(hasHost && {
    SPANGATE_KV_BYTES: String(Math.ceil(1.6 * setBytes)),
    SPANGATE_KV_HOST_BYTES: String(Math.ceil((storeCount + 3) * setBytes)),
  }),
  SPANGATE_KV_DISK_BYTES: String(8 * storeCount * setBytes),
};

const start = (more: Record<string, string> = {}): Promise<TestServer> =>
  startTestServer({ dataDir, env: { ...env, ...more }, onLog: (text) => void process.stderr.write(text) });

async function openOwner(server: TestServer): Promise<Owner> {
  const tenant = await server.tenant("owner");
  const path = `/admin/v1/tenants/${tenant.id}/keys`;
  const { key = "" } = await server.admin.json<MintedKey>("POST", path, { scopes: ["tenant:admin"] });
  return { ...tenant, sharingKey: key };
}

async function fill(client: HttpClient, store: Store, seed: number): Promise<void> {
  const chunking = {
    type: "static",
    static: { max_chunk_size_tokens: fragmentTokens, chunk_overlap_tokens: 0 },
  } as const;
  for (let index = 0; index < fragmentCount; index++) {
    const text = new Blob([texts.textOf(fragmentTokens, seed * 1_000 + index)]);
    const fileId = await addFile(client, store.id, `${index}.txt`, text, { chunking_strategy: chunking });
    await waitForFile(client, store.id, fileId, 10);
    store.fileIds.push(fileId);
  }
}

async function prepareStores({ client }: Owner, stores: Store[]): Promise<string> {
  for (let seed = 1; seed <= storeCount; seed++) {
    const { id } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: `${seed}` });
    const store = { id, fileIds: [] };
    stores.push(store);
    await fill(client, store, seed);
    await prepareStore(client, id, () => undefined);
  }
  return `${storeCount} stores of ${fragmentCount} fragments of ${fragmentTokens} tokens`;
}

/**
 * Asks over all fragments of the store, for a new tenant that reads it by a grant: nothing of the question is found, so
 * each time the same rows are computed, and the text depends on nothing but the fragments' KV.
 */
async function ask(server: TestServer, owner: Owner, store: Store, reuse = true): Promise<Asked> {
  const { id, apiKey } = await server.tenant("reader");
  const sharing = new HttpClient({ url: server.url, apiKey: owner.sharingKey });
  await sharing.json("POST", `/admin/v1/vector_stores/${store.id}/grants`, { tenant_id: id });
  const answer = await askChat(new HttpClient({ url: server.url, apiKey }), {
    model: server.model,
    messages: [{ role: "user", content: "Which of amber birch cedar delta ember fjord grove heron is there?" }],
    file_search: { vector_store_ids: [store.id], max_num_results: fragmentCount },
    temperature: 0,
    max_tokens: answerTokens,
    min_tokens: answerTokens,
    ignore_eos: true,
    ...(reuse ? {} : { spangate: { reuse: false } }),
  });
  const { spans } = answer.spangate;
  assertThat(spans.length === fragmentCount, `${spans.length} fragments were found for ${owner.id}`);
  const sources = new Map<Source, number>();
  for (const { source } of spans) sources.set(source, (sources.get(source) ?? 0) + 1);
  return { text: answer.text, ttftMs: answer.clientTtftMs, workerMs: answer.spangate.ttft_ms, sources };
}

function wordsOf({ sources, ttftMs, workerMs }: Asked): string {
  const words = [...sources].map(([source, count]) => `${source} ${count}`).join(" ");
  return `${words} (${ttftMs.toFixed(0)}, ${workerMs.toFixed(0)} ms)`;
}

/** What files were read and opened at, waits for turns included. */
async function diskRate(server: TestServer): Promise<string> {
  const text = await metricsText(server);
  const of = (what: string): number =>
    Number(
      new RegExp(`kv_offload_tiering_read_${what}_total\\{.*tier="disk".*\\} (\\S+)`).exec(text)?.[1] ?? Number.NaN,
    );
  return report.figure("disk.GBPerSecond", of("bytes") / of("time") / 1e9);
}

/** Every span of every answer came from one of these places, and the text is the same each time. */
function assertFrom(asked: readonly Asked[], allowed: readonly Source[], text: string): string {
  for (const one of asked) {
    const all = [...one.sources.keys()].every((source) => allowed.includes(source));
    assertThat(all, `spans came from ${wordsOf(one)}, not from ${allowed.join(" or ")}`);
    assertThat(one.text === text, `${JSON.stringify(one.text)} is not ${JSON.stringify(text)}`);
  }
  return asked.map(wordsOf).join("; ");
}

/** Like assertFrom; but where a part was computed, which may be sooner than loading it, its last bits are others. */
function wordsOfAll(asked: readonly Asked[], allowed: readonly Source[], text: string): string {
  const loaded = asked.filter(({ sources }) => !sources.has("computed"));
  assertFrom(loaded, allowed, text);
  return `${asked.map(wordsOf).join("; ")}: ${asked.filter((one) => one.text === text).length} of ${asked.length} the same text`;
}

function times(name: string, asked: readonly Asked[]): string {
  return report.figure(`${name}.ttftMs`, median(asked.map(({ ttftMs }) => ttftMs)));
}

/** A new process's first questions, each asked of one. */
function firstQuestions(ask: () => Promise<Asked>): Promise<Asked[]> {
  return series(ask, hasHost ? 3 : 2);
}

async function killed(server: TestServer): Promise<void> {
  server.process.kill("SIGKILL");
  await server.process.exited;
}

async function run(): Promise<void> {
  let server = await start();
  try {
    const owner = await openOwner(server);
    const stores: Store[] = [];
    await report.check("prepare", () => prepareStores(owner, stores));
    // The one that was prepared last is still in the pool.
    const last = stores.at(-1);
    if (last === undefined) return;
    const { text } = await ask(server, owner, last);
    let computedMs = Number.NaN;
    await report.check("from the pool, and computed", async () => {
      const asked = await series(() => ask(server, owner, last), rounds);
      const cold = await series(() => ask(server, owner, last, false), 2);
      computedMs = median(cold.map(({ ttftMs }) => ttftMs));
      const isSame = cold.every((one) => one.text === text) ? "the same text" : "another text";
      // What was computed in one step with other rows may differ in its last bit on a GPU.
      const words = `computed ${wordsOf(cold[0] as Asked)}: ${isSame}`;
      return `${assertFrom(asked, ["device"], text)}; ${times("device", asked)}, ${times("computed", cold)}; ${words}`;
    });
    if (hasHost) {
      await report.check("from the host's memory", async () => {
        const asked = await series(async () => {
          for (const other of stores.slice(0, -1)) await ask(server, owner, other);
          return await ask(server, owner, last);
        }, rounds);
        assertThat(
          asked.every(({ sources }) => sources.has("host")),
          `nothing came up: ${asked.map(wordsOf).join()}`,
        );
        const overComputed = report.figure("host.overComputed", median(asked.map((one) => one.ttftMs)) / computedMs);
        return `${wordsOfAll(asked, ["host", "device"], text)}; ${times("host", asked)}, ${overComputed}`;
      });
    }
    let restartedMs = Number.NaN;
    await report.check("from files, after kill -9", async () => {
      const asked = await firstQuestions(async () => {
        await killed(server);
        server = await start();
        return await ask(server, owner, last);
      });
      restartedMs = median(asked.map(({ ttftMs }) => ttftMs));
      const words = wordsOfAll(asked, ["disk", "host", "device"], text);
      const overComputed = report.figure("restarted.overComputed", restartedMs / computedMs);
      return `${words}; ${times("restarted", asked)}, ${overComputed}`;
    });
    await report.check("from files that were read after the start", async () => {
      let asked: Asked;
      let seconds = 0;
      do {
        seconds += 4;
        await killed(server);
        server = await start();
        await Bun.sleep(1_000 * seconds);
        asked = await ask(server, owner, last);
      } while (asked.sources.has("computed") && seconds < 12);
      assertThat(asked.sources.has("disk"), `nothing was read: ${wordsOf(asked)}`);
      return `${assertFrom([asked], ["disk", "host", "device"], text)}; ${times("disk", [asked])}, ${await diskRate(server)}`;
    });
    await report.check("computed, after the deletion of its texts and their return", async () => {
      const client = new HttpClient({ url: server.url, apiKey: owner.apiKey });
      for (const fileId of last.fileIds.splice(0)) await client.json("DELETE", `/v1/files/${fileId}`);
      await fill(client, last, storeCount);
      const asked = await ask(server, owner, last);
      assertThat(asked.sources.size === 1 && asked.sources.has("computed"), `spans came from ${wordsOf(asked)}`);
      return `${wordsOf(asked)}; ${times("deleted", [asked])}; ${asked.text === text ? "the same" : "another"} text`;
    });
    await report.check("after kill -9, without files", async () => {
      const asked = await firstQuestions(async () => {
        await killed(server);
        server = await start({ SPANGATE_KV_DISK_BYTES: "0" });
        return await ask(server, owner, last);
      });
      const isComputed = asked.every(({ sources }) => sources.size === 1 && sources.has("computed"));
      assertThat(isComputed, `spans came from ${asked.map(wordsOf).join("; ")}`);
      const words = `${asked.map(wordsOf).join("; ")}; ${times("first", asked)}`;
      const ratio = restartedMs / median(asked.map(({ ttftMs }) => ttftMs));
      const overFirst = report.figure("restarted.overFirst", ratio);
      // A part that is loaded never makes the first question later than computing all of it would.
      assertThat(!hasHost || ratio < 1.05, `${words}, ${overFirst}`);
      return `${words}, ${overFirst}`;
    });
  } finally {
    await server[Symbol.asyncDispose]();
    rmSync(dataDir, { recursive: true, force: true });
  }
}

async function series(one: () => Promise<Asked>, count: number): Promise<Asked[]> {
  const asked: Asked[] = [];
  for (let round = 0; round < count; round++) asked.push(await one());
  return asked;
}

console.log(`${device}, ${model}, KV ${codec}: a store's KV takes ${(setBytes / 2 ** 30).toFixed(2)} GiB on a GPU`);
await report.check("the server", async () => {
  await run();
  return device;
});
process.exit(await report.end(outFolder && join(outFolder, `server-tiers-${basename(model)}-${codec}.json`)));
