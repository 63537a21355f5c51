/** A worker dies at each point of a request's way, once and again. Every request ends, and none overtakes an older one. */
import { describe, expect, test } from "bun:test";
import { ApiError } from "../../gateway/base/errors.ts";
import type { DispatcherOptions } from "../../gateway/dispatch/dispatcher.ts";
import { Placement } from "../../gateway/dispatch/request/placement.ts";
import type { DispatchRequest, GenerationEvent } from "../../gateway/dispatch/request/request.ts";
import { fc } from "../support/fast-check.ts";
import { type FakeProcess, fakeLinks } from "./fake-link.ts";
import { greedy, makeRig, request } from "./rig.ts";

interface Asked {
  readonly id: string;
  /** Those of the last attempt. */
  tokens: number[];
  /** undefined: it has not ended. */
  end: string | undefined;
  readonly leave: AbortController;
}

/** What differs between the requests that a server sends: who sees the tokens, and how many there are. */
const kinds: Readonly<Record<string, () => Partial<DispatchRequest>>> = {
  stream: () => ({}),
  whole: () => ({ restartable: true }),
  "part of a tree": () => ({ restartable: true, placement: new Placement() }),
  prepare: () => ({ params: greedy(0), placement: new Placement("worker-0") }),
};

function makeWorld(devices: readonly string[] = ["cpu"], options: Partial<DispatcherOptions> = {}) {
  const { openLink, processes } = fakeLinks();
  const rig = makeRig(openLink, devices, options);
  rig.supervisor.start(rig.dispatcher);
  const asked: Asked[] = [];
  const ask = (id: string, changes: Partial<DispatchRequest> = {}): void => {
    const one: Asked = { id, tokens: [], end: undefined, leave: new AbortController() };
    asked.push(one);
    void read(rig.dispatcher.submit(request(id, { ...changes, signal: one.leave.signal })), one);
  };
  /** The n-th process that was started, as soon as it is. */
  const life = async (index: number): Promise<FakeProcess> => {
    for (;;) {
      const process = processes[index];
      if (process !== undefined) return process;
      await Bun.sleep(1);
    }
  };
  return { ...rig, processes, asked, ask, life };
}

async function read(events: AsyncIterable<GenerationEvent>, asked: Asked): Promise<void> {
  try {
    for await (const event of events) {
      if (event.type === "tokens") asked.tokens.push(...event.tokenIds);
      else if (event.type === "restarted") asked.tokens = [];
      else asked.end = event.reason;
    }
    asked.end ??= "nothing";
  } catch (error) {
    asked.end = error instanceof ApiError ? error.code : String(error);
  }
}

const ticks = (process: FakeProcess, count: number): void => {
  for (let tick = 0; tick < count; tick++) process.core.tick();
};

/** Where a worker dies. `ask` sends the requests, or does nothing when they were sent to the worker before. */
const deaths: Readonly<Record<string, (process: FakeProcess, ask: () => void) => void>> = {
  "before it is ready": (process, ask) => {
    ask();
    process.die();
  },
  "before it gets the request, which goes into the void": (process, ask) => {
    process.ready();
    process.vanish();
    ask();
    process.tellExit();
  },
  "with the request, before the first token": (process, ask) => {
    process.ready();
    ask();
    process.die();
  },
  "after a part of the answer": (process, ask) => {
    process.ready();
    ask();
    process.core.tick();
    process.die();
  },
  "after the last token, before it told the end": (process, ask) => {
    process.ready();
    ask();
    for (const { requestId, params } of process.submits) {
      const tokenIds = [7, 8, 9].slice(0, params.maxTokens);
      if (tokenIds.length > 0) process.handlers.onMessage({ type: "tokens", requestId, tokenIds });
    }
    process.die();
  },
  "and a part of the answer comes after its exit": (process, ask) => {
    process.ready();
    ask();
    process.die();
    for (const requestId of process.submittedIds) {
      process.handlers.onMessage({ type: "tokens", requestId, tokenIds: [1] });
    }
  },
};

