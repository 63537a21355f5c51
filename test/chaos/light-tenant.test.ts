import { expect, test } from "bun:test";
import { effort } from "../support/effort.ts";
import { hitRate, lightBesideHeavy } from "./light-tenant.ts";

const requests = effort(10, 200);

test(
  "a light tenant beside a heavy one is answered and keeps what it has in the pool",
  async () => {
    const [heavyAtOnce, documents] = [effort(24, 250), effort(16, 40)];
    const plan = { requests, requestMs: 100, times: 6, heavyAtOnce, documents, say: () => undefined };
    const server = { model: "one-layer" } as const;
    const { alone, beside, heavy } = await lightBesideHeavy({ ...plan, server });
    expect(beside.length).toBe(requests);
    expect(heavy.get(200)).toBeGreaterThan(10);
    expect(hitRate(alone)).toBeGreaterThan(0.8);
    expect(hitRate(beside)).toBeGreaterThan(hitRate(alone) - 0.05);
  },
  effort(120_000, 600_000),
);
