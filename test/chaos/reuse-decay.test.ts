import { expect, test } from "bun:test";
import { reuseOverTime, reuseRatio } from "./reuse-decay.ts";

test("novel combinations of fragments find as much at the end as at the begin, in a pool with little room", async () => {
  const plan = { queries: 240, fragments: 24, fragmentTokens: 64, poolShare: 1.7, say: () => undefined };
  const { queries } = await reuseOverTime(plan);
  expect(queries.length).toBe(240);
  const [first, last] = [queries.slice(0, 60), queries.slice(-60)];
  expect(reuseRatio(first)).toBeGreaterThan(0.8);
  expect(reuseRatio(last) / reuseRatio(first)).toBeGreaterThanOrEqual(0.95);
}, 120_000);
