/**
 * The whole server with a worker on each device, and the demo model: answers, prepared fragments on both, what
 * it tells of its workers, a worker that is killed under load, fragments that have room on one alone.
 * `bun test/gpu/pool.ts [DEVICES]`, cuda:0,cuda:1 unless given; NVIDIA's libraries in the loader's path. Writes
 * $OUT/pool.json.
 */
import { readDemoCorpora } from "../../gateway/cli/demo-corpora.ts";
import { allReady, cacheOf, metricsText, workersOf } from "../support/operator.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";
import { askQuestions, openStore, rightAnswers } from "./pool-answers.ts";
import { killUnderLoad } from "./pool-kill.ts";
import { spreadCold } from "./pool-spread.ts";
import { assertThat, Report } from "./report.ts";

const devices = (process.argv[2] ?? "cuda:0,cuda:1").split(",");
const isCuda = devices.every((name) => name.startsWith("cuda:"));
const report = new Report();

function open(env: Readonly<Record<string, string>> = {}): Promise<TestServer> {
  const threads: Record<string, string> = isCuda ? {} : { SPANGATE_THREADS: "1" };
  const onLog = (text: string) => void process.stderr.write(text);
  return startTestServer({ env: { SPANGATE_DEVICES: devices.join(","), ...threads, ...env }, onLog });
}

async function checkWorkers(server: TestServer): Promise<string> {
  const workers = await workersOf(server);
  assertThat(workers.map(({ device }) => device).join() === devices.join(), JSON.stringify(workers));
  assertThat(
    workers.every(({ backend, restarts }) => backend === (isCuda ? "cuda" : "cpu") && restarts === 0),
    JSON.stringify(workers),
  );
  const tokens = workers.map(({ block_count: blocks, block_tokens: size }) => (blocks ?? 0) * (size ?? 0));
  return `room for ${tokens.join(" and ")} tokens`;
}

async function checkMetrics(server: TestServer): Promise<string> {
  const names = ["spangate_worker_ready", "spangate_computed_tokens_total", "vllm:prefix_cache_hits_total"];
  const workerIds = devices.map((_, index) => `worker-${index}`);
  let values: number[][] = [];
  // Workers tell their counters every second.
  await until(
    async () => {
      const text = await metricsText(server);
      const sampleOf = (name: string, worker: string): number =>
        Number(new RegExp(`^${name}\\{(?:[^}]*,)?worker="${worker}"\\} (\\S+)$`, "m").exec(text)?.[1]);
      values = names.map((name) => workerIds.map((id) => sampleOf(name, id)));
      return values.flat().every((value) => value > 0);
    },
    "the metrics tell of every worker",
    60_000,
  );
  return names.map((name, index) => `${name} ${values[index]?.join(" and ")}`).join(", ");
}

async function run(): Promise<void> {
  await using server = await open();
  await allReady(server, devices.length);
  await report.check("workers", () => checkWorkers(server));
  const stores = await Promise.all(readDemoCorpora().map((corpus) => openStore(server, corpus)));
  await report.check("prepared on every worker", async () => {
    const parts = await Promise.all(stores.map(({ tenant }) => cacheOf(server, tenant.id)));
    const held = parts.map((part) => part?.workers.map((worker) => worker.fragment_blocks) ?? []);
    const isEven = held.every((blocks) => blocks.length === devices.length && new Set(blocks).size === 1);
    assertThat(isEven && held.flat().every((blocks) => blocks > 0), JSON.stringify(held));
    return `fragment blocks of each tenant on each worker: ${JSON.stringify(held)}`;
  });
  await report.check("the demo's answers, prepared and computed anew", async () => {
    const answers = (await Promise.all(stores.map((store) => askQuestions(server, store)))).flat();
    const right = rightAnswers(answers);
    report.figure("answers.right", right.count);
    report.figure("answers.asked", answers.length);
    assertThat(right.ofDemo === 12, `${right.ofDemo} of the demo's 12: ${right.words}`);
    return right.words;
  });
  await report.check("metrics", () => checkMetrics(server));
  await report.check("a worker killed under load", () => killUnderLoad(server, isCuda ? 12_000 : 800));
}

async function runSmallPool(): Promise<void> {
  // Room for some thousand tokens of the demo model on each worker.
  await using server = await open({ SPANGATE_KV_BYTES: String(2 ** 26) });
  await allReady(server, devices.length);
  await report.check("cold fragments are spread, hot ones are on every worker", () => spreadCold(server));
}

await run();
if (devices.length === 2) await runSmallPool();
const { OUT: outFolder } = process.env;
process.exit(await report.end(outFolder && `${outFolder}/pool.json`));
