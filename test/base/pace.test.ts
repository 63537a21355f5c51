import { afterEach, describe, expect, test } from "bun:test";
import { holdBackgroundWork, Pace, restWhile, yieldToOthers, yieldToRequests } from "../../gateway/base/pace.ts";

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

describe("work that no request waits for", () => {
  const spin = (ms: number): void => {
    for (const endMs = performance.now() + ms; performance.now() < endMs; );
  };

  afterEach(() => restWhile(() => false));

  test("has a third of the event loop at most, all of it together, while requests are in progress", async () => {
    restWhile(() => true);
    const beginMs = performance.now();
    const work = async (): Promise<void> => {
      for (let slice = 0; slice < 4; slice++) {
        await yieldToRequests();
        spin(5);
      }
    };
    await Promise.all([work(), work()]);
    await yieldToRequests();
    expect(performance.now() - beginMs).toBeGreaterThanOrEqual(3 * 8 * 5 - 1);
  });

  test("asks anew after each slice whether there are requests", async () => {
    let askedCount = 0;
    restWhile(() => {
      askedCount += 1;
      return false;
    });
    const pace = new Pace(yieldToRequests);
    spin(5);
    expect(await pace.breathe()).toBe(true);
    expect(await pace.breathe()).toBe(false);
    spin(5);
    expect(await pace.breathe()).toBe(true);
    await yieldToRequests();
    expect(askedCount).toBeGreaterThanOrEqual(2);
  });

  test("waits until all holds have ended, one that was about to go on too; other long work does not", async () => {
    const order: string[] = [];
    await yieldToRequests();
    await Bun.sleep(1);
    const waiting = yieldToRequests().then(() => order.push("background"));
    // Its turn has come: it waits for its place around the event loop.
    for (let step = 0; step < 10; step++) await Promise.resolve();
    const holds = [holdBackgroundWork(60_000), holdBackgroundWork(60_000)];
    for (let turn = 0; turn < 3; turn++) await yieldToOthers();
    holds[0]?.();
    holds[0]?.();
    for (let turn = 0; turn < 3; turn++) await yieldToOthers();
    order.push("held");
    holds[1]?.();
    await waiting;
    expect(order).toEqual(["held", "background"]);
    const forgotten = holdBackgroundWork(1);
    await yieldToRequests();
    forgotten();
  });
});
