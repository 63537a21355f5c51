import { expect, test } from "bun:test";
import { BlockPool } from "../../worker/cache/block-pool.ts";
import { Admission } from "../../worker/engine/admission.ts";
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
  const room = new Admission(pool(), [first, second, owner, request(1)]);
  expect([10, 11, 17].map((blockCount) => room.refusal(first, blockCount))).toEqual([undefined, "floors", "full"]);
  expect(room.refusal(owner, 16)).toBeUndefined();
  expect(new Admission(pool(), [first, owner]).refusal(first, 16)).toBeUndefined();
});

test("what is reserved is not there", () => {
  const running = [request(2, 3), request(3, 4)];
  const room = new Admission(pool(), running);
  expect([room.reservedBlocks, room.unreservedBlocks, room.openBlocks]).toEqual([7, 9, 3]);
  expect(new Admission(pool(), [request(1, 3)]).openBlocks).toBe(13);
});

test("who makes room: whoever came last, or the last of its own tenant's where floors are in the way", () => {
  const [first, second, other] = [request(2), request(2), request(3)];
  const room = new Admission(pool(), [first, second, other]);
  expect(room.victimFor(first, "full")).toBe(other);
  expect(room.victimFor(first, "floors")).toBe(second);
  expect(room.victimFor(other, "floors")).toBe(other);
});
