/** What goes on for long is told when its caller does not count any more. */
import { describe, expect, test } from "bun:test";
import { ApiError } from "../../gateway/base/errors.ts";
import { CallerWatch } from "../../gateway/tenant/caller-watch.ts";
import { until } from "../support/until.ts";

const settled = (): Promise<void> => Bun.sleep(15);

describe("the watch of callers", () => {
  const callerOf = (id: string, revoked: Set<string>) => {
    return { id, refusal: () => (revoked.has(id) ? new ApiError("invalid_api_key") : undefined) };
  };

  test("tells everything of a caller that is refused once, and nothing of others", async () => {
    const watch = new CallerWatch(2);
    const revoked = new Set<string>();
    const told: string[] = [];
    for (const [id, name] of [
      ["a", "a1"],
      ["a", "a2"],
      ["b", "b1"],
    ] as const) {
      watch.watch(callerOf(id, revoked), ({ code }) => told.push(`${name} ${code}`));
    }
    await settled();
    expect(told).toEqual([]);
    revoked.add("a");
    await until(() => told.length === 2, "both are told", 10_000, 2);
    await settled();
    expect(told).toEqual(["a1 invalid_api_key", "a2 invalid_api_key"]);
    revoked.add("b");
    await until(() => told.length === 3, "the other is told", 10_000, 2);
    expect(told.slice(2)).toEqual(["b1 invalid_api_key"]);
  });

  test("does not tell what has ended, nor who ends while others are told", async () => {
    const watch = new CallerWatch(2);
    const revoked = new Set<string>();
    const told: string[] = [];
    const ended = watch.watch(callerOf("a", revoked), () => told.push("ended"));
    ended();
    const first = watch.watch(callerOf("a", revoked), () => {
      told.push("first");
      first();
      second();
    });
    const second = watch.watch(callerOf("a", revoked), () => told.push("second"));
    revoked.add("a");
    await until(() => told.length > 0, "the first is told", 10_000, 2);
    await settled();
    expect(told).toEqual(["first"]);
  });

  test("who begins after that is looked at anew, and nobody is refused while looking fails", async () => {
    const watch = new CallerWatch(2);
    const told: string[] = [];
    let isBroken = true;
    const refusal = () => {
      if (isBroken) throw new Error("the disk does not answer");
      return new ApiError("api_key_expired");
    };
    watch.watch({ id: "a", refusal }, ({ code }) => told.push(code));
    await settled();
    expect(told).toEqual([]);
    isBroken = false;
    await until(() => told.length === 1, "who waits is told", 10_000, 2);
    watch.watch({ id: "a", refusal }, ({ code }) => told.push(code));
    await until(() => told.length === 2, "who began after that is told", 10_000, 2);
    expect(told).toEqual(["api_key_expired", "api_key_expired"]);
  });
});
