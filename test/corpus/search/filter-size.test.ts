/** Filters of any size: refused by name before anything looks at all of them, and read just below the bounds. */
import { describe, expect, test } from "bun:test";
import { corpusLimits } from "../../../gateway/corpus/base/limits.ts";
import { attributeFilterSchema } from "../../../gateway/corpus/search/filters.ts";
import { searchSchema } from "../../../gateway/http/openai/vector-stores.ts";
import { fc } from "../../support/fast-check.ts";

const { maxFilterNodes, maxFilterDepth, maxFilterValues, maxFilterValuesInAll } = corpusLimits;

type Filter =
  | { readonly type: string; readonly filters: readonly Filter[] }
  | { readonly type: string; readonly key: string; readonly value: unknown };

const one: Filter = { type: "eq", key: "a", value: 1 };
const listed = (count: number): Filter => ({ type: "in", key: "a", value: Array.from({ length: count }, (_, i) => i) });
const any = (filters: readonly Filter[]): Filter => ({ type: "or", filters });
const times = (count: number, filter: Filter): Filter[] => Array.from({ length: count }, () => filter);
const deep = (levels: number): Filter => (levels === 1 ? one : any([deep(levels - 1)]));

function refusalOf(filters: unknown): { path: string; message: string } | undefined {
  const issue = searchSchema.safeParse({ query: "a", filters }).error?.issues[0];
  return issue && { path: issue.path.join("."), message: issue.message };
}

describe("the bounds", () => {
  const longest = "x".repeat(corpusLimits.maxMetadataValueChars);
  const allowed: readonly (readonly [string, Filter])[] = [
    ["parts", any(times(maxFilterNodes - 1, one))],
    ["depth", deep(maxFilterDepth)],
    ["values", listed(maxFilterValues)],
    ["values in all", any(times(maxFilterValuesInAll / maxFilterValues, listed(maxFilterValues)))],
    ["characters", { type: "in", key: "k".repeat(corpusLimits.maxMetadataKeyChars), value: [longest] }],
  ];
  for (const [name, filter] of allowed)
    test(`reached: ${name}`, () => {
      expect(refusalOf(filter)).toBeUndefined();
    });

  const refused: readonly (readonly [string, unknown, string, RegExp])[] = [
    ["parts", any(times(maxFilterNodes, one)), "filters", /at most 64 parts/],
    ["parts, spread out", any(times(8, any(times(8, one)))), "filters", /at most 64 parts/],
    [
      "depth",
      any([one, deep(maxFilterDepth)]),
      "filters.filters.1.filters.0.filters.0.filters.0.filters.0.filters.0.filters.0.filters.0",
      /8 deep/,
    ],
    ["values", any([one, listed(maxFilterValues + 1)]), "filters.filters.1.value", /at most 256 values in a list/],
    ["values in all", any(times(5, listed(250))), "filters.filters.4.value", /at most 1024 values in all/],
    ["a text", { ...one, value: `${longest}x` }, "filters.value", /./],
    ["a text of a list", { type: "in", key: "a", value: [`${longest}x`] }, "filters.value.0", /./],
    ["a key", { ...one, key: "k".repeat(corpusLimits.maxMetadataKeyChars + 1) }, "filters.key", /64/],
    ["a filter of parts that are none", any(times(100_000, 1 as never)), "filters", /at most 64 parts/],
  ];
  for (const [name, filter, path, message] of refused)
    test(`passed: ${name}`, () => {
      const refusal = refusalOf(filter);
      expect(refusal?.path).toBe(path);
      expect(refusal?.message).toMatch(message);
    });
});

/** What a filter has, counted by itself. */
function sizeOf(filter: Filter): { parts: number; depth: number; longest: number; values: number } {
  if (!("filters" in filter)) {
    const count = Array.isArray(filter.value) ? filter.value.length : 0;
    return { parts: 1, depth: 1, longest: count, values: count };
  }
  const sizes = filter.filters.map(sizeOf);
  const sum = (of: (size: ReturnType<typeof sizeOf>) => number) => sizes.reduce((total, size) => total + of(size), 0);
  const max = (of: (size: ReturnType<typeof sizeOf>) => number) => Math.max(...sizes.map(of));
  return {
    parts: 1 + sum((size) => size.parts),
    depth: 1 + max((size) => size.depth),
    longest: max((size) => size.longest),
    values: sum((size) => size.values),
  };
}

test("any tree of sound parts is read if it is within all bounds, and refused by its size if not", () => {
  const leaf = fc.oneof(
    fc.constant(one),
    fc.oneof(fc.integer({ min: 0, max: 4 }), fc.integer({ min: 200, max: 300 })).map(listed),
  );
  const tree = fc.letrec<{ node: Filter }>((tie) => ({
    node: fc.oneof(
      { maxDepth: 9, withCrossShrink: true },
      leaf,
      fc.array(tie("node"), { minLength: 1, maxLength: 9 }).map(any),
    ),
  })).node;
  const seen = { allowed: 0, refused: 0 };
  fc.assert(
    fc.property(tree, (filter) => {
      const { parts, depth, longest, values } = sizeOf(filter);
      const within =
        parts <= maxFilterNodes &&
        depth <= maxFilterDepth &&
        longest <= maxFilterValues &&
        values <= maxFilterValuesInAll;
      seen[within ? "allowed" : "refused"] += 1;
      const refusal = refusalOf(filter);
      expect(refusal === undefined).toBe(within);
      if (refusal !== undefined) expect(refusal.message).toMatch(/^a filter can have at most|^nested more than/);
    }),
    { numRuns: 2_000 },
  );
  expect(Math.min(seen.allowed, seen.refused)).toBeGreaterThan(100);
});

test("anything else in its place is refused, by a path within the filter", () => {
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 9 }), (junk) => {
      for (const filter of [junk, { type: "and", filters: junk }, { type: "and", filters: [one, junk] }]) {
        const refusal = refusalOf(filter);
        expect(refusal === undefined || refusal.path.startsWith("filters")).toBe(true);
      }
    }),
    { numRuns: 500 },
  );
});

test("of a huge filter no more is looked at than may be there", () => {
  let looks = 0;
  const counted = new Proxy(one, {
    get(target, name) {
      looks += 1;
      return Reflect.get(target, name);
    },
    ownKeys(target) {
      looks += 1;
      return Reflect.ownKeys(target);
    },
  });
  const wide = (levels: number): Filter => any(times(60, levels === 1 ? counted : wide(levels - 1)));
  expect(attributeFilterSchema.safeParse(wide(3)).success).toBe(false);
  expect(looks).toBeLessThan(10 * maxFilterNodes);
  // Had it been read, each part would have been looked at some times.
  looks = 0;
  expect(attributeFilterSchema.safeParse(any(times(10, counted))).success).toBe(true);
  expect(looks).toBeGreaterThan(20);
});
