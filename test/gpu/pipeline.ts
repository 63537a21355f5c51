/**
 * Steps begun while one runs, against one after the other: `bun test/gpu/pipeline.ts [folder of NVIDIA's libraries]...`.
 * The demo model's answers are the same token by token; then the time of a token at 1, 8 and 64 requests of 1,024 tokens
 * on the shape of Qwen3-8B, with random weights, and what recording graphs at the start takes.
 */
import type { Backend, BegunStep } from "../../worker/backend/backend.ts";
import { CudaBackend, numericMode } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { Batch, TokenCopies } from "../../worker/contract/batch.ts";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { SamplingParams, SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { loadModel } from "../../worker/model/load.ts";
import { CudaEvent } from "../../worker/native/cuda/event.ts";
import type { SampleRequest } from "../../worker/sample/sampler.ts";
import { withParts } from "../support/plain-backend.ts";
import { millisecondsBetween } from "./driver-calls.ts";
import { configOf, openRandomModel } from "./models.ts";
import { gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";

const options = gpuOptions();
const report = new Report();
const blockTokens = 16;
const salt = "pipeline" as CacheSalt;

interface Asked {
  readonly sampling?: Partial<SamplingParams>;
  readonly maxTokens: number;
  readonly stopTokenIds?: readonly number[];
}

function submitOf(requestId: string, tokenIds: Int32Array, { sampling, maxTokens, stopTokenIds = [] }: Asked) {
  const root = rootKey("pipeline", salt, "main");
  const blockKeys = runBlockKeys(root, tokenIds, blockTokens, false);
  const run = { kind: "main" as const, tokenIds, position: 0, sees: [], blockKeys, rootKey: root };
  const params = {
    maxTokens,
    minTokens: 0,
    ignoreEos: true,
    stopTokenIds,
    sampling: { ...greedySampling, ...sampling },
  };
  const message: SubmitMessage = { type: "submit", requestId, plan: { runs: [run] }, params, reuse: false };
  return message;
}

const randomTokens = (count: number, vocabSize: number, seed: number): Int32Array =>
  Int32Array.from({ length: count }, (_, i) => (Math.imul(i + 1, 2_654_435_761) ^ Math.imul(seed, 40_503)) >>> 8).map(
    (value) => value % vocabSize,
  );

async function answersOf(backend: Backend, messages: readonly SubmitMessage[], pipelined: boolean) {
  const answers = new Map<string, number[]>(messages.map(({ requestId }) => [requestId, []]));
  const emit = (message: WorkerMessage): void => {
    if (message.type === "failed") throw new Error(message.message);
    if (message.type === "tokens") answers.get(message.requestId)?.push(...message.tokenIds);
  };
  const limits = { stepTokens: 1_024, maxRunningRequests: 64 };
  const parts = withParts(backend, { pipelined });
  const engine = new Engine({ backend: parts, eosTokenIds: [], limits, clock: () => 0, emit, debug: true });
  for (const message of messages) engine.submit(message);
  while (await engine.step());
  return answers;
}

async function checkAnswers(): Promise<string> {
  const model = loadModel("worker/model/demo", numericMode);
  const device = await openTestDevice(model.config.headDim, options);
  const shared = { kvBytes: 256 << 20, blockTokens, maxRows: 1_024, maxLogitRows: 64 };
  const backend = await CudaBackend.open(device, model, shared);
  await backend.captureDecodes();
  const { vocabSize } = model.config;
  const asked = (n: number): Asked => ({ maxTokens: 60, sampling: n % 2 === 0 ? {} : { temperature: 0.9, seed: n } });
  const together = Array.from({ length: 32 }, (_, n) => submitOf(`r${n}`, randomTokens(9 + n, vocabSize, n), asked(n)));
  const plain = await answersOf(backend, together, false);
  const pipelined = await answersOf(backend, together, true);
  for (const [id, tokens] of plain) assertThat(`${pipelined.get(id)}` === `${tokens}`, `${id} differs`);
  // Ends at other times change who stands beside whom, and so how products round.
  const stopTokenIds = Array.from({ length: 64 }, (_, n) => Math.floor((n * vocabSize) / 64));
  const apart = together.map(({ requestId, plan }, n) =>
    submitOf(requestId, plan.runs[0].tokenIds, { ...asked(n), maxTokens: 5 + 3 * n, stopTokenIds }),
  );
  const [first, second] = [await answersOf(backend, apart, false), await answersOf(backend, apart, true)];
  const same = [...first].filter(([id, tokens]) => `${second.get(id)}` === `${tokens}`).length;
  await backend.dispose();
  assertThat(same >= 28, `with stop tokens ${same} of 32 answers are the same`);
  const counts = new Set(Array.from(first.values(), (tokens) => tokens.length));
  return `32 of 32 answers the same, with ${counts.size} lengths ${same} of 32`;
}

/** Times what the host does to begin a step and, between marks in the stream, what the device does. */
class TimedBackend implements Backend {
  readonly name = "timed";
  readonly shape: Backend["shape"];
  readonly beginMs: number[] = [];
  readonly deviceMs: number[] = [];
  private readonly inner: CudaBackend;
  private readonly device: CudaDevice;
  private readonly marks: readonly [CudaEvent, CudaEvent];

  constructor(inner: CudaBackend, device: CudaDevice) {
    this.inner = inner;
    this.device = device;
    this.shape = inner.shape;
    this.marks = [new CudaEvent(device.context, { timing: true }), new CudaEvent(device.context, { timing: true })];
  }

  beginStep(batch: Batch, requests: readonly SampleRequest[]): BegunStep {
    const startMs = performance.now();
    const begun = this.inner.beginStep(batch, requests);
    this.beginMs.push(performance.now() - startMs);
    return begun;
  }

  async sampleStep(batch: Batch, requests: readonly SampleRequest[]) {
    const [start, end] = this.marks;
    this.device.stream.record(start);
    const begun = this.beginStep(batch, requests);
    this.device.stream.record(end);
    const tokens = await begun.tokens();
    await end.completion();
    this.deviceMs.push(millisecondsBetween(start, end));
    return tokens;
  }

  forward = (batch: Batch) => this.inner.forward(batch);
  copyTokens = (copies: TokenCopies) => this.inner.copyTokens(copies);
  deviations = (batch: Batch) => this.inner.deviations(batch);
  dispose = () => this.inner.dispose();
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN;
}

/** Milliseconds from token to token of a request among `count`, when all decode, with the engine's own loop. */
async function tokenTimes(backend: Backend, count: number, pipelined: boolean): Promise<number[]> {
  const times: number[] = [];
  const emit = (message: WorkerMessage): void => {
    if (message.type === "tokens" && message.requestId === `r${count - 1}`) times.push(performance.now());
  };
  const limits = { stepTokens: 8_192, prefillTokensBesideDecodes: 8_192, maxRunningRequests: 64 };
  const clock = () => performance.now();
  const engine = new Engine({ backend: withParts(backend, { pipelined }), eosTokenIds: [], limits, clock, emit });
  const { vocabSize } = backend.shape;
  for (let n = 0; n < count; n++) engine.submit(submitOf(`r${n}`, randomTokens(992, vocabSize, n), { maxTokens: 96 }));
  const running = engine.run();
  await engine.drain();
  engine.stop();
  await running;
  // The others began up to some steps before; they still run while this one's middle is measured.
  return times
    .slice(1)
    .map((time, i) => time - times[i])
    .slice(8, 64);
}

async function measure(): Promise<void> {
  const config = configOf("Qwen3-8B");
  const device = await openTestDevice(config.headDim, options);
  const backend = await openRandomModel(device, config, { kvBytes: 40e9, maxRows: 8_192 });
  await report.check("graphs at start", async () => {
    const [freeBytes, startMs] = [device.freeBytes(), performance.now()];
    await backend.captureDecodes();
    const totalMs = report.figure("graphs.totalMs", performance.now() - startMs);
    return `${totalMs}, ${report.figure("graphs.bytes", freeBytes - device.freeBytes())}`;
  });
  for (const count of [1, 8, 64]) {
    await report.check(`${count} requests`, async () => {
      const name = (what: string) => `requests${count}.${what}`;
      const timed = new TimedBackend(backend, device);
      const details: string[] = [];
      for (const pipelined of [false, true]) {
        timed.beginMs.length = 0;
        const times = await tokenTimes(timed, count, pipelined);
        const mode = pipelined ? "pipelined" : "plain";
        details.push(report.figure(name(`${mode}.tokenMs`), median(times)));
        details.push(report.figure(name(`${mode}.beginMs`), median(timed.beginMs)));
      }
      details.push(report.figure(name("deviceMs"), median(timed.deviceMs.slice(-64))));
      return details.join(", ");
    });
  }
  await backend.dispose();
}

await report.check("the same answers", checkAnswers);
await measure();
process.exit(await report.end(resultPath(options, "pipeline.json")));
