/**
 * The kernels of rows that choose against their twins: random pools with outliers, candidates in several segments that
 * begin inside blocks and stand at other offsets, lists of all lengths. Shadows, scores, choices are compared bit for bit,
 * sums of scores and attention within rounding.
 */
import type { ComputeDevice, DeviceBuffer } from "../../worker/backend/cuda/device/device.ts";
import { choiceSizes, putChoices, unitTokens } from "../../worker/backend/cuda/sparse/choice-words.ts";
import { scoredHeads } from "../../worker/backend/cuda/sparse/sparse-memory.ts";
import {
  choiceLaunches,
  choosingKernels,
  type ListBlocks,
  scoringKernel,
  shadowLaunch,
} from "../../worker/backend/cuda/sparse/sparse-ops.ts";
import type { Batch, Choices } from "../../worker/contract/batch.ts";
import { choiceFlags } from "../../worker/contract/sparse.ts";
import type { Random } from "../native/random.ts";
import { putRotations } from "./kernel-attention.ts";
import { bfloat16Step, type KernelTwin } from "./kernel-twin.ts";

export interface SparseCase {
  readonly headDim: number;
  readonly rotaryDim: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly blockTokens: number;
  /** Of each row that chooses: tokens of its segments, how many it chooses, and tokens of its tail. */
  readonly rows: readonly (readonly [segments: readonly number[], chosen: number, tail: number])[];
}

const contextTokens = 2_000;
/** Sums of some thousand powers of two by a hardware's approximation, in another order. */
const sumError = 1e-4;

/** A step of these rows, whose candidates and tails stand in blocks scattered over the pool. */
function sparseBatch(random: Random, { rows, blockTokens }: SparseCase) {
  const lists = () => ({
    starts: [] as number[],
    firsts: [] as number[],
    counts: [] as number[],
    offsets: [] as number[],
  });
  const [own, seen] = [lists(), lists()];
  const [ownIds, seenIds, forced, segments, positions, tokens]: number[][] = [[], [], [], [0], [], []];
  let blocks = 0;
  const add = (to: ReturnType<typeof lists>, ids: number[], first: number, count: number, offset: number): void => {
    to.starts.push(ids.length);
    to.firsts.push(first);
    to.counts.push(count);
    to.offsets.push(offset);
    for (let i = 0; i < Math.ceil((first + count) / blockTokens); i++) ids.push(blocks++);
  };
  for (const [parts, chosen, tail] of rows) {
    let all = 0;
    for (const count of parts) {
      add(
        seen,
        seenIds,
        random.integer(0, blockTokens - 1),
        count,
        random.integer(-contextTokens + 1, contextTokens - 1),
      );
      forced.push(Math.min(count, random.integer(0, 4)));
      all += count;
    }
    segments.push(seen.counts.length);
    const allForced = forced.slice(-parts.length).reduce((sum, count) => sum + count, 0);
    add(own, ownIds, 0, allForced + Math.min(chosen, all - allForced), 0);
    add(own, ownIds, random.integer(0, blockTokens - 1), tail, random.integer(-50, 50));
    positions.push(random.integer(0, contextTokens - 1));
    tokens.push(chosen);
  }
  const shuffled = random.shuffle(Array.from({ length: blocks }, (_, id) => id));
  // Blocks were numbered as they were listed, those of candidates and the others in turn.
  const ids = (list: readonly number[]) => Int32Array.from(list, (id) => shuffled[id]);
  const ints = (list: readonly number[]) => Int32Array.from(list);
  const each = rows.map((_, row) => row);
  const choices: Choices = {
    ...{ pieces: ints(each), seats: ints(each.toReversed()), flags: ints(each.map(() => choiceFlags.fresh)) },
    ...{ modes: ints(each.map(() => 0)), tokens: ints(tokens), refreshSteps: ints(each.map(() => 1)) },
    leastCosines: Float32Array.from(each, () => 0),
    ...{ segments: ints(segments), segmentForced: ints(forced), blockIds: ids(seenIds) },
    ...{ segmentBlockStarts: ints(seen.starts), segmentFirstTokens: ints(seen.firsts) },
    ...{ segmentTokenCounts: ints(seen.counts), segmentOffsets: ints(seen.offsets) },
  };
  const batch: Batch = {
    ...{ tokenIds: ints(each), positions: ints(positions), slots: ints(each), logitRows: ints(each) },
    ...{ pieceRows: ints([...each, rows.length]), pieceSegments: ints([...each, rows.length].map((row) => 2 * row)) },
    ...{ segmentBlockStarts: ints(own.starts), segmentFirstTokens: ints(own.firsts) },
    ...{ segmentTokenCounts: ints(own.counts), segmentOffsets: ints(own.offsets), blockIds: ids(ownIds), choices },
  };
  return { batch, choices, blockCount: blocks };
}

