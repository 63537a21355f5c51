/**
 * A request that decodes sparsely, for tests of kernels: random spans and a prompt to choose from, a tail that grows and
 * gives its oldest block to the candidates, and queries that wander. Slots that nothing names hold NaN.
 */
import type { Choices } from "../../worker/contract/batch.ts";
import { type ChoiceMode, choiceFlags, choiceModes } from "../../worker/contract/sparse.ts";
import type { AttentionBatch, CpuKernels, KvPool, KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import type { Random } from "./random.ts";
import { batchOf, type Elements, poisonedKv, randomOptions } from "./world.ts";

export interface SceneLimits {
  readonly spans: number;
  readonly spanTokens: number;
  readonly promptTokens: number;
  readonly steps: number;
}

const smallLimits: SceneLimits = { spans: 4, spanTokens: 60, promptTokens: 90, steps: 24 };

/** A run that is chosen from: its tokens stand at chain position 0 and later, in the row's positions `offset` more. */
export interface CandidateSegment {
  readonly blockIds: readonly number[];
  readonly firstToken: number;
  readonly tokenCount: number;
  readonly offset: number;
  readonly forced: number;
}

export interface ChoiceParams {
  readonly mode: ChoiceMode;
  readonly tokens: number;
  readonly refreshSteps?: number;
  readonly leastCosine?: number;
  readonly seat?: number;
}

export interface SceneStep {
  readonly batch: AttentionBatch & { readonly choices: Choices };
  readonly segments: readonly CandidateSegment[];
  readonly position: number;
  /** [qkvWidth] */
  readonly qkv: Float32Array;
}

/** Options of a pool that has seats: whole panels of 16 tokens in a block. */
export function seatOptions(random: Random, fixed: Partial<KvPoolOptions> = {}): KvPoolOptions {
  const headDim = fixed.headDim ?? random.pick([32, 64, 96, 128]);
  const options = randomOptions(random, {
    blockTokens: random.pick([16, 16, 32]),
    headDim,
    kvType: random.pick(["float32", "float16", "mx8"]),
    maxPositions: 4096,
    seats: { seats: 3, listTokens: 400, rings: true },
    ...fixed,
  });
  return { ...options, blockCount: 64 };
}

export class Scene {
  readonly options: KvPoolOptions;
  readonly kv: Elements;
  readonly norms: { readonly q: Float32Array; readonly k: Float32Array } | undefined;
  readonly spans: readonly CandidateSegment[];
  readonly #random: Random;
  readonly #ownBlocks: readonly number[];
  readonly bufferBlocks: readonly number[];
  readonly #promptTokens: number;
  readonly #firstPosition: number;
  #query: Float32Array;
  #step = 0;

  constructor(random: Random, options: KvPoolOptions, limits = smallLimits) {
    const { blockTokens, headDim, blockCount } = options;
    const free = random.shuffle(Array.from({ length: blockCount }, (_, id) => id));
    const take = (tokens: number) => free.splice(0, Math.ceil(tokens / blockTokens));
    this.#random = random;
    this.options = options;
    this.spans = Array.from({ length: limits.spans }, () => {
      const firstToken = random.pick([0, random.integer(0, blockTokens - 1)]);
      const tokenCount = random.integer(3, limits.spanTokens);
      const offset = random.pick([0, random.integer(-30, 900)]);
      return { blockIds: take(firstToken + tokenCount), firstToken, tokenCount, offset, forced: 2 };
    });
    // Whole blocks of the prompt are candidates, what is left of it is in the tail.
    this.#promptTokens = limits.promptTokens;
    this.#firstPosition = random.integer(1000, 1100);
    this.#ownBlocks = take(limits.promptTokens + limits.steps);
    this.bufferBlocks = take(options.seats?.listTokens ?? 0);
    const own = { blockIds: this.#ownBlocks, firstToken: 0, tokenCount: limits.promptTokens };
    this.kv = poisonedKv(random, options, [...this.spans, own]);
    this.#query = random.normals((options.queryHeads + 2 * options.kvHeads) * headDim, 40);
    const weights = () => Float32Array.from({ length: headDim }, () => 0.5 + random.next());
    this.norms = random.integer(0, 1) === 1 ? { q: weights(), k: weights() } : undefined;
  }

  /** Opens a pool with the scene's KV, whose shadows are written. */
  open(kernels: CpuKernels): KvPool {
    const pool = kernels.openPool(this.options);
    const { buffer, byteOffset, byteLength } = this.kv;
    new Uint8Array(pool.memory()).set(new Uint8Array(buffer, byteOffset, byteLength));
    pool.seats?.writeShadows(Int32Array.from({ length: this.options.blockCount }, (_, id) => id));
    return pool;
  }

  /** The next step, of one row that chooses. */
  next({ mode, tokens, refreshSteps = 4, leastCosine = 0.6, seat = 1 }: ChoiceParams, flags = 0): SceneStep {
    const step = this.#step++;
    const { blockTokens } = this.options;
    const ownTokens = this.#promptTokens + step + 1;
    // Two whole blocks and what follows them are the tail.
    const tailStart = Math.max(1, Math.floor(ownTokens / blockTokens) - 2) * blockTokens;
    const position = this.#firstPosition + step;
    const prompt = {
      blockIds: this.#ownBlocks.slice(0, tailStart / blockTokens),
      firstToken: 0,
      tokenCount: tailStart,
      offset: 0,
      forced: 4,
    };
    const segments = [...this.spans, prompt];
    const forced = segments.reduce((sum, segment) => sum + segment.forced, 0);
    const candidates = segments.reduce((sum, segment) => sum + segment.tokenCount, 0);
    const fresh = step === 0 ? choiceFlags.fresh : 0;
    const batch = batchOf(
      [
        {
          firstPosition: position,
          rowCount: 1,
          seen: [
            {
              blockIds: this.bufferBlocks,
              firstToken: 0,
              tokenCount: forced + Math.min(tokens, candidates - forced),
              offset: 0,
            },
          ],
          own: {
            blockIds: this.#ownBlocks.slice(tailStart / blockTokens),
            firstToken: 0,
            tokenCount: ownTokens - tailStart,
            offset: 0,
          },
        },
      ],
      blockTokens,
    );
    const entry = { mode, tokens, refreshSteps, leastCosine, seat, flags: flags | fresh };
    this.#wander();
    return { batch: { ...batch, choices: choicesOf(segments, entry) }, segments, position, qkv: this.#query };
  }

  /** The same step with everything seen, nothing chosen. */
  dense({ batch, segments }: SceneStep): AttentionBatch {
    const tail = batch.pieceSegments[1] - 1;
    const { choices: _, ...rest } = batch;
    const starts: number[] = [];
    const blockIds: number[] = [];
    for (const { blockIds: own } of segments) {
      starts.push(blockIds.length);
      blockIds.push(...own);
    }
    const tailBlocks = [...batch.blockIds.subarray(batch.segmentBlockStarts[tail])];
    return {
      ...rest,
      pieceSegments: Int32Array.of(0, segments.length + 1),
      segmentBlockStarts: Int32Array.of(...starts, blockIds.length),
      segmentFirstTokens: Int32Array.of(...segments.map((segment) => segment.firstToken), 0),
      segmentTokenCounts: Int32Array.of(
        ...segments.map((segment) => segment.tokenCount),
        batch.segmentTokenCounts[tail],
      ),
      segmentOffsets: Int32Array.of(...segments.map((segment) => segment.offset), batch.segmentOffsets[tail]),
      segmentPositions: new Int32Array(segments.length + 1),
      blockIds: Int32Array.of(...blockIds, ...tailBlocks),
    };
  }

  /** Most of each query is the one before it; some heads leap, as where an answer fetches a fact. */
  #wander(): void {
    const fresh = this.#random.normals(this.#query.length, 40);
    const { headDim } = this.options;
    let keep = 0;
    this.#query = this.#query.map((x, i) => {
      if (i % headDim === 0) keep = this.#random.integer(1, 8) === 1 ? 0 : 0.9;
      return keep * x + Math.sqrt(1 - keep * keep) * fresh[i];
    });
  }
}

