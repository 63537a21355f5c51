/** Shapes for the checks against the oracle: groups, head sizes, rotations and blocks that divide nothing evenly. */
import type { Random } from "../native/random.ts";
import type { AttentionCheck } from "./attention-checks.ts";

const contextTokens = 4_096;

function caseOf(
  random: Random,
  [headDim, group, kvHeads]: readonly [number, number, number],
  [rowCount, smallRounds, largeRounds]: readonly [number, number, number],
  rest: Partial<AttentionCheck> & { readonly rotaryDim?: number; readonly blockTokens?: number } = {},
): AttentionCheck {
  const { rotaryDim = headDim, blockTokens = 16, ...given } = rest;
  return {
    heads: { headDim, rotaryDim, queryHeads: group * kvHeads, kvHeads, blockTokens },
    plan: {
      rowCount,
      blockCount: Math.ceil(600 / blockTokens),
      contextTokens,
      sharedSlices: 3,
      privateSlices: 2,
      maxTokens: 90,
      smallRounds,
      largeRounds,
    },
    grid: random.pick([1, 5, 64, 264]),
    slots: random.pick([2, 3, 4]),
    stepTokens: random.pick([32, 64]),
    large: "attention_tiles",
    ...given,
  };
}

/** With more slices than a warp holds at a time. */
function longItems(check: AttentionCheck): AttentionCheck {
  return { ...check, plan: { ...check.plan, sharedSlices: 40, maxTokens: 60 } };
}

/** @param isSmall some few, for a memory checker */
export function attentionCases(random: Random, isSmall: boolean): AttentionCheck[] {
  const small = [
    caseOf(random, [80, 4, 2], [23, 1, 1], { slots: 2, blockTokens: 8 }),
    caseOf(random, [128, 8, 1], [21, 2, 0], { slots: 3 }),
    caseOf(random, [64, 7, 1], [13, 2, 1], { slots: 4, rotaryDim: 32 }),
    caseOf(random, [96, 32, 1], [9, 1, 1], { slots: 3, blockTokens: 32 }),
    longItems(caseOf(random, [128, 4, 2], [50, 2, 1])),
  ];
  if (isSmall) return small;
  const sizes = [64, 80, 96, 128].flatMap((headDim) => [
    caseOf(random, [headDim, 4, 2], [37, 2, 1]),
    caseOf(random, [headDim, random.pick([1, 2, 7, 8, 16]), 1], [random.integer(1, 40), 2, 0], { blockTokens: 64 }),
    caseOf(random, [headDim, random.pick([1, 2, 7, 8, 16]), 1], [random.integer(1, 40), 0, 2], { blockTokens: 4 }),
  ]);
  const groups = [1, 2, 4, 7, 8, 16, 20, 32].map((group) =>
    caseOf(random, [128, group, random.integer(1, 2)], [random.integer(1, 30), 2, 1]),
  );
  const rows = [1, 2, 3, 17, 120, 300].map((count) => caseOf(random, [128, 4, 1], [count, 2, 1]));
  const long = [1, 3, 4, 8, 32].flatMap((group) =>
    [64, 128].map((headDim) =>
      longItems(
        caseOf(random, [headDim, group, 1], [random.integer(1, 200), 2, 1], {
          blockTokens: random.pick([16, 32, 128]),
        }),
      ),
    ),
  );
  return [
    ...small,
    ...long,
    ...sizes,
    ...groups,
    ...rows,
    caseOf(random, [128, 4, 1], [40, 3, 2], { rotaryDim: 0 }),
    caseOf(random, [128, 4, 1], [11, 12, 10], { rotaryDim: 40 }),
    caseOf(random, [48, 4, 1], [20, 2, 1]),
  ];
}
