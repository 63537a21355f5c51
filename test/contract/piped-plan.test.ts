/** A plan that goes through the pipe is the same plan at the other end, and one whose numbers do not fit is refused. */
import { expect, test } from "bun:test";
import { rootKey } from "../../worker/contract/block-key.ts";
import type { PlanRun, SubmitMessage } from "../../worker/contract/messages.ts";
import { type PipedPlan, piped, planOfPiped } from "../../worker/contract/piped-plan.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { greedy } from "../dispatch/rig.ts";
import { fc } from "../support/fast-check.ts";

const key = fc.nat(1_000).map((seed) => rootKey("digest", String(seed) as CacheSalt, "span"));
const int32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
const segment = fc.record({ run: fc.nat(9), firstToken: fc.nat(99), tokenCount: fc.nat(99), offset: int32 });
const copy = fc.record({ run: fc.nat(9), firstToken: fc.nat(99), tokenCount: fc.nat(99), at: fc.nat(99) });
const run: fc.Arbitrary<PlanRun> = fc.record(
  {
    kind: fc.constantFrom("span" as const, "main" as const),
    tokenIds: fc.array(int32, { maxLength: 40 }).map((ids) => Int32Array.from(ids)),
    position: fc.nat(),
    sees: fc.array(segment, { maxLength: 5 }),
    blockKeys: fc.array(key, { maxLength: 4 }),
    rootKey: key,
    spanId: fc.string(),
    quotes: fc.array(key, { maxLength: 3 }),
    blend: fc.record({ recomputeRatio: fc.double({ min: 0, max: 1 }), copies: fc.array(copy, { maxLength: 3 }) }),
  },
  { requiredKeys: ["kind", "tokenIds", "position", "sees", "blockKeys", "rootKey"] },
);

function sent(runs: readonly PlanRun[]): PipedPlan {
  const message: SubmitMessage = { type: "submit", requestId: "r", plan: { runs }, params: greedy(1), reuse: true };
  const through = structuredClone(piped(message));
  if (through.type !== "submit") throw new Error("another message came out");
  expect({ ...through, plan: message.plan }).toEqual(message);
  return through.plan;
}

test("any plan comes out as it went in", () => {
  const property = fc.property(fc.array(run, { maxLength: 6 }), (runs) => {
    expect(planOfPiped(sent(runs))).toStrictEqual({ runs });
  });
  fc.assert(property, { numRuns: 200 });
});

test("numbers that do not fit together are refused, whichever of them is wrong", () => {
  const [rootKeyOf, first] = fc.sample(key, { numRuns: 2, seed: 1 });
  if (rootKeyOf === undefined || first === undefined) throw new Error("no keys");
  const sees = [{ run: 0, firstToken: 0, tokenCount: 2, offset: 3 }];
  const base = { position: 0, tokenIds: Int32Array.of(5, 6), blockKeys: [first], rootKey: rootKeyOf };
  const good = sent([
    { ...base, kind: "span", sees: [] },
    { ...base, kind: "main", sees },
  ]);
  expect(planOfPiped(good)?.runs).toHaveLength(2);
  const changed = (at: number, value: number): PipedPlan => ({ ...good, numbers: good.numbers.with(at, value) });
  // Counts of tokens, keys and segments of the first run and of the second.
  for (const at of [2, 3, 4, 9, 10, 11]) {
    for (const value of [-1, 1_000, 2 ** 31 - 1, -(2 ** 31)]) expect(planOfPiped(changed(at, value))).toBeUndefined();
  }
  for (let length = 1; length < good.numbers.length; length++) {
    expect(planOfPiped({ ...good, numbers: good.numbers.slice(0, length) })).toBeUndefined();
  }
  for (const length of [0, 31, 127]) {
    expect(planOfPiped({ ...good, keys: good.keys.slice(0, length) })).toBeUndefined();
  }
  expect(planOfPiped({ ...good, keys: new Uint8Array(160) })).toBeUndefined();
  expect(planOfPiped({ ...good, rare: [{ run: 2 }] })).toBeUndefined();
  const others = [{ numbers: [...good.numbers] }, { keys: "text" }];
  for (const other of others) expect(planOfPiped({ ...good, ...other } as unknown as PipedPlan)).toBeUndefined();
});
