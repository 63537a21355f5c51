/** Schemas of numbers between bounds, by chance. */
import { fc } from "../support/fast-check.ts";

export const bound = fc.oneof(fc.integer({ min: -12, max: 12 }), fc.integer({ min: -(10 ** 15), max: 10 ** 15 }));
export const ranges = fc
  .record({
    from: bound,
    to: bound,
    below: fc.boolean(),
    above: fc.boolean(),
    type: fc.constantFrom("integer", "number"),
  })
  .filter(({ from, to }) => Math.abs(to - from) > 1)
  .map(({ from, to, below, above, type }) => ({
    type,
    [above ? "exclusiveMinimum" : "minimum"]: Math.min(from, to),
    [below ? "exclusiveMaximum" : "maximum"]: Math.max(from, to),
  }));
