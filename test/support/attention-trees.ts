/**
 * Trees of shared KV for attention: `nodes[i]` nodes on level i of `tokens[i]` tokens each, under them as many queries as
 * the last level has nodes. Query i of B stands under node floor(i * n / B) of a level of n nodes; then rows are shuffled.
 */
import type { Batch } from "../../worker/contract/batch.ts";
import { Choices } from "../sim/random.ts";

export interface AttentionTree {
  readonly nodes: readonly number[];
  readonly tokens: readonly number[];
}

/** The sweep published with PAT. */
export const attentionTrees: readonly AttentionTree[] = [
  { nodes: [1, 10], tokens: [4096, 416] },
  { nodes: [1, 256], tokens: [256, 32] },
  { nodes: [1, 1024], tokens: [2048, 32] },
  { nodes: [1, 2, 64], tokens: [1024, 256, 256] },
  { nodes: [1, 4, 256], tokens: [32, 256, 32] },
  { nodes: [1, 8, 512], tokens: [32, 512, 256] },
  { nodes: [1, 8, 512], tokens: [32, 2048, 256] },
  { nodes: [1, 8, 512], tokens: [512, 512, 256] },
  { nodes: [1, 4, 8, 256], tokens: [32, 256, 256, 32] },
  { nodes: [1, 4, 16, 512], tokens: [1024, 256, 128, 32] },
  { nodes: [1, 4, 16, 64, 256, 1024], tokens: [256, 32, 256, 64, 32, 256] },
  { nodes: [1, 16, 32, 64, 128, 1024], tokens: [256, 128, 64, 32, 32, 32] },
  { nodes: [1, 16, 32, 64, 256, 1024], tokens: [256, 128, 64, 32, 32, 32] },
  { nodes: [1, 8, 16, 32, 64, 128, 1024], tokens: [256, 128, 64, 32, 32, 32, 32] },
  { nodes: [1, 8, 16, 32, 64, 256, 1024], tokens: [256, 128, 64, 32, 32, 32, 32] },
  { nodes: [2, 8, 16, 256], tokens: [256, 256, 32, 32] },
  { nodes: [4, 16, 256, 512], tokens: [512, 32, 128, 32] },
  { nodes: [8, 16, 32, 256], tokens: [512, 512, 256, 32] },
  { nodes: [256], tokens: [1024] },
  { nodes: [256], tokens: [4096] },
];

export interface TreeOptions {
  readonly blockTokens: number;
  readonly seed: number;
  /** Each row reads its nodes in an order of its own, each node at an offset of its own below `offsetLimit`. */
  readonly offsetLimit?: number;
  /** A query's nodes as one segment, as a chain whose prefixes are shared, instead of a segment a node. */
  readonly oneSegment?: boolean;
}

export interface TreeBatch {
  readonly batch: Batch;
  /** Blocks of the pool that it needs; their ids are scattered over it. */
  readonly blockCount: number;
  /** Tokens of all nodes, each node once: what must be read at least. */
  readonly distinctTokens: number;
  /** Tokens that each row sees, added up. */
  readonly seenTokens: number;
}

export function treeName({ nodes, tokens }: AttentionTree): string {
  return `${nodes.join(",")} / ${tokens.join(",")}`;
}

interface Node {
  readonly blockIds: readonly number[];
  readonly tokens: number;
}

/** One piece of one row a query; the leaf is the piece's own run, whose last token is the row's. */
export function treeBatch({ nodes, tokens }: AttentionTree, options: TreeOptions): TreeBatch {
  const { blockTokens } = options;
  const choices = new Choices(options.seed);
  const blocksOf = (level: number): number => Math.ceil(tokens[level] / blockTokens);
  const blockCount = nodes.reduce((sum, count, level) => sum + count * blocksOf(level), 0);
  const free = shuffled(
    Array.from({ length: blockCount }, (_, id) => id),
    choices,
  );
  const levels = nodes.map((count, level): Node[] =>
    Array.from({ length: count }, () => ({ blockIds: free.splice(-blocksOf(level)), tokens: tokens[level] })),
  );
  const queryCount = nodes[nodes.length - 1];
  const queries = shuffled(
    Array.from({ length: queryCount }, (_, i) => i),
    choices,
  );
  const builder = new TreeRows(options, choices);
  for (const query of queries) {
    builder.add(levels.map((level) => level[Math.floor((query * level.length) / queryCount)]));
  }
  const lengths = tokens.reduce((sum, count) => sum + count, 0);
  return {
    batch: builder.batch(),
    blockCount,
    distinctTokens: nodes.reduce((sum, count, level) => sum + count * tokens[level], 0),
    seenTokens: queryCount * lengths,
  };
}

function shuffled<Item>(items: Item[], choices: Choices): Item[] {
  for (let i = items.length - 1; i > 0; i--) {
    const other = choices.int(0, i);
    [items[i], items[other]] = [items[other], items[i]];
  }
  return items;
}

class TreeRows {
  private readonly positions: number[] = [];
  private readonly slots: number[] = [];
  private readonly pieceSegments = [0];
  private readonly starts: number[] = [];
  private readonly counts: number[] = [];
  private readonly offsets: number[] = [];
  private readonly blockIds: number[] = [];
  private readonly options: TreeOptions;
  private readonly choices: Choices;

  constructor(options: TreeOptions, choices: Choices) {
    this.options = options;
    this.choices = choices;
  }

  add(path: readonly Node[]): void {
    const { blockTokens, offsetLimit, oneSegment } = this.options;
    const leaf = path[path.length - 1];
    const before = path.slice(0, -1);
    const total = path.reduce((sum, node) => sum + node.tokens, 0);
    this.positions.push(total - 1);
    const last = leaf.tokens - 1;
    this.slots.push(leaf.blockIds[Math.floor(last / blockTokens)] * blockTokens + (last % blockTokens));
    if (oneSegment === true) {
      this.addSegment({ blockIds: path.flatMap((node) => node.blockIds), tokens: total }, 0);
    } else {
      for (const node of offsetLimit === undefined ? before : shuffled(before, this.choices)) {
        this.addSegment(node, offsetLimit === undefined ? 0 : this.choices.int(0, offsetLimit - 1));
      }
      this.addSegment(leaf, 0);
    }
    this.pieceSegments.push(this.counts.length);
  }

  private addSegment(node: Node, offset: number): void {
    this.starts.push(this.blockIds.length);
    this.counts.push(node.tokens);
    this.offsets.push(offset);
    for (const id of node.blockIds) this.blockIds.push(id);
  }

  batch(): Batch {
    const rowCount = this.positions.length;
    return {
      tokenIds: new Int32Array(rowCount),
      positions: Int32Array.from(this.positions),
      slots: Int32Array.from(this.slots),
      pieceRows: Int32Array.from({ length: rowCount + 1 }, (_, i) => i),
      pieceSegments: Int32Array.from(this.pieceSegments),
      segmentBlockStarts: Int32Array.from(this.starts),
      segmentFirstTokens: new Int32Array(this.counts.length),
      segmentTokenCounts: Int32Array.from(this.counts),
      segmentOffsets: Int32Array.from(this.offsets),
      blockIds: Int32Array.from(this.blockIds),
      logitRows: new Int32Array(0),
    };
  }
}
