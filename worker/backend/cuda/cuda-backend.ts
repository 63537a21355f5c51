/**
 * The CUDA backend: one device, one stream. A step is one copy of its integers, the launches of its bucket
 * (forward.ts; a graph where it is a decode step), and one copy back of what was asked for.
 */
import type { Batch, TokenCopies } from "../../contract/batch.ts";
import type { ChoiceCounts } from "../../contract/sparse.ts";
import type { LoadedModel } from "../../model/load.ts";
import { type SampledToken, type SampleRequest, Sampler } from "../../sample/sampler.ts";
import { type Backend, type BackendShape, type BegunStep, DeviceLost } from "../backend.ts";
import { AlternatingAnswers } from "./alternating-answers.ts";
import type { ComputeDevice } from "./device/device.ts";
import { Forward } from "./forward.ts";
import type { ForwardParts, Op } from "./forward-parts.ts";
import { bucketOf, DecodeGraphs, type StepKind, smallBuckets } from "./graphs.ts";
import { blockFormatOf, CudaHostBlocks } from "./host-blocks.ts";
import { type CudaBackendOptions, type CudaModel, makeParts, stepCapacity } from "./parts.ts";
import { encodeSamples, type SampleLists, wantsLogprobs } from "./sampling.ts";
import { ChoiceCounters, sparseShapeOf } from "./sparse/choice-counters.ts";
import { shadowSlots } from "./sparse/sparse-ops.ts";
import { StepLayout, stepCounts } from "./staging.ts";
import { StepPlanner } from "./step-planner.ts";

export type { CudaBackendOptions, CudaModel } from "./parts.ts";

/** Names the arithmetic: KV that another numeric mode computed belongs to another model (see model/digest.ts). */
export const numericMode = "cuda-bfloat16";

/** The mode with what else decides the numbers: 8-bit floats as weights, which some devices multiply as they are, and KV in mx8. */
export function numericModeOf(isE4m3: boolean, isMx8: boolean): string {
  return `${numericMode}${isE4m3 ? "/e4m3" : ""}${isMx8 ? "/kv-mx8" : ""}`;
}

export class CudaBackend implements Backend {
  readonly name = "cuda";
  readonly shape: BackendShape;
  /** Bytes of device memory that the weights take. */
  readonly weightBytes: number;
  readonly hostBlocks?: CudaHostBlocks;
  readonly #parts: ForwardParts;
  readonly #options: CudaBackendOptions;
  readonly #planner: StepPlanner;
  readonly #forwards = new Map<number, Forward>();
  readonly #heads = new Map<string, readonly Op[]>();
  readonly #hostSampler: Sampler;
  readonly #graphs: DecodeGraphs;
  /** In pinned memory, as the copies from the device need it. */
  readonly #logits: Float32Array;
  readonly #deviations: Float32Array;
  readonly #answers: AlternatingAnswers;
  readonly #copies: Int32Array;
  readonly #copyBuffer: ReturnType<ComputeDevice["allocate"]>;
  readonly #counts: ChoiceCounters | undefined;

  private constructor(parts: ForwardParts, options: CudaBackendOptions) {
    const { device, config, pool, kvElement } = parts;
    this.#parts = parts;
    this.#options = options;
    this.#planner = new StepPlanner(config, parts.packShape);
    this.#graphs = new DecodeGraphs(device);
    this.weightBytes = parts.weights.byteLength;
    const floats = (name: string, count: number) => new Float32Array(device.allocateHost(name, count * 4).buffer);
    this.#logits = floats("logits", bucketOf(options.maxLogitRows) * config.vocabSize);
    this.#deviations = floats("deviations", options.maxRows);
    this.#hostSampler = new Sampler(config.vocabSize);
    this.#answers = new AlternatingAnswers(device, parts.answer.wordCount);
    this.#copies = new Int32Array(device.allocateHost("copies", copyWords(options.maxRows) * 4).buffer);
    this.#copyBuffer = device.allocate("copies", copyWords(options.maxRows) * 4);
    const { blockTokens, hostKvBytes = 0 } = options;
    if (hostKvBytes > 0) {
      const format = blockFormatOf(device, config, blockTokens, kvElement);
      const { sparse } = parts;
      this.hostBlocks = new CudaHostBlocks({ device, pool, format, blockTokens, hostBytes: hostKvBytes, sparse });
    }
    this.shape = {
      vocabSize: config.vocabSize,
      contextTokens: config.contextTokens,
      blockTokens: options.blockTokens,
      blockCount: pool.blockCount,
      kvBytesPerBlock: pool.blockBytes,
      ...(kvElement === "mx8" && { blends: false }),
      ...(parts.sparse && { sparse: sparseShapeOf(parts.sparse) }),
    };
    this.#counts = parts.sparse && new ChoiceCounters(parts.sparse);
  }

