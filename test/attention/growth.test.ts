/** A plan is patched while only runs grow, and is then the plan that would have been made anew. */
import { expect, test } from "bun:test";
import type { AttentionPlan } from "../../worker/attention/plan-format.ts";
import { PackPlanner } from "../../worker/attention/planner.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { Choices } from "../sim/random.ts";
import { checkPlan } from "./check.ts";
import { BlockSource, batchOf, h200, type PieceSpec, randomPieces } from "./world.ts";

const shape = h200;
const sizes = { blockTokens: 16, documents: 4, pieces: 20, maxBlocks: 20, maxRows: 1, maxSegments: 4 };

/** Each piece's own run is a token longer, in a new block where the last is full. */
function grown(pieces: readonly PieceSpec[], source: BlockSource): PieceSpec[] {
  return pieces.map(({ rowCount, segments }) => {
    const own = segments[segments.length - 1];
    const isFull = own.tokens % 16 === 0;
    const blockIds = isFull ? [...own.blockIds, ...source.take(1)] : own.blockIds;
    return { rowCount, segments: [...segments.slice(0, -1), { ...own, blockIds, tokens: own.tokens + 1 }] };
  });
}

const copyOf = (plan: AttentionPlan): AttentionPlan => structuredClone(plan);

function sameStructure(a: AttentionPlan, b: AttentionPlan): boolean {
  return Bun.deepEquals([a.rows, a.smallItems, a.largeItems, a.merges], [b.rows, b.smallItems, b.largeItems, b.merges]);
}

test("runs that grow within their blocks: the patched plan is the fresh one", () => {
  for (let seed = 0; seed < 30; seed++) {
    const choices = new Choices(seed);
    const planner = new PackPlanner(shape);
    // Two tokens into their last blocks.
    let pieces: PieceSpec[] = randomPieces(choices, sizes).map(({ rowCount, segments }) => {
      const own = segments[segments.length - 1];
      const tokens = (own.blockIds.length - 1) * 16 + 2;
      return { rowCount, segments: [...segments.slice(0, -1), { ...own, tokens }] };
    });
    planner.plan(batchOf(pieces));
    for (let step = 0; step < 10; step++) {
      pieces = grown(pieces, new BlockSource(choices));
      const patched = copyOf(planner.plan(batchOf(pieces)));
      expect(patched).toEqual(copyOf(new PackPlanner(shape).plan(batchOf(pieces))));
    }
  }
});

test("runs that grow into new blocks are covered, with the plan's structure kept for a while", () => {
  const choices = new Choices(7);
  const source = new BlockSource(choices, 8_192);
  const planner = new PackPlanner(shape);
  let pieces = randomPieces(choices, { ...sizes, pieces: 8 });
  let structure = copyOf(planner.plan(batchOf(pieces)));
  let kept = 0;
  for (let step = 0; step < 100; step++) {
    pieces = grown(pieces, source);
    const batch = batchOf(pieces);
    const plan = planner.plan(batch);
    checkPlan(batch, plan, shape);
    if (sameStructure(structure, plan)) kept += 1;
    structure = copyOf(plan);
  }
  expect(kept).toBeGreaterThan(90);
});

test("a run that others read grows for its own rows alone", () => {
  const source = new BlockSource(new Choices(3));
  const run = { blockIds: source.take(2), firstToken: 0, tokens: 20, offset: 0 };
  const own = { blockIds: source.take(1), firstToken: 0, tokens: 5, offset: 0 };
  const at = (offset: number) => ({ ...run, offset });
  for (const seen of [[at(7)], [at(7), at(90)]]) {
    const planner = new PackPlanner(shape);
    const pieces = (tokens: number): PieceSpec[] => [
      { rowCount: 1, segments: [{ ...run, tokens }] },
      { rowCount: 1, segments: [...seen, own] },
    ];
    for (const tokens of [20, 21, 22]) {
      const batch = batchOf(pieces(tokens));
      checkPlan(batch, planner.plan(batch), shape);
    }
  }
});

test("any other change is planned anew", () => {
  const choices = new Choices(11);
  const first = randomPieces(choices, { ...sizes, pieces: 6, maxSegments: 3 });
  const changes: ((pieces: PieceSpec[]) => PieceSpec[])[] = [
    (pieces) => pieces.slice(1),
    (pieces) => [...pieces.slice(1), pieces[0]],
    (pieces) => changed(pieces, (own) => ({ ...own, tokens: own.tokens - 1 })),
    (pieces) => changed(pieces, (own) => ({ ...own, blockIds: own.blockIds.map((id) => id + 9_000) })),
    (pieces) => changed(pieces, (own) => ({ ...own, offset: own.offset + 1 })),
    (pieces) => pieces.map((piece) => ({ ...piece, segments: [piece.segments[0], ...piece.segments] })),
    // One reader of shared blocks reads others instead.
    ([first, ...rest]) => {
      const segments = first.segments.map((s) => ({ ...s, blockIds: s.blockIds.map((id) => id + 9_000) }));
      return [{ ...first, segments }, ...rest];
    },
  ];
  for (const change of changes) {
    const planner = new PackPlanner(shape);
    planner.plan(batchOf(first));
    const batch: Batch = batchOf(change([...first]));
    const plan = planner.plan(batch);
    checkPlan(batch, plan, shape);
    expect(copyOf(plan)).toEqual(copyOf(new PackPlanner(shape).plan(batch)));
  }
});

type OwnRun = PieceSpec["segments"][number];

function changed(pieces: readonly PieceSpec[], change: (own: OwnRun) => OwnRun): PieceSpec[] {
  return pieces.map(({ rowCount, segments }, index) => {
    const own = segments[segments.length - 1];
    if (index > 0 || own.tokens < 2) return { rowCount, segments };
    return { rowCount, segments: [...segments.slice(0, -1), change(own)] };
  });
}
