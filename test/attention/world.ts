/** Random batches over a pool of documents: shared whole or in part, at any offset, and chains that part. */

import type { PackShape } from "../../worker/attention/shape.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { Choices } from "../sim/random.ts";

/** An H200, heads of an 8B model. */
export const h200: PackShape = {
  group: 4,
  kvHeads: 8,
  headDim: 128,
  blockTokens: 16,
  multiprocessorCount: 132,
  hasWarpgroups: true,
  packing: true,
  maxPartialRows: 1 << 20,
};

export interface SegmentSpec {
  readonly blockIds: readonly number[];
  readonly firstToken: number;
  readonly tokens: number;
  readonly offset: number;
}

export interface PieceSpec {
  readonly rowCount: number;
  /** The last is the piece's own run. */
  readonly segments: readonly SegmentSpec[];
}

export function batchOf(pieces: readonly PieceSpec[]): Batch {
  const [pieceRows, pieceSegments] = [[0], [0]];
  const [starts, firsts, counts, offsets, blockIds, positions]: number[][] = [[], [], [], [], [], []];
  for (const { rowCount, segments } of pieces) {
    for (const segment of segments) {
      starts.push(blockIds.length);
      firsts.push(segment.firstToken);
      counts.push(segment.tokens);
      offsets.push(segment.offset);
      blockIds.push(...segment.blockIds);
    }
    const own = segments[segments.length - 1].tokens;
    for (let i = rowCount; i > 0; i--) positions.push(own - i);
    pieceRows.push(positions.length);
    pieceSegments.push(counts.length);
  }
  return {
    tokenIds: new Int32Array(positions.length),
    positions: Int32Array.from(positions),
    slots: new Int32Array(positions.length),
    pieceRows: Int32Array.from(pieceRows),
    pieceSegments: Int32Array.from(pieceSegments),
    segmentBlockStarts: Int32Array.from(starts),
    segmentFirstTokens: Int32Array.from(firsts),
    segmentTokenCounts: Int32Array.from(counts),
    segmentOffsets: Int32Array.from(offsets),
    blockIds: Int32Array.from(blockIds),
    logitRows: new Int32Array(0),
  };
}

/** Hands out block ids in a scattered order. */
export class BlockSource {
  private used = 0;
  private readonly step: number;

  private readonly base: number;

  constructor(choices: Choices, base = 0) {
    this.base = base;
    this.step = 2 * choices.int(0, 400) + 1;
  }

  take(count: number): number[] {
    return Array.from({ length: count }, () => this.base + ((this.used++ * this.step) % 8_192));
  }
}

interface Document {
  readonly blockIds: readonly number[];
  readonly tokens: number;
}

export interface WorldSizes {
  readonly blockTokens: number;
  readonly documents: number;
  readonly pieces: number;
  readonly maxBlocks: number;
  /** Most rows of a piece; most pieces have one. */
  readonly maxRows: number;
  readonly maxSegments: number;
}

export function randomPieces(choices: Choices, sizes: WorldSizes): PieceSpec[] {
  const { blockTokens, maxBlocks } = sizes;
  const source = new BlockSource(choices);
  const documents: Document[] = [];
  for (let i = 0; i < sizes.documents; i++) {
    const tokens = choices.int(1, maxBlocks * blockTokens);
    // Some go on where a part of another ends.
    const other = documents.length > 0 && choices.chance(0.4) ? choices.pick(documents) : undefined;
    const common = other?.blockIds.slice(0, choices.int(0, Math.floor(tokens / blockTokens))) ?? [];
    const blocks = Math.ceil(tokens / blockTokens);
    documents.push({ blockIds: [...common, ...source.take(blocks - common.length)], tokens });
  }
  const segmentOf = ({ blockIds, tokens }: Document): SegmentSpec => {
    const first = choices.chance(0.2) ? choices.int(0, tokens - 1) : 0;
    const end = choices.chance(0.2) ? choices.int(first + 1, tokens) : tokens;
    const own = blockIds.slice(Math.floor(first / blockTokens), Math.ceil(end / blockTokens));
    return {
      blockIds: choices.chance(0.1) ? entangled(choices, own, choices.pick(documents).blockIds) : own,
      firstToken: first % blockTokens,
      tokens: end - first,
      offset: choices.chance(0.3) ? 0 : choices.int(-50, 50),
    };
  };
  /** In another order, with a block of another document in it: nobody stores that, but nothing forbids it. */
  const entangled = (of: Choices, own: number[], other: readonly number[]): number[] => {
    const mixed = own.toSorted(() => of.next() - 0.5);
    const block = of.pick(other);
    return mixed.includes(block) ? mixed : mixed.with(of.int(0, mixed.length - 1), block);
  };
  return Array.from({ length: sizes.pieces }, () => {
    const rowCount = choices.chance(0.8) ? 1 : choices.int(1, sizes.maxRows);
    const seen = Array.from({ length: choices.int(0, sizes.maxSegments) }, () => segmentOf(choices.pick(documents)));
    const tokens = rowCount + choices.int(0, maxBlocks * blockTokens);
    const blockIds = source.take(Math.ceil(tokens / blockTokens));
    return { rowCount, segments: [...seen, { blockIds, firstToken: 0, tokens, offset: 0 }] };
  });
}

export interface RequestSizes {
  readonly requests: number;
  readonly documents: number;
  /** Documents that a request reads, in an order of its own. */
  readonly each: number;
  /** Of 16 tokens, in a document. */
  readonly blocks: number;
}

/** Decoding requests that each read some of the same documents, and their own question. */
export function requestsOver(choices: Choices, { requests, documents, each, blocks }: RequestSizes): PieceSpec[] {
  let used = 0;
  const take = (count: number) => Array.from({ length: count }, () => used++);
  const shared = Array.from({ length: documents }, () => take(blocks));
  return Array.from({ length: requests }, () => {
    const left = shared.map((_, i) => i);
    const chosen = Array.from({ length: each }, () => left.splice(choices.int(0, left.length - 1), 1)[0]);
    const segments = chosen.map((document) => ({
      blockIds: shared[document],
      firstToken: 0,
      tokens: blocks * 16,
      offset: choices.int(0, 5_000),
    }));
    const tokens = choices.int(1, 100);
    const own = { blockIds: take(Math.ceil(tokens / 16)), firstToken: 0, tokens, offset: 0 };
    return { rowCount: 1, segments: [...segments, own] };
  });
}
