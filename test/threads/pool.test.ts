import { afterEach, describe, expect, test } from "bun:test";
import { getPriority } from "node:os";
import { join } from "node:path";
import { ApiError } from "../../gateway/base/errors.ts";
import { type TaskRun, TaskTimeout, ThreadPool, type ThreadPoolOptions } from "../../gateway/threads/pool.ts";
import { errorOf } from "../support/errors.ts";
import type { TestTasks } from "./test-tasks.ts";

const opened: ThreadPool<TestTasks>[] = [];
afterEach(async () => {
  await Promise.all(opened.splice(0).map((pool) => pool.stop()));
});

function openPool(bounds: Partial<ThreadPoolOptions> = {}): ThreadPool<TestTasks> {
  const program = join(import.meta.dir, "test-tasks.ts");
  const usual = { maxThreads: 2, waitingPerTenant: 100, waiting: 200, maxHeapBytes: 2 ** 30, idleMs: 60_000 };
  const pool = new ThreadPool<TestTasks>({ program, ...usual, ...bounds });
  opened.push(pool);
  return pool;
}

const by = (tenantId: string, more: Partial<TaskRun> = {}): TaskRun => ({ tenantId, maxMs: 60_000, ...more });
const codeOf = (error: unknown) => (error instanceof ApiError ? error.code : error);
const until = async (condition: () => boolean) => {
  while (!condition()) await Bun.sleep(1);
};

describe("tasks", () => {
  test("run in a thread and give what they return", async () => {
    const pool = openPool();
    expect(await pool.run("double", 21, by("a"))).toBe(42);
    expect(await pool.run("later", 5, by("a"))).toBe(5);
  });

  test.skipIf(process.platform !== "linux")("of a thread that gives way run behind the server's own", async () => {
    const priority = getPriority();
    expect(await openPool({ maxThreads: 1 }).run("giveWay", null, by("a"))).toBeGreaterThan(priority);
    expect(getPriority()).toBe(priority);
  });

  test("that throw are failures with their reason, and the thread goes on", async () => {
    const pool = openPool({ maxThreads: 1 });
    await pool.run("keep", 1, by("a"));
    expect(String(await errorOf(pool.run("fail", null, by("a"))))).toContain("a fault of ours");
    expect(await pool.run("keep", 1, by("a"))).toBe(2);
  });

  test("whose input cannot be copied, or that there are not, are failures too", async () => {
    const pool = openPool({ maxThreads: 1 });
    expect(String(await errorOf(pool.run("double", (() => 1) as never, by("a"))))).toContain("DataCloneError");
    expect(String(await errorOf(pool.run("none" as never, null as never, by("a"))))).toContain(
      "there is no task 'none'",
    );
    expect(await pool.run("double", 1, by("a"))).toBe(2);
  });

  test("whose thread ends under them fail, and the next has a new thread", async () => {
    const pool = openPool({ maxThreads: 1 });
    expect(String(await errorOf(pool.run("quit", null, by("a"))))).toContain("the thread ended");
    expect(await pool.run("double", 1, by("a"))).toBe(2);
  });
});

describe("a thread is replaced", () => {
  test("when its task passes the time limit, of which the caller is told", async () => {
    const pool = openPool({ maxThreads: 1 });
    await pool.run("keep", 1, by("a"));
    expect(await errorOf(pool.run("spin", null, by("a", { maxMs: 20 })))).toBeInstanceOf(TaskTimeout);
    expect(await pool.run("keep", 1, by("a"))).toBe(1);
  });

  test("when its heap has grown too far", async () => {
    const pool = openPool({ maxThreads: 1, maxHeapBytes: 32 * 2 ** 20 });
    await pool.run("keep", 1, by("a"));
    expect(await pool.run("keep", 1, by("a"))).toBe(2);
    expect(await pool.run("keep", 2_000_000, by("a"))).toBe(3);
    expect(await pool.run("keep", 1, by("a"))).toBe(1);
  });
});

test("threads that had nothing to do for long are ended, but for one", async () => {
  const pool = openPool({ maxThreads: 3, idleMs: 300 });
  expect(pool.threadCount).toBe(0);
  await Promise.all(["a", "b", "c"].map((id) => pool.run("keep", 1, by(id))));
  expect(pool.threadCount).toBe(3);
  await until(() => pool.threadCount === 1);
  await Bun.sleep(20);
  expect(await pool.run("keep", 1, by("a"))).toBe(2);
});

describe("tenants", () => {
  test("take turns, whoever has more waiting", async () => {
    const pool = openPool({ maxThreads: 1 });
    const order: string[] = [];
    const note = async (tenantId: string) => {
      await pool.run("double", 1, by(tenantId));
      order.push(tenantId);
    };
    const all = ["a", "a", "a", "a", "b", "b", "c"].map(note);
    await Promise.all(all);
    // The first runs at once, the second waited before anybody else came.
    expect(order.join("")).toBe("aabcaba");
  });

  test("have never all threads at once", async () => {
    const pool = openPool({ maxThreads: 3 });
    const held = Array.from({ length: 10 }, () => pool.run("spin", null, by("a")).catch(codeOf));
    expect(await pool.run("double", 4, by("b"))).toBe(8);
    await pool.stop();
    expect(await Promise.all(held)).toEqual(Array(10).fill("server_shutdown"));
  });

  test("may have so many tasks waiting, each and together", async () => {
    const pool = openPool({ maxThreads: 1, waitingPerTenant: 3, waiting: 5 });
    const held = pool.run("spin", null, by("a")).catch(codeOf);
    const asked = ["a", "a", "a", "a", "b", "b", "b", "c"].map((id) => pool.run("double", 1, by(id)).catch(codeOf));
    expect(await asked[3]).toBe("concurrency_limited");
    expect(await asked[6]).toBe("overloaded");
    expect(await asked[7]).toBe("overloaded");
    await pool.stop();
    expect(await held).toBe("server_shutdown");
    expect(await asked[0]).toBe("server_shutdown");
  });
});

