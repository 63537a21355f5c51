import { expect, test } from "bun:test";
import { hitRate, lightBesideHeavy } from "./light-tenant.ts";

test("a light tenant beside a heavy one is answered and keeps what it has in the pool", async () => {
  const plan = { requests: 12, requestMs: 100, times: 6, say: () => undefined };
  const { alone, beside, heavy } = await lightBesideHeavy(plan);
  expect(beside.length).toBe(12);
  expect(heavy.get(200)).toBeGreaterThan(10);
  expect(hitRate(alone)).toBeGreaterThan(0.8);
  expect(hitRate(beside)).toBeGreaterThan(hitRate(alone) - 0.05);
}, 120_000);
