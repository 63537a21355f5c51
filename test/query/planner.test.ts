import { describe, expect, test } from "bun:test";
import { FragmentTable, type FragmentUse, planningSteps } from "../../gateway/query/planner.ts";
import { drawQueries, paperOrder, reuseDistances } from "../bench/support/reuse-order.ts";
import { fc } from "../support/fast-check.ts";
import { planOrder, simulateOrder } from "../support/span-queries.ts";

type Queries = readonly (readonly FragmentUse[])[];

const usesOf = (queries: readonly (readonly number[])[], tokens = 128): FragmentUse[][] =>
  queries.map((fragments) => fragments.map((fragment) => ({ key: `f${fragment}`, tokens })));
const ingestionOf = (queries: Queries): number[] => queries.map((_, index) => index);
const missed = (queries: Queries, order: readonly number[], capacityTokens: number): number =>
  simulateOrder(queries, order, capacityTokens).missTokens;

/** Fragments of different sizes, the same size wherever they occur; repetitions within a query. */
const someQueries = fc
  .array(fc.array(fc.nat(9), { maxLength: 5 }), { maxLength: 14 })
  .map((queries) =>
    queries.map((fragments) => fragments.map((id) => ({ key: `f${id}`, tokens: 16 * (1 + (id % 4)) }))),
  );
const someCapacity = fc.integer({ min: 0, max: 320 });

describe("the order is one of all queries", () => {
  test("each once, the same one every time, never worse than as given", () => {
    fc.assert(
      fc.property(someQueries, someCapacity, (queries, capacityTokens) => {
        const { order, kind } = planOrder(queries, capacityTokens);
        expect(order.toSorted((a, b) => a - b)).toEqual(ingestionOf(queries));
        expect(planOrder(queries, capacityTokens)).toEqual({ order, kind });
        const given = missed(queries, ingestionOf(queries), capacityTokens);
        if (kind === "ingestion") expect(order).toEqual(ingestionOf(queries));
        else expect(missed(queries, order, capacityTokens)).toBeLessThan(given);
      }),
      { numRuns: 300 },
    );
  });

  test("no queries, and queries without fragments, keep their order", () => {
    expect(planOrder([], 100)).toEqual({ order: [], kind: "ingestion" });
    expect(planOrder([[], [], []], 0)).toEqual({ order: [0, 1, 2], kind: "ingestion" });
  });

  test("a pool that holds everything leaves nothing to gain", () => {
    const queries = usesOf(drawQueries({ queryCount: 40, fragmentsPerQuery: 3, fragmentCount: 12, zipf: 1, seed: 1 }));
    expect(planOrder(queries, 12 * 128).kind).toBe("ingestion");
  });

  test("queries that take turns are put together", () => {
    const queries = usesOf([
      [0, 1],
      [2, 3],
      [0, 1],
      [2, 3],
      [0, 1],
      [2, 3],
    ]);
    const { order, kind } = planOrder(queries, 2 * 128);
    expect({ order, kind }).toEqual({ order: [0, 2, 4, 1, 3, 5], kind: "planned" });
    expect(missed(queries, order, 2 * 128)).toBe(4 * 128);
  });

  test("a fragment counts with its tokens: the large one is kept", () => {
    const use = (key: string, tokens: number): FragmentUse => ({ key, tokens });
    const large = use("large", 64);
    const queries = [[large, use("a", 32)], [use("a", 32), use("b", 32)], [large, use("c", 32)], [use("b", 32)]];
    const { order } = planOrder(queries, 96);
    expect(missed(queries, order, 96)).toBe(160);
  });
});

