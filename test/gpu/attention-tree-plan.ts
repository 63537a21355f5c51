/**
 * Plans of chosen shapes for steps of one row a request, to learn what shapes cost: items of so many consecutive rows
 * with all that they read, apart from nodes that many rows read, which get items of their own.
 */
import { type AttentionPlan, rowsPerTile } from "../../worker/attention/plan-format.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { type BuiltItem, type BuiltSlice, buildPlan } from "./attention-builder.ts";

export interface TreePlanShape {
  readonly group: number;
  readonly blockTokens: number;
  /** Rows of an item that holds rows with their leaves. */
  readonly rows: number;
  /** Nodes with so many readers or more stand apart... */
  readonly hotReaders: number;
  /** ...in items of so many tiles and at most so many tokens. */
  readonly hotTiles: number;
  readonly hotTokens: number;
  readonly hotIsLarge: boolean;
  /** Other items are cut into parts of at most so many tokens. */
  readonly partTokens: number;
}

interface Seen {
  readonly node: number;
  readonly block: number;
  readonly tokens: number;
  readonly offset: number;
}

export function planTree(batch: Batch, shape: TreePlanShape): AttentionPlan {
  const rows = batch.positions.length;
  const readers = new Map<number, number>();
  const seen = Array.from({ length: rows }, (_, row): Seen[] => {
    const list: Seen[] = [];
    for (let s = batch.pieceSegments[row]; s < batch.pieceSegments[row + 1]; s++) {
      const block = batch.segmentBlockStarts[s];
      const node = batch.blockIds[block];
      readers.set(node, (readers.get(node) ?? 0) + 1);
      list.push({ node, block, tokens: batch.segmentTokenCounts[s], offset: batch.segmentOffsets[s] });
    }
    return list;
  });
  const readersOf = (node: number) => readers.get(node) ?? 0;
  for (const list of seen) list.sort((a, b) => readersOf(b.node) - readersOf(a.node) || a.node - b.node);
  const order = Array.from({ length: rows }, (_, row) => row).sort((a, b) => {
    for (let i = 0; i < seen[a].length; i++) {
      const difference = seen[a][i].node - seen[b][i].node;
      if (difference !== 0) return difference;
    }
    return 0;
  });
  const hot = hotItems(order, seen, readersOf, shape);
  const leaves = leafItems(order, seen, readersOf, shape);
  const bySize = (a: BuiltItem, b: BuiltItem) => tokensOf(b) - tokensOf(a);
  const small = (shape.hotIsLarge ? leaves : [...hot, ...leaves]).sort(bySize);
  return buildPlan(rows, small, shape.hotIsLarge ? hot.sort(bySize) : []);
}

const tokensOf = ({ shared, own }: BuiltItem) => [...shared, ...own].reduce((sum, { tokens }) => sum + tokens, 0);

function hotItems(
  order: readonly number[],
  seen: readonly Seen[][],
  readersOf: (node: number) => number,
  shape: TreePlanShape,
): BuiltItem[] {
  const byNode = new Map<number, { row: number; at: Seen }[]>();
  for (const row of order) {
    for (const at of seen[row]) {
      if (readersOf(at.node) < shape.hotReaders) continue;
      const list = byNode.get(at.node) ?? [];
      list.push({ row, at });
      byNode.set(at.node, list);
    }
  }
  const most = shape.hotTiles * rowsPerTile(shape.group);
  return [...byNode.values()].flatMap((all) =>
    chunksOf(all, most).flatMap((part) => {
      const { block, tokens } = part[0].at;
      const offsets = part.map(({ at }) => at.offset);
      const whole = { block, firstToken: 0, tokens, firstRow: 0, firstVisible: tokens, offsets };
      const stretches = cutSlice(whole, evenTokens(tokens, shape.hotTokens), shape.blockTokens);
      return stretches.map((slice) => ({ rows: part.map(({ row }) => row), shared: [slice], own: [] }));
    }),
  );
}

function leafItems(
  order: readonly number[],
  seen: readonly Seen[][],
  readersOf: (node: number) => number,
  shape: TreePlanShape,
): BuiltItem[] {
  const perTile = rowsPerTile(shape.group);
  return chunksOf(order, shape.rows).flatMap((rows) => {
    const [shared, own]: BuiltSlice[][] = [[], []];
    const runs = new Map<number, { first: number; list: Seen[] }>();
    rows.forEach((row, i) => {
      for (const at of seen[row]) {
        if (readersOf(at.node) >= shape.hotReaders) continue;
        const run = runs.get(at.node) ?? { first: i, list: [] };
        run.list.push(at);
        runs.set(at.node, run);
      }
    });
    for (const { first, list } of runs.values()) {
      const { block, tokens } = list[0];
      const of = (from: number, part: readonly Seen[]): BuiltSlice => {
        const offsets = part.map(({ offset }) => offset);
        return { block, firstToken: 0, tokens, firstRow: from, firstVisible: tokens, offsets };
      };
      if (list.length === rows.length) {
        shared.push(of(0, list));
        continue;
      }
      for (let i = 0; i < list.length; ) {
        const inTile = perTile - ((first + i) % perTile);
        own.push(of(first + i, list.slice(i, i + inTile)));
        i += inTile;
      }
    }
    own.sort((a, b) => a.firstRow - b.firstRow);
    return cutItem({ rows, shared, own }, shape);
  });
}

const evenTokens = (tokens: number, most: number) => Math.ceil(tokens / Math.ceil(tokens / most));

function cutSlice(slice: BuiltSlice, tokens: number, blockTokens: number): BuiltSlice[] {
  const step = Math.ceil(tokens / blockTokens) * blockTokens;
  return Array.from({ length: Math.ceil(slice.tokens / step) }, (_, i) => {
    const count = Math.min(step, slice.tokens - i * step);
    return { ...slice, block: slice.block + (i * step) / blockTokens, tokens: count, firstVisible: count };
  });
}

/** Parts of about equal size, which all hold all rows. */
function cutItem(item: BuiltItem, { partTokens, blockTokens }: TreePlanShape): BuiltItem[] {
  const total = tokensOf(item);
  if (total <= partTokens) return [item];
  const most = Math.ceil(evenTokens(total, partTokens) / blockTokens) * blockTokens;
  const parts: { rows: readonly number[]; shared: BuiltSlice[]; own: BuiltSlice[] }[] = [];
  let room = 0;
  for (const kind of ["shared", "own"] as const) {
    for (const slice of item[kind]) {
      for (let done = 0; done < slice.tokens; ) {
        if (room === 0) {
          parts.push({ rows: item.rows, shared: [], own: [] });
          room = most;
        }
        const tokens = Math.min(room, slice.tokens - done);
        const block = slice.block + done / blockTokens;
        parts[parts.length - 1][kind].push({ ...slice, block, tokens, firstVisible: tokens });
        done += tokens;
        room -= tokens;
      }
    }
  }
  return parts;
}

function chunksOf<Value>(values: readonly Value[], size: number): Value[][] {
  return Array.from({ length: Math.ceil(values.length / size) }, (_, i) => values.slice(i * size, (i + 1) * size));
}
