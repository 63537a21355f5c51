import { describe, expect, test } from "bun:test";
import { Heartbeat } from "../../../gateway/dispatch/workers/heartbeat.ts";
import { spawnLink } from "../../../gateway/dispatch/workers/link.ts";
import { Registry } from "../../../gateway/dispatch/workers/registry.ts";
import { Supervisor } from "../../../gateway/dispatch/workers/supervisor.ts";
import { fakeCard } from "../fake-core.ts";
import { fakeLinks } from "../fake-link.ts";
import { greedy, makeRig, request } from "../rig.ts";

describe("supervisor", () => {
  test("a fatal worker stays down, and at first start its sentence is the error", async () => {
    const { openLink, processes } = fakeLinks();
    const { supervisor, dispatcher, registry } = makeRig(openLink, ["cpu"]);
    supervisor.start(dispatcher);
    processes[0]?.handlers.onMessage({ type: "fatal", message: "model.safetensors: header is 9 bytes too long" });
    await expect(supervisor.firstReady()).rejects.toThrow("header is 9 bytes too long");
    await Bun.sleep(10);
    expect(processes.length).toBe(1);
    expect(registry.list()[0]).toMatchObject({ state: "failed", failure: expect.stringContaining("header") });
    expect(() => dispatcher.submit(request("a"))).toThrow("No worker is ready");
  });

  test("one that failed for good does not end the wait for another; all of them do", async () => {
    for (const second of ["ready", "fatal"] as const) {
      const { openLink, processes } = fakeLinks();
      const { supervisor, dispatcher } = makeRig(openLink, ["cpu", "cpu"]);
      supervisor.start(dispatcher);
      processes[0]?.handlers.onMessage({ type: "fatal", message: "no such device" });
      // It is seen to have ended before the other one says anything.
      await Bun.sleep(1);
      if (second === "ready") processes[1]?.ready();
      else processes[1]?.handlers.onMessage({ type: "fatal", message: "nor this one" });
      const wait = supervisor.firstReady().then(
        () => "ready",
        (error: Error) => error.message,
      );
      expect(await wait).toBe(second === "ready" ? "ready" : "no such device");
    }
  });

  test("a worker of another model is refused", () => {
    const { openLink, processes } = fakeLinks();
    const { supervisor, dispatcher, registry } = makeRig(openLink, ["cpu", "cpu"]);
    supervisor.start(dispatcher);
    processes[0]?.ready();
    processes[1]?.handlers.onMessage({ type: "ready", card: { ...fakeCard, digest: "00".repeat(32) } });
    expect(registry.list().map((worker) => worker.state)).toEqual(["ready", "failed"]);
  });

  test("what fits is told by the worker with the smallest pool", () => {
    const { openLink, processes } = fakeLinks();
    const { supervisor, dispatcher, registry } = makeRig(openLink, ["cuda:0", "cuda:1", "cuda:2"]);
    supervisor.start(dispatcher);
    [700, 500, 600].forEach((blockCount, index) => {
      processes[index]?.handlers.onMessage({ type: "ready", card: { ...fakeCard, blockCount } });
    });
    expect(registry.card()?.blockCount).toBe(500);
    expect(registry.list().map(({ card }) => card?.blockCount)).toEqual([700, 500, 600]);
  });

  test("a worker that the system cannot start now is started a little later", async () => {
    const { openLink, processes } = fakeLinks();
    let refusals = 2;
    const { supervisor, dispatcher, registry } = makeRig(
      (command, handlers) => {
        refusals -= 1;
        if (refusals >= 0) throw new Error("EAGAIN: resource temporarily unavailable, posix_spawn");
        return openLink(command, handlers);
      },
      ["cpu"],
    );
    supervisor.start(dispatcher);
    expect(registry.list()[0]).toMatchObject({ state: "restarting" });
    while (processes.length === 0) await Bun.sleep(1);
    processes[0]?.ready();
    expect(registry.list()[0]).toMatchObject({ state: "ready", restarts: 2 });
    await supervisor.stop(10);
  });

  test("a silent worker is ended and started again", async () => {
    const { openLink, processes } = fakeLinks();
    const { supervisor, dispatcher, registry } = makeRig(openLink, ["cpu"]);
    const clock = { nowMs: 0 };
    const heartbeat = new Heartbeat({
      registry,
      supervisor,
      log: () => undefined,
      intervalMs: 1_000_000,
      hangMs: 50,
      nowMs: () => clock.nowMs,
    });
    supervisor.start(dispatcher);
    processes[0]?.ready();
    heartbeat.beat();
    clock.nowMs = 51;
    heartbeat.beat();
    expect(processes[0]?.alive).toBe(false);
    expect(registry.list()[0]?.state).toBe("restarting");
    await supervisor.stop(10);
  });
});

