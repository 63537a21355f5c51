import { expect, test } from "bun:test";
import { yieldToOthers } from "../../gateway/base/pace.ts";

test("many pieces of work have one turn among them each time around the event loop, in order", async () => {
  const log: string[] = [];
  let rounds = 0;
  let isOver = false;
  const count = (): void => {
    rounds += 1;
    log.push("|");
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  const work = async (name: string): Promise<void> => {
    for (let turn = 0; turn < 3; turn++) {
      await yieldToOthers();
      log.push(name);
    }
  };
  await Promise.all(["a", "b", "c"].map(work));
  isOver = true;
  expect(log.filter((entry) => entry !== "|").join("")).toBe("abcabcabc");
  // None has two of the pieces between two of its ends.
  expect(log.join("")).not.toMatch(/[abc][abc]/);
  expect(rounds).toBeGreaterThanOrEqual(8);
});
