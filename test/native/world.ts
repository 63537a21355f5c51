/**
 * Random pools and steps for kernel tests. Every slot that no segment names holds NaN, so a kernel that reads
 * one token too many says so.
 */
import {
  type AttentionBatch,
  type CpuKernels,
  type KvPool,
  type KvPoolOptions,
  kvBytesOf,
} from "../../worker/native/cpu-kernels.ts";
import { encodePool } from "./mx8-twin.ts";
import type { Random } from "./random.ts";

/** A pool's contents as it stores them. */
export type Elements = Float32Array | Uint16Array | Uint8Array;

export interface Segment {
  readonly blockIds: readonly number[];
  readonly firstToken: number;
  readonly tokenCount: number;
  readonly offset: number;
  /** Chain position of the first token, which layers that slide go by; a piece's own is known from its rows. */
  readonly position?: number;
}

/** `rowCount` rows at the end of their own run (the last segment), after the segments they see whole. */
export interface Piece {
  readonly firstPosition: number;
  readonly rowCount: number;
  readonly seen: readonly Segment[];
  readonly own: Segment;
  /** Its rows were generated; default: they came with a prompt. */
  readonly isGenerated?: boolean;
}

/** The struct of arrays of some pieces. */
export function batchOf(pieces: readonly Piece[], blockTokens: number): AttentionBatch {
  const positions: number[] = [];
  const slots: number[] = [];
  const pieceRows = [0];
  const pieceSegments = [0];
  const segments: Segment[] = [];
  for (const { firstPosition, rowCount, seen, own } of pieces) {
    segments.push(...seen, { ...own, position: firstPosition + rowCount - own.tokenCount });
    for (let row = 0; row < rowCount; row++) {
      const token = own.firstToken + own.tokenCount - rowCount + row;
      positions.push(firstPosition + row);
      slots.push((own.blockIds[Math.floor(token / blockTokens)] ?? -1) * blockTokens + (token % blockTokens));
    }
    pieceRows.push(positions.length);
    pieceSegments.push(segments.length);
  }
  const starts: number[] = [];
  const blockIds: number[] = [];
  for (const segment of segments) {
    starts.push(blockIds.length);
    blockIds.push(...segment.blockIds);
  }
  return {
    positions: Int32Array.from(positions),
    slots: Int32Array.from(slots),
    pieceRows: Int32Array.from(pieceRows),
    pieceSegments: Int32Array.from(pieceSegments),
    pieceGenerated: Int32Array.from(pieces, ({ isGenerated }) => (isGenerated ? 1 : 0)),
    segmentBlockStarts: Int32Array.from(starts),
    segmentFirstTokens: Int32Array.from(segments, (segment) => segment.firstToken),
    segmentTokenCounts: Int32Array.from(segments, (segment) => segment.tokenCount),
    segmentOffsets: Int32Array.from(segments, (segment) => segment.offset),
    segmentPositions: Int32Array.from(segments, ({ position = 0 }) => position),
    blockIds: Int32Array.from(blockIds),
  };
}

export interface World {
  readonly options: KvPoolOptions;
  readonly pieces: readonly Piece[];
  readonly batch: AttentionBatch;
  /** Pool contents before the step. */
  readonly kv: Elements;
  /** [T][qkvWidth] */
  readonly qkv: Float32Array;
  readonly norms: { readonly q: Float32Array; readonly k: Float32Array } | undefined;
}

export interface WorldLimits {
  readonly pieces: number;
  readonly rows: number;
  readonly tokens: number;
  readonly segments: number;
}

const smallLimits: WorldLimits = { pieces: 5, rows: 40, tokens: 70, segments: 5 };

export function randomOptions(random: Random, fixed: Partial<KvPoolOptions> = {}, limits = smallLimits): KvPoolOptions {
  const blockTokens = fixed.blockTokens ?? random.pick([4, 8, 16, 16, 16, 32]);
  const runs = limits.segments + limits.pieces;
  const layerCount = fixed.layerCount ?? 2;
  const headDim = fixed.headDim ?? random.pick([8, 16, 24, 32, 64, 80, 96, 128]);
  const kvHeads = random.integer(1, 3);
  const rotaryDim = random.pick([headDim, headDim, headDim, headDim / 2, 0]);
  return {
    layerCount,
    // Room for the longest run of every chain and piece.
    blockCount: runs * (Math.ceil((limits.tokens + limits.rows) / blockTokens) + 1),
    blockTokens,
    queryHeads: kvHeads * random.pick([1, 2, 3, 4, 7, 8]),
    kvHeads,
    headDim,
    kvType: random.pick(["float32", "float32", "float16"]),
    rope: {
      inverseFrequencies: Float32Array.from({ length: rotaryDim / 2 }, (_, i) => 10_000 ** ((-2 * i) / rotaryDim)),
      interleaved: random.integer(1, 4) === 1,
      attentionFactor: random.pick([1, 1, 1.2]),
      layers: Array.from({ length: layerCount }, () => random.integer(1, 4) > 1),
    },
    maxPositions: 100_000,
    normEpsilon: 1e-6,
    ...fixed,
  };
}