describe.each(Object.entries(deaths))("a worker that dies %s", (_where, die) => {
  test.each([1, 2])("%d times in a row", async (times) => {
    const { dispatcher, registry, asked, ask, life } = makeWorld();
    for (let index = 0; index < times; index++) {
      const askAll = (): void => {
        if (index === 0) for (const [kind, changes] of Object.entries(kinds)) ask(kind, changes());
      };
      die(await life(index), askAll);
    }
    const last = await life(times);
    last.ready();
    ticks(last, 3);
    await Bun.sleep(0);
    for (const { id, end, tokens } of asked) {
      if (id === "prepare") expect(end).toBe("prepared");
      else if (id === "stream" && end === "worker_lost") expect(tokens.length).toBeGreaterThan(0);
      else expect({ id, end, tokens }).toEqual({ id, end: "length", tokens: [7, 8, 9] });
    }
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
    expect(registry.list()[0]).toMatchObject({ inFlight: 0, pendingTokens: 0 });
  });
});

test("a worker that dies before it confirms an abort", async () => {
  const { dispatcher, asked, ask, life } = makeWorld(["cpu"], { abortGraceMs: 60_000 });
  const process = await life(0);
  process.ready();
  for (const [kind, changes] of Object.entries(kinds)) ask(kind, changes());
  process.vanish();
  for (const { leave } of asked) leave.abort();
  expect(dispatcher.stats().running).toBe(asked.length);
  process.tellExit();
  await Bun.sleep(0);
  expect(asked.map(({ end }) => end)).toEqual(asked.map(() => "abort"));
  expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
});

describe("the order of what was lost", () => {
  const numbersOf = (process: FakeProcess): number[] => process.submittedIds.map((id) => Number(id.split(".")[0]));

  test("is that in which it came, in every life of a worker, whatever came later was sent before it died", async () => {
    const { asked, ask, life } = makeWorld(["cpu"], { maxRunningPerWorker: 2, maxAttempts: 100 });
    for (let number = 0; number < 8; number++) ask(String(number), { restartable: true });
    // After four ticks two requests have ended and two others have begun.
    for (const [index, count] of [4, 1, 4, 2, 4, 1, 30].entries()) {
      const oldest = asked.findIndex(({ end }) => end === undefined);
      const process = await life(index);
      process.ready();
      ticks(process, count);
      const sent = numbersOf(process);
      expect(sent).toEqual(sent.map((_, at) => oldest + at));
      process.die();
      await Bun.sleep(0);
    }
    expect(asked.map(({ end }) => end)).toEqual(asked.map(() => "length"));
  });

  test("decides who goes first to the worker that is left", async () => {
    const { ask, life } = makeWorld(["cpu", "cpu"], { maxRunningPerWorker: 2 });
    const [first, second] = [await life(0), await life(1)];
    first.ready();
    for (const number of [0, 1]) ask(String(number), { params: greedy(1) });
    second.ready();
    ask("2", { params: greedy(1) });
    for (const number of [3, 4, 5]) ask(String(number), { params: greedy(1) });
    expect([numbersOf(first), numbersOf(second)]).toEqual([
      [0, 1],
      [2, 3],
    ]);
    first.die();
    ticks(second, 3);
    expect(numbersOf(second)).toEqual([2, 3, 0, 1, 4, 5]);
  });
});

test("what lives through too many deaths is told, in its tree's later requests too; what came later is not", async () => {
  const { asked, ask, life } = makeWorld(["cpu"], { maxRunningPerWorker: 1, maxAttempts: 100, maxDeaths: 3 });
  const readAtMs = performance.now();
  ask("running", { restartable: true, params: greedy(100) });
  ask("waiting");
  await Bun.sleep(1);
  for (let index = 0; index < 3; index++) {
    const process = await life(index);
    process.ready();
    process.core.tick();
    if (index === 1) ask("later");
    if (index === 2) ask("of a tree", { readAtMs });
    expect(asked.map(({ end }) => end)).toEqual(asked.map(() => undefined));
    process.die();
    await Bun.sleep(1);
  }
  const last = await life(3);
  last.ready();
  ticks(last, 3);
  await Bun.sleep(0);
  expect(asked.map(({ id, end }) => [id, end])).toEqual([
    ["running", "worker_lost"],
    ["waiting", "worker_lost"],
    ["later", "length"],
    ["of a tree", "worker_lost"],
  ]);
});

