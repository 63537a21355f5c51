/** What a run took is told from its submission on, whatever it waited for. */
import { expect, test } from "bun:test";
import type { FinishedEvent, GenerationEvent } from "../../../gateway/dispatch/request/request.ts";
import { fakeLinks } from "../fake-link.ts";
import { greedy, makeRig, request } from "../rig.ts";

function started(maxRunningPerWorker: number) {
  const now = { ms: 0 };
  const { openLink, processes } = fakeLinks();
  const rig = makeRig(openLink, ["cpu"], { maxRunningPerWorker, nowMs: () => now.ms });
  rig.supervisor.start(rig.dispatcher);
  processes[0]?.ready();
  const submit = (id: string, changes = {}) => rig.dispatcher.submit(request(id, { params: greedy(3), ...changes }));
  return { now, processes, submit };
}

async function endOf(events: AsyncIterableIterator<GenerationEvent>): Promise<FinishedEvent["times"] | undefined> {
  for await (const event of events) if (event.type === "finished") return event.times;
  return undefined;
}

test("the wait for a place at a worker is part of the queue and of the first token's time", async () => {
  const { now, processes, submit } = started(1);
  const first = submit("a");
  const second = submit("b");
  const tick = (ms: number): void => {
    now.ms += ms;
    processes[0]?.core.tick();
  };
  tick(10);
  tick(10);
  tick(80);
  tick(5);
  tick(5);
  // The fake worker says that it let it wait for 1 ms.
  expect(await endOf(first)).toEqual({ queueMs: 1, firstTokenMs: 10, totalMs: 100 });
  expect(await endOf(second)).toEqual({ queueMs: 100, firstTokenMs: 100, totalMs: 110 });
});

test("what a lost worker took counts, and its tokens do not", async () => {
  const { now, processes, submit } = started(4);
  const events = submit("a", { restartable: true });
  now.ms = 7;
  processes[0]?.core.tick();
  now.ms = 50;
  processes[0]?.die();
  while (processes.length < 2) await Bun.sleep(1);
  processes[1]?.ready();
  now.ms = 90;
  for (let tick = 0; tick < 3; tick++) processes[1]?.core.tick();
  expect(await endOf(events)).toEqual({ queueMs: 51, firstTokenMs: 90, totalMs: 90 });
});

test("a run that left before it was sent gave no token", async () => {
  const { now, submit } = started(1);
  submit("a");
  const leaver = new AbortController();
  const events = submit("b", { signal: leaver.signal });
  now.ms = 30;
  leaver.abort();
  expect(await endOf(events)).toEqual({ queueMs: 30, firstTokenMs: undefined, totalMs: 30 });
});