type Entry = Required<ChoiceParams> & { readonly flags: number };

export function choicesOf(segments: readonly CandidateSegment[], entry: Entry): Choices {
  const starts: number[] = [];
  const blockIds: number[] = [];
  for (const segment of segments) {
    starts.push(blockIds.length);
    blockIds.push(...segment.blockIds);
  }
  return {
    pieces: Int32Array.of(0),
    seats: Int32Array.of(entry.seat),
    flags: Int32Array.of(entry.flags),
    modes: Int32Array.of(choiceModes.indexOf(entry.mode)),
    tokens: Int32Array.of(entry.tokens),
    refreshSteps: Int32Array.of(entry.refreshSteps),
    leastCosines: Float32Array.of(entry.leastCosine),
    segments: Int32Array.of(0, segments.length),
    segmentBlockStarts: Int32Array.from(starts),
    segmentFirstTokens: Int32Array.from(segments, ({ firstToken }) => firstToken),
    segmentTokenCounts: Int32Array.from(segments, ({ tokenCount }) => tokenCount),
    segmentOffsets: Int32Array.from(segments, ({ offset }) => offset),
    segmentForced: Int32Array.from(segments, ({ forced }) => forced),
    blockIds: Int32Array.from(blockIds),
  };
}

/** Of the scenes' pools. */
export const sceneLayers = [0, 1];

