/** An engine over a backend whose steps are timed: what the device took, and what the whole step took. */
import type { Backend, BegunStep, HostBlocks } from "../../worker/backend/backend.ts";
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { Batch, TokenCopies } from "../../worker/contract/batch.ts";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { PlanRun, SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { CudaEvent } from "../../worker/native/cuda/event.ts";
import type { SampledToken, SampleRequest } from "../../worker/sample/sampler.ts";
import { millisecondsBetween } from "./driver-calls.ts";

const salt = "bench" as CacheSalt;
const blockTokens = 16;

/** Marks the stream before and behind what a call puts into it. */
class TimedBackend implements Backend {
  readonly name: string;
  readonly shape: Backend["shape"];
  readonly hostBlocks?: HostBlocks;
  readonly deviceMs: number[] = [];
  /** Rows of the steps of the same indices. */
  readonly rows: number[] = [];
  private readonly inner: CudaBackend;
  private readonly device: CudaDevice;
  /** Start and end of a step; two steps can be under way. */
  private readonly marks: readonly (readonly [start: CudaEvent, end: CudaEvent])[];
  private begunCount = 0;

  constructor(inner: CudaBackend, device: CudaDevice, host: HostBlocks | undefined) {
    this.inner = inner;
    this.device = device;
    this.name = inner.name;
    this.shape = inner.shape;
    if (host !== undefined) this.hostBlocks = host;
    const mark = () => new CudaEvent(device.context, { timing: true });
    this.marks = [
      [mark(), mark()],
      [mark(), mark()],
    ];
  }

  forward(batch: Batch): Promise<Float32Array> {
    return this.timed(batch.tokenIds.length, () => this.inner.forward(batch));
  }

  beginStep(batch: Batch, requests: readonly SampleRequest[]): BegunStep {
    const [start, end] = this.marks[this.begunCount++ % 2];
    this.device.stream.record(start);
    const begun = this.inner.beginStep(batch, requests);
    this.device.stream.record(end);
    const rows = batch.tokenIds.length;
    const tokens = async (): Promise<readonly (SampledToken | undefined)[]> => {
      const result = await begun.tokens();
      await this.ended(start, end, rows);
      return result;
    };
    return { drawsOnDevice: begun.drawsOnDevice, tokens };
  }

  sampleStep(batch: Batch, requests: readonly SampleRequest[]): Promise<readonly (SampledToken | undefined)[]> {
    return this.beginStep(batch, requests).tokens();
  }

  copyTokens(copies: TokenCopies): Promise<void> {
    return this.inner.copyTokens(copies);
  }

  deviations(batch: Batch): Promise<Float32Array> {
    return this.inner.deviations(batch);
  }

  dispose(): Promise<void> {
    return this.inner.dispose();
  }

  /** Everything is in the stream when the call first waits. */
  private async timed<Result>(rows: number, call: () => Promise<Result>): Promise<Result> {
    const [start, end] = this.marks[this.begunCount++ % 2];
    this.device.stream.record(start);
    const pending = call();
    this.device.stream.record(end);
    const result = await pending;
    await this.ended(start, end, rows);
    return result;
  }

  private async ended(start: CudaEvent, end: CudaEvent, rows: number): Promise<void> {
    await end.completion();
    this.rows.push(rows);
    this.deviceMs.push(millisecondsBetween(start, end));
  }
}

export interface StepTimes {
  readonly wallMs: number;
  readonly deviceMs: number;
  readonly rows: number;
}

export class BenchEngine {
  readonly backend: TimedBackend;
  private readonly engine: Engine;
  private readonly messages: WorkerMessage[] = [];
  private submitted = 0;

  /** @param host memory of the host that blocks are kept in; undefined: none */
  constructor(inner: CudaBackend, device: CudaDevice, stepTokens: number, host?: HostBlocks) {
    this.backend = new TimedBackend(inner, device, host);
    const limits = { stepTokens, prefillTokensBesideDecodes: stepTokens, maxRunningRequests: 64 };
    const emit = (message: WorkerMessage) => void this.messages.push(message);
    const clock = () => performance.now();
    this.engine = new Engine({ backend: this.backend, eosTokenIds: [], limits, clock, emit });
  }

  /** Resolves when everything that was computed is in the host's memory too. */
  hostSettled(): Promise<void> {
    return this.engine.tiers.host?.settled() ?? Promise.resolve();
  }

  /** Requests in progress. */
  get requestCount(): number {
    const { runningRequests, waitingRequests } = this.engine.stats();
    return runningRequests + waitingRequests;
  }

  /** Tokens drawn from the vocabulary. */
  randomTokens(count: number): Int32Array {
    const { vocabSize } = this.backend.shape;
    return Int32Array.from({ length: count }, () => Math.floor(Math.random() * vocabSize));
  }

  /**
   * A prompt of documents as spans, then a question; without reuse everything is computed.
   * @param rotations false: all documents are read as if they stood at the same place, so q is rotated once for all of them
   */
  submit(
    documents: readonly Int32Array[],
    question: Int32Array,
    maxTokens: number,
    reuse: boolean,
    rotations = true,
  ): void {
    this.engine.submit(this.plan(documents, question, maxTokens, reuse, rotations));
  }

  /** What `submit` gives to the engine. Another process makes it for a worker, and hashes all of its tokens for that. */
  plan(
    documents: readonly Int32Array[],
    question: Int32Array,
    maxTokens: number,
    reuse: boolean,
    rotations = true,
  ): SubmitMessage {
    const requestId = `bench-${this.submitted++}`;
    const params = { maxTokens, minTokens: 0, ignoreEos: true, stopTokenIds: [], sampling: greedySampling };
    return { type: "submit", requestId, plan: planOf(documents, question, rotations), params, reuse };
  }

  submitPlanned(message: SubmitMessage): void {
    this.engine.submit(message);
  }

  /** One step; undefined when there is nothing left to do. */
  async step(): Promise<StepTimes | undefined> {
    const startMs = performance.now();
    const before = this.backend.deviceMs.length;
    if (!(await this.engine.step())) return undefined;
    const failed = this.messages.find((message) => message.type === "failed");
    if (failed !== undefined) throw new Error(failed.message);
    this.messages.length = 0;
    const deviceMs = this.backend.deviceMs.slice(before).reduce((sum, ms) => sum + ms, 0);
    const rows = Math.max(0, ...this.backend.rows.slice(before));
    return { wallMs: performance.now() - startMs, deviceMs, rows };
  }

  /** Steps until all is done. */
  async settle(): Promise<StepTimes[]> {
    const steps: StepTimes[] = [];
    for (let times = await this.step(); times !== undefined; times = await this.step()) steps.push(times);
    return steps;
  }
}

function planOf(documents: readonly Int32Array[], question: Int32Array, rotations: boolean): SubmitMessage["plan"] {
  const runs: PlanRun[] = [];
  const sees: PlanRun["sees"][number][] = [];
  const add = (kind: PlanRun["kind"], tokenIds: Int32Array, position: number, closed: boolean) => {
    const root: BlockKey = rootKey("bench", salt, kind);
    const blockKeys = runBlockKeys(root, tokenIds, blockTokens, closed);
    runs.push({ kind, tokenIds, blockKeys, rootKey: root, position, sees: kind === "main" ? [...sees] : [] });
  };
  let position = 0;
  for (const tokenIds of documents) {
    sees.push({ run: runs.length, firstToken: 0, tokenCount: tokenIds.length, offset: rotations ? position : 0 });
    add("span", tokenIds, 0, true);
    position += tokenIds.length;
  }
  add("main", question, position, false);
  return { runs };
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}