describe("a signal", () => {
  test("ends a task that runs, with its thread", async () => {
    const pool = openPool({ maxThreads: 1 });
    await pool.run("keep", 1, by("a"));
    const ender = new AbortController();
    const held = pool.run("spin", null, by("a", { signal: ender.signal }));
    await Bun.sleep(5);
    ender.abort(new Error("not wanted"));
    expect(String(await errorOf(held))).toContain("not wanted");
    expect(await pool.run("keep", 1, by("a"))).toBe(1);
  });

  test("leaves a task its thread for as long as it goes on, and ends it after that", async () => {
    const pool = openPool({ maxThreads: 1 });
    await pool.run("keep", 1, by("a"));
    const stopped = async (name: "later" | "spin", goesOnMs: number): Promise<string> => {
      const ender = new AbortController();
      const held = pool.run<"later" | "spin">(name, 1 as never, by("a", { signal: ender.signal, goesOnMs }));
      ender.abort(new Error("not wanted"));
      return String(await errorOf(held));
    };
    expect(await stopped("later", 60_000)).toContain("not wanted");
    expect(await pool.run("keep", 1, by("a"))).toBe(2);
    expect(await stopped("spin", 1)).toContain("not wanted");
    expect(await pool.run("keep", 1, by("a"))).toBe(1);
  });

  test("takes a task that waits out of the line, and leaves the others", async () => {
    const pool = openPool({ maxThreads: 1 });
    const ender = new AbortController();
    const first = pool.run("keep", 1, by("a"));
    const waits = pool.run("keep", 1, by("a", { signal: ender.signal }));
    const behind = pool.run("keep", 1, by("a"));
    ender.abort(new Error("not wanted"));
    expect(String(await errorOf(waits))).toContain("not wanted");
    expect([await first, await behind]).toEqual([1, 2]);
  });

  test("that is aborted already lets nothing begin", async () => {
    const signal = AbortSignal.abort(new Error("too late"));
    expect(String(await errorOf(openPool().run("double", 1, by("a", { signal }))))).toContain("too late");
  });
});

describe("a pause", () => {
  test("begins when no task runs, and tasks that come meanwhile wait for its end", async () => {
    const pool = openPool();
    const order: string[] = [];
    const note = async (name: string, run: Promise<unknown>) => {
      await run;
      order.push(name);
    };
    const before = note("before", pool.run("later", 1, by("a")));
    const pause = pool.pause().then(async (hold) => {
      order.push("paused");
      await Bun.sleep(20);
      order.push("ended");
      hold?.();
    });
    const meanwhile = note("meanwhile", pool.run("double", 1, by("b")));
    await Promise.all([before, pause, meanwhile]);
    expect(order).toEqual(["before", "paused", "ended", "meanwhile"]);
  });

  test("that a task makes too long is given up, and another tenant's tasks begin", async () => {
    const pool = openPool();
    const endless = errorOf(pool.run("spin", null, by("a")));
    expect(await pool.pause(20)).toBeUndefined();
    expect(await pool.run("double", 21, by("b"))).toBe(42);
    await pool.stop();
    expect(codeOf(await endless)).toBe("server_shutdown");
  });

  test("of one goes on while another's has ended; a pool that is stopped is paused", async () => {
    const pool = openPool();
    const [first, second] = await Promise.all([pool.pause(), pool.pause()]);
    let isDone = false;
    const run = pool.run("double", 1, by("a")).then(() => {
      isDone = true;
    });
    first?.();
    await Bun.sleep(20);
    expect(isDone).toBe(false);
    second?.();
    await run;
    await pool.stop();
    (await pool.pause())?.();
  });
});

test("a task that no thread takes in time is refused, and one that runs is not", async () => {
  const pool = openPool({ maxThreads: 1 });
  const endless = errorOf(pool.run("spin", null, by("a", { maxWaitMs: 20, maxMs: 200 })));
  const late = await errorOf(pool.run("double", 21, by("b", { maxWaitMs: 20 })));
  expect(late).toBeInstanceOf(TaskTimeout);
  expect(String(late)).toContain("waited longer than 20 ms");
  expect(String(await endless)).toContain("took longer than 200 ms");
  expect(await pool.run("double", 21, by("b", { maxWaitMs: 20_000 }))).toBe(42);
});

test("a pool that was stopped takes nothing", async () => {
  const pool = openPool();
  await pool.run("double", 1, by("a"));
  await pool.stop();
  expect(await pool.run("double", 1, by("a")).catch(codeOf)).toBe("server_shutdown");
});
