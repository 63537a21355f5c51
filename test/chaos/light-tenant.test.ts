import { expect, test } from "bun:test";
import { hitRate, lightBesideHeavy } from "./light-tenant.ts";

test("a light tenant beside a heavy one is answered and keeps what it has in the pool", async () => {
  const plan = { requests: 20, requestMs: 100, times: 10, say: () => undefined };
  const { alone, beside, heavy } = await lightBesideHeavy(plan);
  expect(beside.length).toBe(20);
  expect(heavy.get(200)).toBeGreaterThan(20);
  expect(hitRate(alone)).toBeGreaterThan(0.7);
  expect(hitRate(beside)).toBeGreaterThan(hitRate(alone) - 0.05);
}, 120_000);