/** Words of a step whose block ids begin at word 16 and whose choices follow; the word 1 says where. */
function wordsOf(batch: Batch, choices: Choices) {
  const blockIds = 16;
  const place = Math.ceil((blockIds + batch.blockIds.length) / 8) * 8;
  const words = new Int32Array(place + choiceSizes(choices).words);
  words[1] = place;
  words.set(batch.blockIds, blockIds);
  putChoices(words, batch, choices, place, blockIds);
  return words;
}

/** q, k and v of rows, and K and V of a pool, with a number in fifty that is twenty times as large. */
function withOutliers(random: Random, count: number): Float32Array {
  return random.normals(count).map((x, i) => (i % 50 === 7 ? 20 * x : x));
}

/** No number of V is greater. */
const greatestValue = 2;

/** [heads of blocks] of K with outliers and V of moderate numbers, `size` numbers each. */
function poolOf(random: Random, heads: number, size: number): Float32Array {
  const pool = withOutliers(random, heads * 2 * size);
  const bounded = (x: number) => Math.min(Math.max(x, -greatestValue), greatestValue);
  for (let head = 0; head < heads; head++) {
    const values = pool.subarray((2 * head + 1) * size, (2 * head + 2) * size);
    values.set(values.map(bounded));
  }
  return pool;
}

class Scene {
  readonly twin: KernelTwin;
  readonly #case: SparseCase;
  readonly #random: Random;
  readonly #device: Pick<ComputeDevice, "multiprocessorCount">;

  constructor(device: Pick<ComputeDevice, "multiprocessorCount">, twin: KernelTwin, random: Random, given: SparseCase) {
    this.#device = device;
    this.twin = twin;
    this.#random = random;
    this.#case = given;
  }

