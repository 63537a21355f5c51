/**
 * Blocks in the host's memory, on the device: `bun test/gpu/tiers.ts [part]... [folder of NVIDIA's libraries]...` from the
 * project's root, parts: twin, rates, ttft, beside, working. Random weights in the shape of Qwen3-8B. Writes
 * $OUT/gpu-tiers.json.
 */

import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaHostBlocks } from "../../worker/backend/cuda/host-blocks.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import { Random } from "../native/random.ts";
import { BenchEngine, median } from "./bench-engine.ts";
import { configOf, openRandomModel } from "./models.ts";
import { movesBlocks } from "./moved-blocks.ts";
import { freshSeed, gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { Report } from "./report.ts";

const blockTokens = 16;
const documentTokens = 512;
const documentCount = 32;
const questionTokens = 32;
const stepTokens = 8_192;
/** 32 documents take 1,024 blocks; questions, answers and streams have the rest. */
const poolBlocks = 2_560;
const hostBlocks = 4_608;

const options = gpuOptions();
const report = new Report();
const config = configOf("Qwen3-8B");
const blockBytes = 2 * 2 * config.layerCount * config.kvHeadCount * config.headDim * blockTokens;
const isWanted = (part: string): boolean => options.parts.length === 0 || options.parts.includes(part);
const percentile = (values: readonly number[], part: number): number =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(part * values.length))] ?? Number.NaN;

/** Bytes a second of copies of whole parts, as many at once as there may be. */
async function rateOf(host: CudaHostBlocks, directions: readonly ("store" | "fetch")[]): Promise<number> {
  const count = 64;
  const run = async (direction: "store" | "fetch", lane: number): Promise<void> => {
    const first = lane * host.blocksPerCopy;
    const slots = Array.from({ length: host.blocksPerCopy }, (_, index) => first + index);
    for (let round = 0; round < count; round++) {
      if (direction === "fetch") (await host.fetch(slots)).place(slots.map((slot) => slot as BlockId));
      else
        await host.store(
          slots.map((slot) => ({ blockId: slot as BlockId, tokenCount: blockTokens })),
          slots,
        );
    }
  };
  const startMs = performance.now();
  const lanes = directions.flatMap((direction, at) =>
    Array.from({ length: host.copiesAtOnce }, (_, lane) => run(direction, at * host.copiesAtOnce + lane)),
  );
  await Promise.all(lanes);
  const bytes = lanes.length * count * host.blocksPerCopy * host.format.bytes;
  return (bytes / (performance.now() - startMs)) * 1_000;
}

async function benchRates(backend: CudaBackend): Promise<string> {
  const host = backend.hostBlocks;
  if (host === undefined) throw new Error("the backend has no host memory");
  await rateOf(host, ["store", "fetch"]);
  const rates = { store: [] as number[], fetch: [] as number[], both: [] as number[] };
  for (let round = 0; round < 5; round++) {
    rates.store.push(await rateOf(host, ["store"]));
    rates.fetch.push(await rateOf(host, ["fetch"]));
    rates.both.push(await rateOf(host, ["store", "fetch"]));
  }
  return [
    report.figure("toHostGBPerSecond", median(rates.store) / 1e9),
    report.figure("toDeviceGBPerSecond", median(rates.fetch) / 1e9),
    report.figure("bothGBPerSecond", median(rates.both) / 1e9),
  ].join(", ");
}

const documentsOf = (engine: BenchEngine, count: number): readonly Int32Array[] =>
  Array.from({ length: count }, () => engine.randomTokens(documentTokens));

/** Time until the first token, in milliseconds. */
async function timeToFirst(engine: BenchEngine, documents: readonly Int32Array[], reuse: boolean): Promise<number> {
  const startMs = performance.now();
  engine.submit(documents, engine.randomTokens(questionTokens), 1, reuse);
  await engine.settle();
  return performance.now() - startMs;
}

async function benchFirstToken(backend: CudaBackend, device: CudaDevice): Promise<string> {
  const engine = new BenchEngine(backend, device, stepTokens, true);
  // Three sets do not fit into the pool, so the one that is asked for has always left it.
  const sets = Array.from({ length: 4 }, () => documentsOf(engine, documentCount));
  for (const set of sets) await timeToFirst(engine, set, true);
  await engine.hostSettled();
  const times = { host: [] as number[], device: [] as number[], computed: [] as number[] };
  for (let round = 0; round < 12; round++) {
    const set = sets[round % sets.length] as readonly Int32Array[];
    times.host.push(await timeToFirst(engine, set, true));
    times.device.push(await timeToFirst(engine, set, true));
    if (round < 5) times.computed.push(await timeToFirst(engine, documentsOf(engine, documentCount), false));
  }
  for (const count of [1, 4]) {
    const some = { host: [] as number[], computed: [] as number[] };
    const small = Array.from({ length: 120 / count }, () => documentsOf(engine, count));
    for (const set of small) await timeToFirst(engine, set, true);
    await engine.hostSettled();
    for (const set of small.slice(0, 16 / count + 2)) {
      some.host.push(await timeToFirst(engine, set, true));
      some.computed.push(await timeToFirst(engine, documentsOf(engine, count), false));
    }
    report.figure(`first${count}.hostMs`, median(some.host));
    report.figure(`first${count}.computedMs`, median(some.computed));
  }
  return [
    report.figure("first32.hostMs", median(times.host.slice(1))),
    report.figure("first32.deviceMs", median(times.device.slice(1))),
    report.figure("first32.computedMs", median(times.computed.slice(1))),
  ].join(", ");
}