  /**
   * Puts the weights on the device and takes the rest of its memory for KV. From this call on the backend owns the
   * device, and closes it when opening fails.
   * @throws ModelError, CudaError, or Error in one sentence when the model does not fit
   */
  static async open(device: ComputeDevice, model: CudaModel | LoadedModel, options: CudaBackendOptions) {
    try {
      const backend = new CudaBackend(await makeParts(device, model, options), options);
      await device.settled();
      return backend;
    } catch (error) {
      const close = async () => {
        await device.settled();
        device.close();
      };
      // Closing a failed device may fail too; the caller gets the first error, which says what happened.
      await close().catch(() => undefined);
      throw error;
    }
  }

  async forward(batch: Batch): Promise<Float32Array> {
    const logits = this.#startLogits(batch);
    await this.#settled();
    return logits;
  }

  async sampleStep(batch: Batch, requests: readonly SampleRequest[]): Promise<readonly (SampledToken | undefined)[]> {
    return this.beginStep(batch, requests).tokens();
  }

  beginStep(batch: Batch, requests: readonly SampleRequest[]): BegunStep {
    const { device, workspace, answer, staging } = this.#parts;
    const samples = encodeSamples(requests);
    // The host applies grammar masks. It also samples when edits fill over half the space for lists: that is as quick
    // there.
    const constrained = requests.some(({ constraint }) => constraint !== undefined);
    const hasRoom =
      !constrained && 2 * samples.edits.length < staging.roomFor(this.#forwardOf(batch.tokenIds.length).layout);
    const { words, mark } = this.#answers.next();
    if (!hasRoom) {
      const logits = this.#startLogits(batch);
      mark.set();
      const tokens = async () => {
        await this.#settled(mark.reached());
        return this.#sampleOnHost(logits, requests);
      };
      return { drawsOnDevice: false, tokens };
    }
    this.#start(batch, requests.length === 0 ? undefined : samples);
    const wordCount = wantsLogprobs(requests) ? answer.wordCount : requests.length;
    if (requests.length > 0) device.copyOut(words.subarray(0, wordCount), workspace.answer);
    mark.set();
    const tokens = async () => {
      await this.#settled(mark.reached());
      return answer.decode(words, requests);
    };
    return { drawsOnDevice: true, tokens };
  }

  /** Records the graphs of small decode steps at the start, so that no request waits for a recording. */
  async captureDecodes(): Promise<void> {
    const { maxRows, maxLogitRows } = this.#options;
    if (this.#options.graphs === false) return;
    for (const rows of smallBuckets.filter((size) => size <= Math.min(bucketOf(maxLogitRows), maxRows))) {
      const forward = this.#forwardOf(rows);
      const ops = this.#opsOf(forward, rows, true, "tokens");
      const ofSliding = this.#parts.config.window === undefined ? [false] : [false, true];
      const ofChoosing = this.#parts.sparse === undefined ? [false] : [false, true];
      const kinds = [false, true].flatMap((full) => ofSliding.map((sliding) => ({ small: true, full, sliding })));
      const launchesOf = kinds.flatMap((kind) => ofChoosing.map((chooses) => ({ ...kind, chooses })));
      if (this.#parts.sparse) launchesOf.push({ small: false, full: false, sliding: false, chooses: true });
      for (const launches of launchesOf) {
        this.#parts.staging.sendNothing();
        this.#graphs.run("tokens", forward.layout.capacity, launches, ops);
      }
      await this.#settled();
    }
  }

  async copyTokens({ sourceSlots, targetSlots, deltas }: TokenCopies): Promise<void> {
    const { maxRows } = this.#options;
    this.#assertMoves();
    for (let from = 0; from < sourceSlots.length; from += maxRows) {
      const part = (list: Int32Array) => list.subarray(from, from + maxRows);
      this.#copyPart(part(sourceSlots), part(targetSlots), part(deltas));
      await this.#settled();
    }
  }

  async deviations(batch: Batch): Promise<Float32Array> {
    const { device, workspace } = this.#parts;
    this.#assertMoves();
    const out = this.#deviations.subarray(0, batch.tokenIds.length);
    if (this.#parts.config.layerCount === 1) return out.fill(0);
    const plans = this.#planner.plan(batch);
    const forward = this.#forwardOf(batch.tokenIds.length);
    this.#parts.staging.send(forward.layout, batch, plans);
    const counts = stepCounts(batch, plans);
    for (const op of forward.probe) op(counts);
    device.copyOut(out, workspace.deviations);
    await this.#settled();
    return out;
  }

  choiceCounts(seat: number): ChoiceCounts {
    if (this.#counts === undefined) throw new Error("no row of this backend chooses what it reads");
    return this.#counts.of(seat);
  }

  async dispose(): Promise<void> {
    await this.#parts.device.settled();
    this.#graphs.close();
    this.#parts.device.close();
  }

  /** @throws Error where K would be rounded again */
  #assertMoves(): void {
    if (this.#parts.kvElement === "mx8")
      throw new Error("KV in mx8 stays where it is: moved, it would be rounded again");
  }

  /** Waits for the device. A device fault shows here as DeviceLost; nothing can run on the device afterwards. */
  async #settled(done = this.#parts.device.settled()): Promise<void> {
    try {
      await done;
    } catch (error) {
      throw new DeviceLost(`the device failed: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  #sampleOnHost(logits: Float32Array, requests: readonly SampleRequest[]): (SampledToken | undefined)[] {
    const { vocabSize } = this.shape;
    return requests.map((request, row) => {
      const own = logits.subarray(row * vocabSize, (row + 1) * vocabSize);
      try {
        return this.#hostSampler.sample(own, request);
      } catch (error) {
        if (error instanceof RangeError) return undefined;
        throw error;
      }
    });
  }

  /** Puts a step into the stream, up to its logits, or with `samples` up to its tokens. */
  #start(batch: Batch, samples?: SampleLists): void {
    this.#counts?.assertFit(batch);
    const plans = this.#planner.plan(batch);
    const forward = this.#forwardOf(batch.tokenIds.length);
    this.#parts.staging.send(forward.layout, batch, plans, samples);
    const kind = samples === undefined ? "logits" : "tokens";
    const ops = this.#opsOf(forward, batch.logitRows.length, batch.logitRows.length === batch.tokenIds.length, kind);
    if (this.#options.graphs !== false && this.#graphs.serves(batch)) {
      const [full, sliding] = [plans.full, plans.sliding].map(
        (plan) => plan !== undefined && plan.largeItems.length > 0,
      );
      const chooses = batch.choices !== undefined;
      const small = !chooses || plans.full.smallItems.length > 0;
      this.#graphs.run(kind, forward.layout.capacity, { small, full, sliding, chooses }, ops);
    } else {
      const counts = stepCounts(batch, plans);
      for (const op of ops) op(counts);
    }
    if (batch.choices) this.#counts?.fetch();
  }

  /** Puts a step into the stream whose logits are on the host once the stream has done it. */
  #startLogits(batch: Batch): Float32Array {
    const { device, workspace, config } = this.#parts;
    this.#start(batch);
    const logits = this.#logits.subarray(0, batch.logitRows.length * config.vocabSize);
    device.copyOut(logits, workspace.logits);
    return logits;
  }

  #opsOf(forward: Forward, logitCount: number, allRows: boolean, kind: StepKind): readonly Op[] {
    const head = this.#headOf(forward, logitCount, allRows);
    return [...forward.body, ...head, ...(kind === "logits" ? [] : forward.sampling)];
  }

  #forwardOf(rowCount: number): Forward {
    const { maxRows, maxLogitRows } = this.#options;
    if (rowCount < 1 || rowCount > maxRows) throw new RangeError(`${rowCount} rows in a step of at most ${maxRows}`);
    const rows = bucketOf(rowCount);
    const known = this.#forwards.get(rows);
    if (known !== undefined) return known;
    const { config, packShape } = this.#parts;
    const logitRows = Math.min(rows, bucketOf(maxLogitRows));
    const capacity = stepCapacity(config, packShape, rows, logitRows, this.#options.sparse?.seats);
    const forward = new Forward(this.#parts, new StepLayout(capacity));
    this.#forwards.set(rows, forward);
    return forward;
  }

  #headOf(forward: Forward, logitCount: number, allRows: boolean): readonly Op[] {
    const { maxLogitRows } = this.#options;
    if (logitCount === 0) return [];
    if (logitCount > maxLogitRows)
      throw new RangeError(`logits of ${logitCount} rows wanted, of at most ${maxLogitRows}`);
    const { rows } = forward.layout.capacity;
    const wanted = bucketOf(logitCount);
    const key = `${rows} ${wanted} ${allRows}`;
    return this.#heads.getOrInsertComputed(key, () => forward.head(wanted, allRows));
  }

  #copyPart(sources: Int32Array, targets: Int32Array, deltas: Int32Array): void {
    const { device, config, rope, pool, blockTokens, sparse } = this.#parts;
    const count = sources.length;
    if (count === 0) return;
    const words = this.#copies;
    const buffer = this.#copyBuffer;
    const list = (index: number) => buffer.slice((4 + index * count) * 4);
    words[0] = count;
    for (const [index, values] of [sources, targets, deltas].entries()) words.set(values, 4 + index * count);
    device.copyIn(buffer, words.subarray(0, 4 + 3 * count));
    const launch = device.prepare(
      "copy_tokens",
      list(0),
      list(1),
      list(2),
      buffer,
      rope.layerRotates,
      rope.origin,
      1 / config.rope.attentionFactor,
      rope.slidingOrigin,
      1 / (config.rope.sliding ?? config.rope).attentionFactor,
      config.kvHeadCount,
      config.headDim,
      rope.origin === null ? 0 : config.rope.rotaryDim,
      blockTokens,
      pool.layerBytes / 2,
      pool.memory,
    );
    launch({ grid: [Math.ceil(count / copiesPerBlock), config.layerCount], blockThreads: 256 });
    if (sparse) shadowSlots(sparse, list(1), buffer, count);
  }
}

/** Tokens that one thread block of copy_tokens.cu copies. */
const copiesPerBlock = 16;

const copyWords = (maxRows: number): number => 4 + 3 * maxRows;