test("a pause of the whole machine is no worker's silence, and silence after it still is", async () => {
  const { openLink, processes } = fakeLinks();
  const { supervisor, dispatcher, registry } = makeRig(openLink, ["cpu"]);
  const clock = { nowMs: 0 };
  const options = { registry, supervisor, log: () => undefined, nowMs: () => clock.nowMs };
  const heartbeat = new Heartbeat({ ...options, intervalMs: 10, hangMs: 50 });
  supervisor.start(dispatcher);
  processes[0]?.ready();
  heartbeat.beat();
  clock.nowMs = 100_000;
  heartbeat.beat();
  expect(processes[0]?.alive).toBe(true);
  for (let beats = 0; beats < 6; beats++) {
    clock.nowMs += 10;
    heartbeat.beat();
  }
  expect(processes[0]?.alive).toBe(false);
  await supervisor.stop(10);
});

describe("back-off", () => {
  async function delays(stableMs: number, lives: number): Promise<number[]> {
    const { openLink, processes } = fakeLinks();
    const registry = new Registry();
    const seen: number[] = [];
    const supervisor = new Supervisor({
      devices: ["cpu"],
      command: () => ({ argv: [], env: {} }),
      openLink,
      registry,
      log: (_level, _message, fields) => {
        if (typeof fields?.restartInMs === "number") seen.push(fields.restartInMs);
      },
      backoffMinMs: 1,
      backoffMaxMs: 4,
      stableMs,
    });
    supervisor.start({ onReady: () => undefined, onMessage: () => undefined, onLost: () => undefined });
    for (let life = 0; life < lives; life++) {
      while (processes.length <= life) await Bun.sleep(1);
      processes[life]?.ready();
      processes[life]?.die();
    }
    await supervisor.stop(1);
    return seen;
  }

  test("grows to its bound while a worker keeps dying", async () => {
    expect(await delays(10_000, 5)).toEqual([1, 2, 4, 4, 4]);
  });

  test("starts over after a worker that was stable", async () => {
    expect(await delays(0, 3)).toEqual([1, 1, 1]);
  });
});

describe("real processes", () => {
  test("killed at random points, every request ends with its answer or worker_lost", async () => {
    const { supervisor, dispatcher, registry } = makeRig(spawnLink, ["cpu", "cpu"], { maxAttempts: 50 });
    supervisor.start(dispatcher);
    await supervisor.firstReady();
    const ends = new Map<string, number>();
    const runOne = async (id: string): Promise<void> => {
      const tokens: number[] = [];
      let end = "nothing";
      try {
        for await (const event of dispatcher.submit(request(id, { params: greedy(12), deadlineMs: 20_000 }))) {
          if (event.type === "tokens") tokens.push(...event.tokenIds);
          else if (event.type === "finished") end = event.reason;
        }
      } catch (error) {
        end = (error as { code: string }).code;
      }
      // No token is lost or doubled, whatever was retried.
      expect(tokens).toEqual(Array.from({ length: tokens.length }, (_, index) => 7 + (index % 3)));
      if (end === "length") expect(tokens.length).toBe(12);
      ends.set(end, (ends.get(end) ?? 0) + 1);
    };
    const all: Promise<void>[] = [];
    for (let round = 0; round < 6; round++) {
      for (let index = 0; index < 8; index++) all.push(runOne(`r${round}-${index}`));
      await Bun.sleep(3 + round * 3);
      const victim = registry.ready()[round % Math.max(1, registry.ready().length)];
      if (victim?.pid !== undefined) process.kill(victim.pid, "SIGKILL");
    }
    await Promise.all(all);
    expect([...ends.keys()].every((end) => end === "length" || end === "worker_lost")).toBe(true);
    expect([...ends.values()].reduce((sum, count) => sum + count, 0)).toBe(48);
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
    await supervisor.stop(2_000);
    expect(registry.list().every((worker) => worker.state === "stopped" && worker.inFlight === 0)).toBe(true);
  });
});