/** Times of steps, in which sixteen streams get a token each, while another asks over 32 documents again and again. */
async function benchBeside(backend: CudaBackend, device: CudaDevice): Promise<string> {
  const engine = new BenchEngine(backend, device, stepTokens, true);
  const sets = Array.from({ length: 4 }, () => documentsOf(engine, documentCount));
  for (const set of sets) await timeToFirst(engine, set, true);
  await engine.hostSettled();
  const stepsMs = { loading: [] as number[], resident: [] as number[] };
  for (let round = 0; round < 6; round++) {
    for (const kind of ["resident", "loading"] as const) {
      for (let i = 0; i < 16; i++) engine.submit([], engine.randomTokens(256), 400, false);
      const before = engine.requestCount;
      for (let warm = 0; warm < 20; warm++) await engine.step();
      let asked = 0;
      const times: number[] = [];
      while (engine.requestCount >= before - 1 && times.length < 360) {
        // One request at a time asks; the next begins 25 steps later.
        if (times.length % 25 === 0) {
          const set = sets[kind === "resident" ? 0 : asked % sets.length] as readonly Int32Array[];
          engine.submit(set, engine.randomTokens(questionTokens), 1, true);
          asked += 1;
        }
        const step = await engine.step();
        if (step === undefined) break;
        times.push(step.wallMs);
      }
      await engine.settle();
      if (round > 0) stepsMs[kind].push(...times);
    }
  }
  const of = (kind: "loading" | "resident") => [
    report.figure(`beside.${kind}.p50Ms`, percentile(stepsMs[kind], 0.5)),
    report.figure(`beside.${kind}.p99Ms`, percentile(stepsMs[kind], 0.99)),
  ];
  const ratio = percentile(stepsMs.loading, 0.99) / percentile(stepsMs.resident, 0.99);
  return [...of("resident"), ...of("loading"), report.figure("beside.p99Ratio", ratio)].join(", ");
}

/** Requests a second over a working set of four times the pool, four at once, eight documents each. */
async function benchWorkingSet(backend: CudaBackend, device: CudaDevice): Promise<string> {
  const requestCount = 96;
  const rate = async (hasHost: boolean): Promise<number> => {
    const engine = new BenchEngine(backend, device, stepTokens, hasHost);
    const documents = documentsOf(engine, 136);
    for (let at = 0; at < documents.length; at += 8) await timeToFirst(engine, documents.slice(at, at + 8), true);
    await engine.hostSettled();
    const random = new Random(1);
    const pick = () => {
      const order = documents.map((document) => ({ document, key: random.integer(0, 1 << 30) }));
      return order
        .toSorted((a, b) => a.key - b.key)
        .slice(0, 8)
        .map(({ document }) => document);
    };
    const startMs = performance.now();
    for (let submitted = 0; submitted < requestCount || engine.requestCount > 0; ) {
      while (submitted < requestCount && engine.requestCount < 4) {
        engine.submit(pick(), engine.randomTokens(questionTokens), 8, true);
        submitted += 1;
      }
      await engine.step();
    }
    return (requestCount / (performance.now() - startMs)) * 1_000;
  };
  const [host, computed] = [await rate(true), await rate(false)];
  return [
    report.figure("working.hostRequestsPerSecond", host),
    report.figure("working.computedRequestsPerSecond", computed),
    report.figure("working.ratio", host / computed),
  ].join(", ");
}

async function withModel(
  blocks: number,
  run: (backend: CudaBackend, device: CudaDevice) => Promise<void>,
): Promise<void> {
  const device = await openTestDevice(config.headDim, options);
  const startMs = performance.now();
  const kvBytes = blocks * blockBytes;
  const hostKvBytes = hostBlocks * blockBytes;
  const backend = await openRandomModel(device, config, { kvBytes, maxRows: stepTokens, hostKvBytes });
  console.log(`open after ${(performance.now() - startMs).toFixed(0)} ms, ${hostKvBytes} bytes of host memory`);
  await run(backend, device);
  await backend.dispose();
}

if (isWanted("twin")) {
  const device = await openTestDevice(config.headDim, options);
  await report.check("blocks go down and come up, bit for bit", () =>
    movesBlocks(device, { ...config, layerCount: 5 }, freshSeed(), 40),
  );
  await device.settled();
  device.close();
}
if (["rates", "ttft", "beside"].some(isWanted)) {
  await withModel(poolBlocks, async (backend, device) => {
    if (isWanted("rates")) await report.check("rates", () => benchRates(backend));
    if (isWanted("ttft")) await report.check("first token over 32 x 512", () => benchFirstToken(backend, device));
    if (isWanted("beside")) await report.check("others beside loads", () => benchBeside(backend, device));
  });
}
if (isWanted("working")) {
  // 136 documents take 4,352 blocks; four requests of eight documents just fit.
  await withModel(1_088, (backend, device) =>
    report.check("a working set of four pools", () => benchWorkingSet(backend, device)),
  );
}
process.exitCode = await report.end(resultPath(options, "gpu-tiers.json"));
