import { expect, test } from "bun:test";
import { BlockPool } from "../../worker/cache/block-pool.ts";
import { openBlocks, refusalOf, reservedBlocks, victimFor } from "../../worker/engine/admission.ts";
import type { Request } from "../../worker/engine/request.ts";

const request = (number: number, reservedBlocks = 0) => ({ owner: { number }, reservedBlocks }) as Request;

/** One tenant keeps 6 blocks of 16. */
function pool(): BlockPool {
  const made = new BlockPool(16);
  for (const blockId of Array.from({ length: 6 }, () => made.take({ number: 1 }))) {
    if (blockId !== undefined) made.release(blockId, true);
  }
  return made;
}

test("others' floors count for who has another request, not for who has none, and never for the owner", () => {
  const [first, second, owner] = [request(2), request(2), request(1)];
  const running = [first, second, owner, request(1)];
  const refusals = [10, 11, 17].map((blockCount) => refusalOf(pool(), running, first, blockCount));
  expect(refusals).toEqual([undefined, "floors", "full"]);
  expect(refusalOf(pool(), running, owner, 16)).toBeUndefined();
  expect(refusalOf(pool(), [first, owner], first, 16)).toBeUndefined();
});

test("what is reserved is not there", () => {
  const running = [request(2, 3), request(3, 4)];
  expect([reservedBlocks(running), openBlocks(pool(), running)]).toEqual([7, 3]);
  expect(refusalOf(pool(), running, running[0], 10)).toBe("full");
  expect(openBlocks(pool(), [request(1, 3)])).toBe(13);
});

test("who makes room: whoever came last, or the last of its own tenant's where floors are in the way", () => {
  const [first, second, other] = [request(2), request(2), request(3)];
  const running = [first, second, other];
  expect(victimFor(running, first, "full")).toBe(other);
  expect(victimFor(running, first, "floors")).toBe(second);
  expect(victimFor(running, other, "floors")).toBe(other);
});
