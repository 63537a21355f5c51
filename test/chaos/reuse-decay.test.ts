import { expect, test } from "bun:test";
import { effort } from "../support/effort.ts";
import { reuseOverTime, reuseRatio } from "./reuse-decay.ts";

const queryCount = effort(120, 2_400);

test(
  "novel combinations of fragments find as much at the end as at the begin, in a pool with little room",
  async () => {
    const plan = { queries: queryCount, fragments: 24, fragmentTokens: 64, poolShare: 1.7, say: () => undefined };
    const server = { model: "one-layer" } as const;
    const { queries } = await reuseOverTime({ ...plan, server });
    expect(queries.length).toBe(queryCount);
    const [first, last] = [queries.slice(0, queryCount / 4), queries.slice(-queryCount / 4)];
    expect(reuseRatio(first)).toBeGreaterThan(0.8);
    expect(reuseRatio(last) / reuseRatio(first)).toBeGreaterThanOrEqual(0.95);
  },
  effort(120_000, 600_000),
);
