import { describe, expect, test } from "bun:test";
import { chooseWorker, workerByName } from "../../gateway/dispatch/route.ts";

const idle = (id: string, cachedTokens = 0) => ({ id, cachedTokens, pendingTokens: 0, inFlight: 0 });

describe("chooseWorker", () => {
  test("prefers the worker that holds more", () => {
    expect(chooseWorker([idle("a", 0), idle("b", 500)], 1000, "")).toBe("b");
  });

  test("does not queue behind more work than the cache saves", () => {
    const busy = { id: "b", cachedTokens: 500, pendingTokens: 2_000, inFlight: 1 };
    expect(chooseWorker([idle("a"), busy], 1000, "")).toBe("a");
  });

  test("is deterministic, and affinity decides between equals whatever their order", () => {
    const choice = chooseWorker([idle("a"), idle("b"), idle("c")], 10, "tenant");
    expect(chooseWorker([idle("c"), idle("b"), idle("a")], 10, "tenant")).toBe(choice as string);
    const choices = new Set(Array.from({ length: 64 }, (_, n) => chooseWorker([idle("a"), idle("b")], 10, `t${n}`)));
    expect([...choices].sort()).toEqual(["a", "b"]);
  });

  test("nothing to choose from", () => {
    expect(chooseWorker([], 10, "")).toBeUndefined();
  });
});

test("a name stays on its worker under load, and moves only when the worker goes", () => {
  const all = [idle("a"), idle("b"), idle("c")];
  const home = workerByName(all, "corpus") as string;
  expect(
    workerByName(
      all.map((worker) => ({ ...worker, pendingTokens: worker.id === home ? 9_999 : 0 })),
      "corpus",
    ),
  ).toBe(home);
  const others = all.filter((worker) => worker.id !== home);
  expect(workerByName(others, "corpus")).not.toBe(home);
});
