/**
 * Blocks in the host's memory, on the device: `bun test/gpu/tiers.ts [part]... [folder of NVIDIA's libraries]...` from the
 * project's root, parts: twin, rates, ttft, beside, working. Random weights in the shape of Qwen3-8B; SPANGATE_KV_CODEC=mx8:
 * KV in mx8. Writes $OUT/gpu-tiers.json, and every step beside loads to $OUT/gpu-beside-steps.json.
 */

import type { HostBlocks } from "../../worker/backend/backend.ts";
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaHostBlocks } from "../../worker/backend/cuda/host-blocks.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { type KvElement, kvBytesPerBlock } from "../../worker/backend/cuda/pool.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import { Random } from "../native/random.ts";
import { BenchEngine, median } from "./bench-engine.ts";
import { benchBeside } from "./beside.ts";
import { configOf, openRandomModel } from "./models.ts";
import { movesBlocks } from "./moved-blocks.ts";
import { freshSeed, gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { Report } from "./report.ts";

const blockTokens = 16;
const documentTokens = 512;
const documentCount = 32;
const questionTokens = 32;
const stepTokens = 8_192;

const options = gpuOptions();
const report = new Report();
const config = configOf("Qwen3-8B");
const kvElement: KvElement = process.env.SPANGATE_KV_CODEC === "mx8" ? "mx8" : "bfloat16";
const blockBytes = kvBytesPerBlock(config, { blockTokens, kvElement });
const isWanted = (part: string): boolean => options.parts.length === 0 || options.parts.includes(part);

/** Bytes a second of copies of whole parts, as many at once as there may be. */
async function rateOf(host: CudaHostBlocks, directions: readonly ("store" | "fetch")[]): Promise<number> {
  const count = 64;
  const run = async (direction: "store" | "fetch", lane: number): Promise<void> => {
    const first = lane * host.pace.blocksPerCopy;
    const slots = Array.from({ length: host.pace.blocksPerCopy }, (_, index) => first + index);
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
    Array.from({ length: host.pace.copiesAtOnce }, (_, lane) => run(direction, at * host.pace.copiesAtOnce + lane)),
  );
  await Promise.all(lanes);
  const bytes = lanes.length * count * host.pace.blocksPerCopy * host.format.bytes;
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
  const engine = new BenchEngine(backend, device, stepTokens, backend.hostBlocks);
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
    await engine.hostSettled();
    report.figure(`first${count}.hostMs`, median(some.host));
    report.figure(`first${count}.computedMs`, median(some.computed));
  }
  return [
    report.figure("first32.hostMs", median(times.host.slice(1))),
    report.figure("first32.deviceMs", median(times.device.slice(1))),
    report.figure("first32.computedMs", median(times.computed.slice(1))),
  ].join(", ");
}

interface WorkingSet {
  readonly documents: number;
  readonly requests: number;
  readonly answerTokens: number;
}

/** Requests a second over a working set of four times the pool, sixteen at once, eight documents each. */
async function benchWorkingSet(backend: CudaBackend, device: CudaDevice, set: WorkingSet): Promise<string> {
  const rate = async (host: HostBlocks | undefined): Promise<number> => {
    const engine = new BenchEngine(backend, device, stepTokens, host);
    const documents = documentsOf(engine, set.documents);
    for (let at = 0; at < documents.length; at += 8) await timeToFirst(engine, documents.slice(at, at + 8), true);
    await engine.hostSettled();
    const random = new Random(1);
    const pick = () => {
      const order = documents.map((document) => ({ document, key: random.integer(0, 1 << 30) }));
      const chosen = order.toSorted((a, b) => a.key - b.key).slice(0, 8);
      return chosen.map(({ document }) => document);
    };
    const startMs = performance.now();
    for (let submitted = 0; submitted < set.requests || engine.requestCount > 0; ) {
      while (submitted < set.requests && engine.requestCount < 16) {
        engine.submit(pick(), engine.randomTokens(questionTokens), set.answerTokens, true);
        submitted += 1;
      }
      await engine.step();
    }
    const elapsedMs = performance.now() - startMs;
    await engine.hostSettled();
    return (set.requests / elapsedMs) * 1_000;
  };
  const [host, computed] = [await rate(backend.hostBlocks), await rate(undefined)];
  const name = (what: string) => `working${set.answerTokens}.${what}`;
  return [
    report.figure(name("hostRequestsPerSecond"), host),
    report.figure(name("computedRequestsPerSecond"), computed),
    report.figure(name("ratio"), host / computed),
  ].join(", ");
}

async function withModel(
  blocks: number,
  hostBlocks: number,
  run: (backend: CudaBackend, device: CudaDevice) => Promise<void>,
): Promise<void> {
  const device = await openTestDevice(config.headDim, options, kvElement);
  const startMs = performance.now();
  const kvBytes = blocks * blockBytes;
  const hostKvBytes = hostBlocks * blockBytes;
  const backend = await openRandomModel(device, config, { kvBytes, maxRows: stepTokens, hostKvBytes, kvElement });
  console.log(`open after ${(performance.now() - startMs).toFixed(0)} ms, ${hostKvBytes} bytes of host memory`);
  await run(backend, device);
  await device.settled();
  await backend.dispose();
}

if (isWanted("twin")) {
  const device = await openTestDevice(config.headDim, options, kvElement);
  await report.check("blocks go down and come up, bit for bit", () =>
    movesBlocks(device, { ...config, layerCount: 5 }, { seed: freshSeed(), rounds: 40, kvElement }),
  );
  await device.settled();
  device.close();
}
if (["rates", "ttft", "beside"].some(isWanted)) {
  // Two sets of documents fit into the pool, and four into the host's memory beside what streams leave there meanwhile.
  await withModel(2_560, 8_192, async (backend, device) => {
    if (isWanted("rates")) await report.check("rates", () => benchRates(backend));
    if (isWanted("ttft")) await report.check("first token over 32 x 512", () => benchFirstToken(backend, device));
    if (isWanted("beside")) await report.check("others beside loads", () => benchBeside(report, backend, device));
  });
}
if (isWanted("working")) {
  // 16 requests over 8 documents of 32 blocks, with questions and answers, just fit; 544 documents are four pools.
  await withModel(4_352, 18_432, async (backend, device) => {
    for (const [requests, answerTokens] of [
      [256, 8],
      [128, 64],
    ] as const) {
      const set = { documents: 544, requests, answerTokens };
      await report.check(`a working set of four pools, ${answerTokens} tokens an answer`, () =>
        benchWorkingSet(backend, device, set),
      );
    }
  });
}
process.exitCode = await report.end(resultPath(options, "gpu-tiers.json"));
