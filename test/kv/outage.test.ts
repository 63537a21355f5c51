/** When a bucket is taken to fail, for how long, and what is said of it. */
import { expect, test } from "bun:test";
import { Outage } from "../../gateway/kv/outage.ts";

function open() {
  const clock = { ms: 0 };
  const said: string[] = [];
  const outage = new Outage({
    ...{ sentence: "it is not fetched", address: "s3://b", nowMs: () => clock.ms },
    log: (_level, message, fields) => void said.push(`${message} ${String(fields?.reason ?? "")}`.trim()),
  });
  return { clock, said, outage };
}

test("one object that fails rests by itself, longer each time", () => {
  const { clock, said, outage } = open();
  const rests: number[] = [];
  for (let times = 0; times < 8; times++) {
    outage.failed("403", "a");
    rests.push(outage.resting().nextMs);
    expect([outage.leftMs, outage.rests("a"), outage.rests("b"), outage.resting().ids]).toEqual([
      0,
      true,
      false,
      ["a"],
    ]);
    outage.succeeded("b");
    clock.ms += outage.resting().nextMs;
    expect([outage.rests("a"), outage.resting()]).toEqual([false, { ids: [], nextMs: 0 }]);
  }
  expect(rests).toEqual([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
  // Others' successes say nothing of it.
  expect(said).toEqual(["it is not fetched 403"]);
  outage.succeeded("a");
  expect(said.slice(1)).toEqual(["the bucket of KV answers again"]);
});

test("two that fail in a row, or what concerns all, are the bucket's failure", () => {
  const { clock, said, outage } = open();
  outage.failed("403", "a");
  outage.failed("403", "b");
  expect(outage.leftMs).toBe(1_000);
  // What was asked before tells nothing more.
  outage.failed("403", "c");
  clock.ms += 1_000;
  outage.failed("500", "d");
  expect(outage.leftMs).toBe(2_000);
  clock.ms += 2_000;
  outage.succeeded("e");
  outage.failed("500", "a");
  expect(outage.leftMs).toBe(0);
  outage.failed("500");
  expect(outage.leftMs).toBe(1_000);
  expect(said).toEqual(["it is not fetched 403", "it is not fetched 500"]);
  // A minute after they might have been tried, nobody wants them.
  clock.ms += 70_000;
  outage.succeeded();
  expect(said.at(-1)).toBe("the bucket of KV answers again");
});

test("of more than a thousand objects the one that failed first is tried again", () => {
  const { outage } = open();
  for (let index = 0; index < 1_001; index++) outage.failed("403", `${index}`);
  expect([outage.resting().ids.length, outage.rests("0"), outage.rests("1000")]).toEqual([1_000, false, true]);
});
