/**
 * Requests per second of several workers against one, on a mixed load: questions over prepared vector stores, questions
 * with documents of their own of which some are asked about much, and plain chat. Each arm has a server of its own.
 */
import { CommandError } from "../../gateway/cli/command.ts";
import { type DemoCorpus, readDemoCorpora } from "../../gateway/cli/demo-corpora.ts";
import { addFile, askChat, type ChatAnswer, prepareStore, waitForFile } from "../../gateway/cli/operations.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { atLeast, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { fillerWords, SpanTexts } from "./support/prompts.ts";
import { drawQueries, randomNumbers } from "./support/reuse-order.ts";
import { figure, median, quantile } from "./support/stats.ts";

const documentCount = 200;
const documentTokens = 128;
const answerTokens = 32;
const concurrencyPerWorker = 16;
/** Parts of the load; the rest is plain chat. */
const searchShare = 0.6;
const documentShare = 0.3;

interface Party {
  readonly tenant: TestTenant;
  readonly corpus: DemoCorpus;
  readonly storeId: string;
}

interface Arm {
  readonly devices: readonly string[];
  readonly requestsPerSecond: number;
  readonly ttftP50Ms: number;
  readonly ttftP95Ms: number;
  readonly cachedShare: number;
  /** Requests that each worker answered. */
  readonly perWorker: Readonly<Record<string, number>>;
}

async function openParty(server: TestServer, corpus: DemoCorpus): Promise<Party> {
  const tenant = await server.tenant(corpus.tenant);
  const { id: storeId } = await tenant.client.json<{ id: string }>("POST", "/v1/vector_stores", {
    name: corpus.tenant,
  });
  for (const { name, text } of corpus.documents) {
    const fileId = await addFile(tenant.client, storeId, name, new Blob([text]));
    await waitForFile(tenant.client, storeId, fileId);
  }
  await prepareStore(tenant.client, storeId, () => undefined);
  return { tenant, corpus, storeId };
}

async function allReady(server: TestServer, workerCount: number): Promise<void> {
  for (let round = 0; round < 600; round++) {
    const { data } = await server.admin.json<{ data: { state: string }[] }>("GET", "/admin/v1/workers");
    if (data.filter(({ state }) => state === "ready").length === workerCount) return;
    await Bun.sleep(100);
  }
  throw new CommandError("not every worker became ready");
}

/** The same requests for both arms. */
function makeAsker(server: TestServer, parties: readonly Party[], requestCount: number) {
  const texts = new SpanTexts();
  const documents = Array.from({ length: documentCount }, (_, index) => texts.textOf(documentTokens, 30_000 + index));
  const workload = { queryCount: requestCount, fragmentsPerQuery: 4, fragmentCount: documentCount, zipf: 1.1, seed: 5 };
  const queries = drawQueries(workload);
  const random = randomNumbers(6);
  const kinds = queries.map(() => random());
  return async (index: number): Promise<ChatAnswer> => {
    const party = parties[index % parties.length];
    const kind = kinds[index];
    if (party === undefined || kind === undefined) throw new CommandError(`there is no request ${index}`);
    const { tenant, corpus, storeId } = party;
    const question = corpus.questions[index % corpus.questions.length]?.question ?? "";
    const own = fillerWords(index + 50_000, 12).join(" ");
    const isSearch = kind < searchShare;
    const asked = isSearch
      ? { file_search: { vector_store_ids: [storeId], max_num_results: 6 } }
      : kind < searchShare + documentShare
        ? { documents: (queries[index] ?? []).map((id) => ({ text: documents[id] ?? "" })) }
        : {};
    return await askChat(tenant.client, {
      model: server.model,
      messages: [{ role: "user", content: isSearch ? question : own }],
      ...asked,
      temperature: 0,
      max_tokens: answerTokens,
      min_tokens: answerTokens,
      ignore_eos: true,
    });
  };
}

async function runArm(devices: readonly string[], requestCount: number, threads: string | undefined): Promise<Arm> {
  const env: Record<string, string> = { SPANGATE_DEVICES: devices.join(",") };
  if (threads !== undefined) env.SPANGATE_THREADS = threads;
  await using server = await startTestServer({ env });
  await allReady(server, devices.length);
  const parties: Party[] = [];
  for (const corpus of readDemoCorpora()) parties.push(await openParty(server, corpus));
  const ask = makeAsker(server, parties, requestCount);
  const indexes = Array.from({ length: requestCount }, (_, index) => index);
  const startMs = performance.now();
  const answers = await mapConcurrent(indexes, concurrencyPerWorker * devices.length, ask);
  const seconds = (performance.now() - startMs) / 1_000;
  const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
  const perWorker = Object.groupBy(answers, ({ spangate }) => spangate.worker);
  const ttftMs = answers.map(({ clientTtftMs }) => clientTtftMs);
  return {
    devices,
    requestsPerSecond: requestCount / seconds,
    ttftP50Ms: median(ttftMs),
    ttftP95Ms: quantile(ttftMs, 0.95),
    cachedShare:
      sum(answers.map(({ usage }) => usage.prompt_tokens_details.cached_tokens)) /
      sum(answers.map(({ usage }) => usage.prompt_tokens)),
    perWorker: Object.fromEntries(Object.entries(perWorker).map(([id, ofWorker]) => [id, ofWorker?.length ?? 0])),
  };
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const devices = (option("devices") ?? "cpu,cpu").split(",");
  const requestCount = Number(option("requests") ?? 600);
  if (devices.length < 2) throw new CommandError("--devices must name two devices or more");
  if (!(Number.isInteger(requestCount) && requestCount >= 1 && requestCount <= 100_000)) {
    throw new CommandError("--requests must be a whole number from 1 to 100000");
  }
  // A worker on the CPU gets as many threads alone as it has beside others, so that the arms differ in workers only.
  const threads = devices.every((name) => name === "cpu") ? "1" : undefined;
  const arms: Arm[] = [];
  for (const used of [devices.slice(0, 1), devices]) {
    say(`${used.join(",")}: ${requestCount} requests`);
    arms.push(await runArm(used, requestCount, threads));
  }
  const [one, all] = arms;
  const ratio = one === undefined || all === undefined ? Number.NaN : all.requestsPerSecond / one.requestsPerSecond;
  return {
    model: devices[0] ?? "",
    header: ["devices", "requests/s", "TTFT p50 ms", "p95", "tokens found", "requests of each worker"],
    rows: arms.map((arm) => [
      arm.devices.join(","),
      figure(arm.requestsPerSecond),
      figure(arm.ttftP50Ms),
      figure(arm.ttftP95Ms),
      `${(100 * arm.cachedShare).toFixed(1)} %`,
      Object.values(arm.perWorker).join(" + "),
    ]),
    notes: [
      `${requestCount} requests, ${concurrencyPerWorker} at a time for each worker, ${answerTokens} tokens of answer.`,
      "60 % over prepared stores, 30 % with 4 of 200 documents (Zipf 1.1), 10 % plain. On the CPU one thread a worker.",
    ],
    bars: [atLeast(`requests/s, ${devices.length} workers / 1`, ratio, 0.95 * devices.length)],
    details: { arms },
  };
}

export const poolBench: Bench = {
  name: "pool",
  summary: "Requests per second of several workers against one, on a mixed load",
  options: {
    devices: "LIST  as SPANGATE_DEVICES, two or more (cpu,cpu)",
    requests: "N  of each arm (600)",
  },
  run,
};