  put() {
    const { twin } = this;
    const random = this.#random;
    const { headDim, rotaryDim, queryHeads, kvHeads, blockTokens, rows } = this.#case;
    const { batch, choices, blockCount } = sparseBatch(random, this.#case);
    const sizes = choiceSizes(choices);
    const words = wordsOf(batch, choices);
    const slots = random.shuffle(Array.from({ length: blockCount * blockTokens }, (_, slot) => slot));
    const heads = queryHeads + 2 * kvHeads;
    const listStride = Math.max(...batch.segmentTokenCounts.filter((_, segment) => segment % 2 === 0)) + 3;
    const scored = kvHeads * scoredHeads(queryHeads / kvHeads);
    const space = (name: string, bytes: number) => twin.space(name, bytes);
    return {
      ...{ sizes, blockCount, listStride, choices },
      step: twin.put("step", words),
      place: twin.put("place", Int32Array.of(words[1])),
      slots: twin.put("slots", Int32Array.from(slots)),
      slotCount: twin.put("slot count", Int32Array.of(slots.length)),
      qkv: twin.putBfloat16("qkv", withOutliers(random, rows.length * heads * headDim)),
      pool: twin.putBfloat16("pool", poolOf(random, blockCount * kvHeads, blockTokens * headDim)),
      rotations: putRotations(twin, rotaryDim),
      shadows: twin.put("shadows", new Uint8Array(blockCount * kvHeads * blockTokens * (headDim / 2 + 2))),
      scores: space("scores", sizes.scoreTokens * scored * 2),
      unitSums: space("unit sums", sizes.units * scored * 4),
      lists: twin.put("lists", new Int32Array(rows.length * kvHeads * listStride * 2)),
      counts: twin.put("counts", new Int32Array(rows.length * 2).fill(9)),
      out: space("out", rows.length * queryHeads * headDim * 2),
    };
  }

  get launches() {
    return choiceLaunches(this.#case.headDim, this.#device.multiprocessorCount);
  }
}

/** Every kernel that chooses, by how many thread blocks share a list. */
export const allListBlocks: readonly ListBlocks[] = [1, 2, 4, 8];

/** Scores with many equal ones, whose L is a small whole number without rounding: what is chosen is the same bit for bit. */
function tiedScores(
  random: Random,
  scene: ReturnType<Scene["put"]>,
  twin: KernelTwin,
  { queryHeads, kvHeads }: SparseCase,
): void {
  const scores = twin.memory.uint8(scene.scores);
  const halves = new Float16Array(scores.buffer, scores.byteOffset, scores.byteLength / 2);
  for (let i = 0; i < halves.length; i++) {
    // Of forced tokens, and of heads that there are not: these stay as score_shadows.cu wrote them.
    if (Number.isFinite(halves[i])) halves[i] = -random.integer(0, 60) / 4 - random.integer(0, 1) / 512;
  }
  const sums = twin.memory.float32(scene.unitSums);
  sums.fill(Number.NEGATIVE_INFINITY);
  const { segments, segmentTokenCounts } = scene.choices;
  const scored = kvHeads * scoredHeads(queryHeads / kvHeads);
  for (let unit = 0, entry = 0; entry + 1 < segments.length; entry++) {
    for (let head = 0; head < scored; head++) sums[unit * scored + head] = head % 3;
    for (let s = segments[entry]; s < segments[entry + 1]; s++) unit += Math.ceil(segmentTokenCounts[s] / unitTokens);
  }
}

/** A number of some tokens' K that is none, or not finite. @returns what puts back what stood there */
function spoilKeys(twin: KernelTwin, pool: DeviceBuffer, headDim: number): () => void {
  const keys = new Uint16Array(twin.memory.uint8(pool).buffer, twin.memory.uint8(pool).byteOffset);
  const bad = [0x7f80, 0xff80, 0x7fc0];
  const before = bad.map((_, token) => keys[token * headDim + 3 * token]);
  const put = (values: readonly number[]) => {
    for (const [token, value] of values.entries()) keys[token * headDim + 3 * token] = value;
  };
  put(bad);
  return () => put(before);
}

export async function checkSparse(
  device: Pick<ComputeDevice, "multiprocessorCount">,
  twin: KernelTwin,
  random: Random,
  given: SparseCase,
  listBlocks: readonly ListBlocks[] = allListBlocks,
): Promise<string> {
  const { headDim, rotaryDim, queryHeads, kvHeads, blockTokens, rows } = given;
  const scene = new Scene(device, twin, random, given);
  const of = scene.put();
  twin.upload();
  const plan = [of.step, of.place] as const;
  const heads = [queryHeads, kvHeads] as const;
  const scale = Math.LOG2E / Math.sqrt(headDim);
  const shift = Math.log2(blockTokens);
  const slotGrid = shadowLaunch(of.blockCount * blockTokens + 5, kvHeads, 1);
  const shadowed = [kvHeads, blockTokens, 0, 0, of.pool, of.shadows] as const;
  const restore = spoilKeys(twin, of.pool, headDim);
  twin.upload();
  twin.launch("shadow_slots", [of.slots, of.slotCount, ...shadowed], slotGrid);
  await twin.compare([]);
  restore();
  twin.upload();
  twin.launch("shadow_slots", [of.slots, of.slotCount, ...shadowed], slotGrid);
  const scored = [of.qkv, ...plan, of.rotations, of.shadows, ...heads, rotaryDim, shift, scale] as const;
  const { launches } = scene;
  const lists = (rows.length + 1) * kvHeads;
  twin.launch(scoringKernel(queryHeads / kvHeads), [...scored, of.scores, of.unitSums, of.counts], launches.score);
  const sums = { buffer: of.unitSums, type: "float32", relative: sumError, absolute: sumError } as const;
  const words = [await twin.compare([sums])];
  tiedScores(random, of, twin, given);
  twin.upload();
  const chosen = [
    of.qkv,
    ...plan,
    of.rotations,
    of.pool,
    ...heads,
    rotaryDim,
    blockTokens,
    of.listStride,
    scale,
  ] as const;
  const results = [of.unitSums, of.scores, of.lists, of.counts, of.out] as const;
  // Weighted means of V, whose weights have the error of bfloat16 and together are 1.
  const absolute = greatestValue * 2 ** -8;
  const out = { buffer: of.out, type: "bfloat16", relative: bfloat16Step, absolute } as const;
  for (const count of listBlocks) {
    for (const buffer of [of.lists, of.out]) twin.memory.uint8(buffer).fill(0xff);
    twin.upload();
    twin.launch(choosingKernels[count], [...chosen, ...results], launches.choose(lists, count));
    words.push(await twin.compare([out]));
  }
  return words.join(", ");
}

/** Cases of all kinds for a head size. */
export function sparseCases(headDim: number): SparseCase[] {
  const shape = { headDim, rotaryDim: headDim - (headDim % 64 === 0 ? 16 : 0), blockTokens: 16 };
  return [
    { ...shape, rotaryDim: headDim, queryHeads: 8, kvHeads: 2, rows: [[[2_500], 300, 70]] },
    {
      ...shape,
      ...{ queryHeads: 4, kvHeads: 4, blockTokens: 64 },
      rows: [
        [[37, 1_100, 5, 16], 64, 79],
        [[3], 9, 1],
        [[90, 90, 90], 500, 12],
      ],
    },
    {
      ...shape,
      ...{ queryHeads: 16, kvHeads: 8 },
      rows: [
        [[33, 700], 100, 70],
        [[270], 40, 9],
      ],
    },
    { ...shape, queryHeads: 7, kvHeads: 1, rows: [[[9_500], 1_024, 64]] },
    { ...shape, rotaryDim: 0, queryHeads: 16, kvHeads: 1, blockTokens: 32, rows: [[[700], 1, 66]] },
  ];
}