/** Runs a step in both sceneLayers; answers attention's output of layer 1. */
export function run(pool: KvPool, scene: Scene, step: { batch: AttentionBatch; qkv: Float32Array }): Float32Array {
  const out = new Float32Array(pool.outWidth).fill(Number.NaN);
  pool.beginStep(step.batch);
  for (const layer of sceneLayers) pool.attention(layer, step.qkv, out, scene.norms);
  return out;
}

/** Bytes of the shadows of a block in one layer and KV head. */
export const shadowBytes = ({ headDim, blockTokens }: KvPoolOptions): number => (blockTokens / 16) * (headDim * 8 + 32);

export function allShadows({ seats, options }: KvPool): Uint8Array {
  if (seats === undefined) throw new Error("no seats");
  const { blockCount, kvHeads } = options;
  const parts = sceneLayers.flatMap((layer) =>
    Array.from({ length: blockCount * kvHeads }, (_, at) =>
      seats.shadows(layer, Math.floor(at / kvHeads), at % kvHeads, shadowBytes(options)),
    ),
  );
  return new Uint8Array(Buffer.concat(parts));
}

export const listsOf = ({ seats, options }: KvPool, seat = 1): number[][] =>
  sceneLayers.flatMap((layer) =>
    Array.from({ length: options.kvHeads }, (_, head) => [...(seats?.list(seat, layer, head) ?? [])]),
  );

export const blocksOf = (pool: KvPool) => Int32Array.from({ length: pool.options.blockCount }, (_, id) => id);

/** Blocks of its own that a step writes to; what else it fills are buffers, whose K nobody chooses from. */
export function writtenBlocks({ batch }: SceneStep): Int32Array<ArrayBuffer> {
  return Int32Array.from(batch.blockIds.subarray(batch.segmentBlockStarts[batch.pieceSegments[1] - 1]));
}

/** The twin's pool gets what the other holds, and makes shadows of these blocks of it: the twin takes its time for each. */
export function copyPool(from: KvPool, to: KvPool, blocks = blocksOf(to)): void {
  new Uint8Array(to.memory()).set(new Uint8Array(from.memory()));
  to.seats?.writeShadows(blocks);
}

/** The first entry twice. */
export function twoEntries(choices: Choices): Choices {
  const twice = (values: Int32Array) => Int32Array.of(values[0], values[0]);
  const { segments } = choices;
  return {
    ...choices,
    pieces: Int32Array.of(0, 1),
    seats: twice(choices.seats),
    flags: twice(choices.flags),
    modes: twice(choices.modes),
    tokens: twice(choices.tokens),
    refreshSteps: twice(choices.refreshSteps),
    leastCosines: Float32Array.of(0, 0),
    segments: Int32Array.of(0, segments[1], segments[1]),
  };
}