/** A step over `options`: pieces that see random runs of shared chains at random offsets. */
export function randomWorld(random: Random, options: KvPoolOptions, limits = smallLimits): World {
  const { blockTokens, headDim, blockCount, layerCount, kvHeads } = options;
  const freeBlocks = random.shuffle(Array.from({ length: blockCount }, (_, blockId) => blockId));
  const takeRun = (tokenCount: number): Omit<Segment, "offset"> => {
    const firstToken = random.pick([0, 0, random.integer(0, blockTokens - 1)]);
    return {
      firstToken,
      tokenCount,
      blockIds: freeBlocks.splice(0, Math.ceil((firstToken + tokenCount) / blockTokens)),
    };
  };
  const position = () => random.pick([random.integer(0, 200), random.integer(0, options.maxPositions - 200)]);
  const chains = Array.from({ length: limits.segments }, () => takeRun(random.integer(1, limits.tokens)));
  const pieces = Array.from({ length: random.integer(1, limits.pieces) }, (): Piece => {
    const rowCount = random.pick([1, 1, random.integer(1, limits.rows)]);
    const seen = Array.from({ length: random.integer(0, limits.segments) }, () => {
      const chain = random.pick(chains);
      const tokenCount = random.pick([chain.tokenCount, random.integer(0, chain.tokenCount)]);
      return { ...chain, tokenCount, offset: position() };
    });
    const own = { ...takeRun(rowCount + random.pick([0, random.integer(0, limits.tokens)])), offset: 0 };
    const piece = { firstPosition: position(), rowCount, seen, own, isGenerated: random.integer(0, 1) === 1 };
    return options.window === undefined ? piece : placed(random, piece, options.window.tokens);
  });
  const batch = batchOf(pieces, blockTokens);
  const kv = poisonedKv(random, options, [...chains, ...pieces.map((piece) => piece.own)]);
  const qkv = random.normals(batch.positions.length * (options.queryHeads + 2 * kvHeads) * headDim);
  const withNorms = random.integer(0, 1) === 1;
  const weights = () => Float32Array.from({ length: headDim }, () => 0.5 + random.next());
  const norms = withNorms ? { q: weights(), k: weights() } : undefined;
  const elementCount = layerCount * blockCount * kvHeads * headDim * blockTokens * 2;
  if (kv.byteLength !== kvBytesOf(options.kvType, elementCount)) throw new Error("wrong pool size");
  return { options, pieces, batch, kv, qkv, norms };
}

/** The same piece with segments of which its rows see all, a part, or nothing through a window. */
function placed(random: Random, piece: Piece, tokens: number): Piece {
  const firstPosition = random.integer(1_000, 2_000);
  const seen = piece.seen.map((segment) => {
    const offset = random.integer(-200, 500);
    const first = firstPosition - segment.tokenCount - random.integer(0, tokens + piece.rowCount);
    return { ...segment, offset, position: first - offset };
  });
  return { ...piece, firstPosition, seen };
}

/** NaN everywhere but in the tokens of `runs`, in every layer and head. */
export function poisonedKv(random: Random, options: KvPoolOptions, runs: readonly Omit<Segment, "offset">[]) {
  const { layerCount, blockCount, blockTokens, kvHeads, headDim } = options;
  const headElements = 2 * headDim * blockTokens;
  const kv = new Float32Array(layerCount * blockCount * kvHeads * headElements).fill(Number.NaN);
  for (const run of runs) {
    for (let token = run.firstToken; token < run.firstToken + run.tokenCount; token++) {
      const blockId = run.blockIds[Math.floor(token / blockTokens)] ?? 0;
      for (let head = 0; head < layerCount * kvHeads; head++) {
        const layer = Math.floor(head / kvHeads);
        const start = ((layer * blockCount + blockId) * kvHeads + (head % kvHeads)) * headElements;
        const values = random.normals(2 * headDim);
        for (let d = 0; d < headDim; d++) {
          kv[start + d * blockTokens + (token % blockTokens)] = values[d] ?? 0;
          kv[start + headDim * (blockTokens + (token % blockTokens)) + d] = values[headDim + d] ?? 0;
        }
      }
    }
  }
  return storedAs(options, kv);
}

/** Contents in float32 as a pool with these options stores them. */
export function storedAs(
  options: Pick<KvPoolOptions, "kvType" | "headDim" | "blockTokens">,
  kv: Float32Array,
): Elements {
  if (options.kvType === "mx8") return encodePool(kv, options);
  return options.kvType === "float32" ? kv : Uint16Array.from(kv, halfBits);
}

/** float16 bits of a float32 value, rounded towards zero (test data need not be rounded well). */
export function halfBits(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const magnitude = Math.abs(value);
  if (magnitude < 2 ** -14) return sign | Math.floor(magnitude * 2 ** 24);
  const exponent = Math.floor(Math.log2(magnitude));
  return sign | ((exponent + 15) << 10) | Math.min(1023, Math.floor((magnitude / 2 ** exponent - 1) * 1024));
}

/** The pool's elements as they are stored. */
export function elementsOf(pool: KvPool): Float32Array | Uint16Array {
  if (pool.options.kvType === "mx8") throw new RangeError("mx8 has numbers and scales (mx8-twin.ts)");
  return pool.options.kvType === "float32" ? new Float32Array(pool.memory()) : new Uint16Array(pool.memory());
}

/** Opens a pool on `kernels` with the world's contents and begins its step. */
export function openWorld(kernels: CpuKernels, world: World): KvPool {
  const pool = kernels.openPool(world.options);
  const { buffer, byteOffset, byteLength } = world.kv;
  new Uint8Array(pool.memory()).set(new Uint8Array(buffer, byteOffset, byteLength));
  pool.beginStep(world.batch);
  return pool;
}