describe("the simulated pool", () => {
  const queries = usesOf([[0], [1], [2], [0], [1]], 10);

  test("drops the least recently used", () => {
    expect(simulateOrder(queries, [0, 1, 2, 3, 4], 20)).toEqual({ missTokens: 50, hitTokens: 0 });
    expect(simulateOrder(queries, [0, 3, 1, 4, 2], 20)).toEqual({ missTokens: 30, hitTokens: 20 });
    expect(simulateOrder(queries, [0, 1, 2, 3, 4], 30)).toEqual({ missTokens: 30, hitTokens: 20 });
  });

  test("finds a fragment exactly when its reuse distance leaves room for it", () => {
    fc.assert(
      fc.property(fc.array(fc.nat(7), { maxLength: 40 }), fc.integer({ min: 1, max: 9 }), (fragments, capacity) => {
        const single = usesOf(
          fragments.map((fragment) => [fragment]),
          1,
        );
        const order = ingestionOf(single);
        const near = reuseDistances(single, order).filter((distance) => distance < capacity);
        expect(simulateOrder(single, order, capacity).hitTokens).toBe(near.length);
      }),
    );
  });

  test("counts a fragment once in a query, and a larger one than the pool as never kept", () => {
    expect(simulateOrder(usesOf([[0, 0], [0]], 10), [0, 1], 10)).toEqual({ missTokens: 10, hitTokens: 10 });
    expect(simulateOrder(usesOf([[0], [0]], 10), [0, 1], 9)).toEqual({ missTokens: 20, hitTokens: 0 });
  });
});

function permutations(items: readonly number[]): number[][] {
  if (items.length < 2) return [[...items]];
  return items.flatMap((item) => permutations(items.filter((other) => other !== item)).map((rest) => [item, ...rest]));
}

test("small cases: near the best of all orders", () => {
  let planned = 0;
  let best = 0;
  let given = 0;
  for (let seed = 0; seed < 60; seed++) {
    const shape = { queryCount: 6, fragmentsPerQuery: 2 + (seed % 2), fragmentCount: 8, zipf: seed % 3, seed };
    const queries = usesOf(drawQueries(shape), 1);
    const least = Math.min(...permutations(ingestionOf(queries)).map((order) => missed(queries, order, 4)));
    const ours = missed(queries, planOrder(queries, 4).order, 4);
    expect(ours).toBeGreaterThanOrEqual(least);
    planned += ours;
    best += least;
    given += missed(queries, ingestionOf(queries), 4);
  }
  // Half of what the given order computes too much, or less.
  expect((planned - best) / (given - best)).toBeLessThan(0.35);
});

describe("workloads with a pool of a tenth of the fragments", () => {
  const capacityTokens = 50 * 128;
  const shape = { queryCount: 800, fragmentsPerQuery: 4, fragmentCount: 500, seed: 7 };

  test.each([
    { zipf: 1.1, factor: 2.2, overPaper: 1.8 },
    { zipf: 1.5, factor: 1.8, overPaper: 1.7 },
    { zipf: 0, factor: 1.5, overPaper: 1.2 },
  ])("zipf $zipf: computes fewer tokens than as given, and than the paper's order", ({ zipf, factor, overPaper }) => {
    const queries = usesOf(drawQueries({ ...shape, zipf }));
    const ours = missed(queries, planOrder(queries, capacityTokens).order, capacityTokens);
    expect(missed(queries, ingestionOf(queries), capacityTokens) / ours).toBeGreaterThan(factor);
    expect(missed(queries, paperOrder(queries), capacityTokens) / ours).toBeGreaterThan(overPaper);
  });
});

test("planning has a step for each query and each fragment at least, so that others have their turn between them", () => {
  const queries = Array.from({ length: 50 }, (_, index) => [
    { key: `shared ${index % 5}`, tokens: 16 },
    { key: `own ${index}`, tokens: 16 },
  ]);
  const steps = planningSteps(FragmentTable.of(queries), 64);
  let count = 0;
  let step = steps.next();
  for (; step.done !== true; step = steps.next()) count += 1;
  expect(count).toBeGreaterThanOrEqual(queries.length + 55);
  expect(step.value).toEqual(planOrder(queries, 64));
});
