import { describe, expect, test } from "bun:test";
import { FreeLinks, FreeList } from "../../worker/cache/free-list.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import { fc } from "../support/fast-check.ts";

const blockCount = 6;
const id = (value: number): BlockId => value as BlockId;

describe("FreeList", () => {
  test("agrees with an array under any sequence of operations", () => {
    const operation = fc.tuple(
      fc.constantFrom("pushFront" as const, "pushBack" as const, "remove" as const),
      fc.integer({ min: 0, max: blockCount - 1 }),
    );
    const property = fc.property(fc.array(operation, { maxLength: 60 }), (operations) => {
      const links = new FreeLinks(blockCount);
      const list = new FreeList(links);
      const model: number[] = [];
      for (const [name, block] of operations) {
        const at = model.indexOf(block);
        expect(links.has(id(block))).toBe(at >= 0);
        if (name === "remove") {
          if (at < 0) expect(() => list.remove(id(block))).toThrow("is not in the free list");
          else {
            list.remove(id(block));
            model.splice(at, 1);
          }
        } else if (at >= 0) expect(() => list[name](id(block))).toThrow("is in a free list already");
        else {
          list[name](id(block));
          if (name === "pushFront") model.unshift(block);
          else model.push(block);
        }
        expect([...list]).toEqual(model.map(id));
        expect(list.length).toBe(model.length);
        expect(list.front).toBe(model[0] as BlockId | undefined);
      }
    });
    fc.assert(property, { numRuns: 200 });
  });
});