test("a death that leaves another worker wears nothing out", async () => {
  const { asked, ask, life } = makeWorld(["cpu", "cpu"], { maxRunningPerWorker: 1, maxDeaths: 1 });
  const [first, second] = [await life(0), await life(1)];
  first.ready();
  ask("running");
  second.ready();
  ask("beside");
  ask("waiting");
  first.die();
  ticks(second, 10);
  await Bun.sleep(0);
  expect(asked.map(({ end }) => end)).toEqual(["length", "length", "length"]);
});

test("a request that one worker has refused goes to it after all when the other one has failed for good", async () => {
  const { asked, ask, life } = makeWorld(["cpu", "cpu"], { maxRunningPerWorker: 1 });
  const [first, second] = [await life(0), await life(1)];
  second.ready();
  ask("running", { params: greedy(100) });
  first.ready();
  ask("refused");
  const [requestId = ""] = first.submittedIds;
  first.handlers.onMessage({ type: "failed", requestId, code: "overloaded", message: "its line is full" });
  expect(first.submittedIds).toEqual(["refused.1"]);
  second.handlers.onMessage({ type: "fatal", message: "the device is gone" });
  ticks(first, 200);
  await Bun.sleep(0);
  expect(asked.map(({ id, end }) => [id, end])).toEqual([
    ["running", "length"],
    ["refused", "length"],
  ]);
});

test("whatever workers do, every request ends", async () => {
  const step = fc.record({
    does: fc.constantFrom("ask", "ask", "ask", "tick", "ready", "die", "vanish", "exit", "leave"),
    a: fc.nat(3),
    b: fc.nat(7),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (script) => {
      const { dispatcher, registry, supervisor, processes, asked, ask } = makeWorld(["cpu", "cpu"], {
        maxRunningPerWorker: 3,
      });
      const gone = new Set<FakeProcess>();
      const isReady = new Set<FakeProcess>();
      const some = (n: number): FakeProcess | undefined => processes.filter((process) => !gone.has(process))[n % 2];
      const exit = (process: FakeProcess): void => {
        process.vanish();
        gone.add(process);
        process.tellExit();
      };
      const begin = (process: FakeProcess): void => {
        if (!process.alive || isReady.has(process)) return;
        isReady.add(process);
        process.ready();
      };
      for (const { does, a, b } of script) {
        const process = some(b);
        if (does === "ask") {
          const [kind = "", changes] = Object.entries(kinds)[a] ?? [];
          ask(`${kind} ${asked.length}`, { ...changes?.(), tenantId: `tenant_${b}` });
        } else if (does === "leave") asked[b]?.leave.abort();
        else if (process === undefined) await Bun.sleep(1);
        else if (does === "ready") begin(process);
        else if (does === "vanish") process.vanish();
        else if (does === "tick") process.core.tick();
        else if (does === "die") exit(process);
        else if (!process.alive) exit(process);
      }
      for (const process of processes) if (!process.alive && !gone.has(process)) exit(process);
      for (let round = 0; round < 1_000 && asked.some(({ end }) => end === undefined); round++) {
        for (const process of processes) begin(process);
        for (const process of processes) process.core.tick();
        await Bun.sleep(processes.length - gone.size < 2 ? 1 : 0);
      }
      const ends = ["length", "prepared", "worker_lost", "abort"];
      expect(asked.filter(({ end = "never" }) => !ends.includes(end))).toEqual([]);
      expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
      for (const worker of registry.list()) expect(worker).toMatchObject({ inFlight: 0, pendingTokens: 0 });
      const stopped = supervisor.stop(1);
      for (const process of processes) process.die();
      await stopped;
    }),
    { numRuns: 60 },
  );
});
