/** Two steps in flight on the emulated device, which reads host memory and runs launches as late as it may. */
import { describe, expect, spyOn, test } from "bun:test";
import { StepStaging } from "../../../worker/backend/cuda/staging.ts";
import type { SubmitMessage } from "../../../worker/contract/messages.ts";
import { mixed, prompt, rounded, submit, World } from "./engine-world.ts";

const isPenalised = ({ params }: SubmitMessage) => params.sampling.repetitionPenalty !== 1;
const free = mixed.filter((message) => !isPenalised(message));

/** Rows from now on whose token the device is to take from its own answer. */
function countNamedRows({ backend }: World): () => number {
  let count = 0;
  const begin = backend.beginStep.bind(backend);
  backend.beginStep = (batch, requests) => {
    count += batch.tokenIds.filter((tokenId) => tokenId < 0).length;
    return begin(batch, requests);
  };
  return () => count;
}

describe("two steps in flight", () => {
  test("answer as one after the other: tokens, log-probabilities, seeds, bias and bans", async () => {
    for (const messages of [free, mixed]) {
      const limits = { maxRunningRequests: 3 };
      const plain = await World.open({ pipelined: false, limits });
      const pipelined = await World.open({ limits });
      const [plainRows, pipelinedRows] = [countNamedRows(plain), countNamedRows(pipelined)];
      expect(rounded(await pipelined.run(messages))).toEqual(rounded(await plain.run(messages)));
      expect(plainRows()).toBe(0);
      expect(pipelinedRows()).toBeGreaterThan(8);
    }
  });

  test("a pool that cannot hold all of them preempts, and answers the same", async () => {
    const requests = [1, 2, 3, 4].map((n) => submit(`r${n}`, prompt(20 + n, n), { temperature: 0.9, seed: n }, 20));
    const kvBytes = 10 * (await World.open()).backend.shape.kvBytesPerBlock;
    const [plain, pipelined] = [await World.open({ pipelined: false }), await World.open({ kvBytes })];
    const named = countNamedRows(pipelined);
    expect(rounded(await pipelined.run(requests))).toEqual(rounded(await plain.run(requests)));
    expect(pipelined.engine.stats().preemptions).toBeGreaterThan(0);
    expect(named()).toBeGreaterThan(0);
  });

  test("draws that have no room on the device are made on the host, and no step runs ahead of them", async () => {
    const whole = rounded(await (await World.open()).run(free));
    const room = spyOn(StepStaging.prototype, "roomFor").mockReturnValue(0);
    const world = await World.open();
    const named = countNamedRows(world);
    expect(rounded(await world.run(free))).toEqual(whole);
    expect([named(), world.device.log.includes("sample_rows")]).toEqual([0, false]);
    room.mockRestore();
  });

  test("a step is put into the stream before the one before it is waited for", async () => {
    const world = await World.open();
    world.engine.submit(submit("r", prompt(20, 1), {}, 6));
    const { device } = world;
    const count = (names: readonly string[]) => names.filter((name) => name === "copyOut").length;
    await world.engine.step();
    // Waiting for one step does not wait for the one behind it.
    expect([count(device.calls), count(device.log)]).toEqual([2, 1]);
    await world.engine.step();
    device.calls.length = 0;
    device.log.length = 0;
    await world.engine.step();
    expect(device.calls).toEqual(["copyIn", "graph", "copyOut"]);
    // What ran meanwhile is the step before; the one that was just put in has not even read its integers.
    expect(device.log.filter((name) => name.startsWith("copy"))).toEqual(["copyIn", "copyOut"]);
    expect(world.messages.filter(({ type }) => type === "tokens")).toHaveLength(3);
  });
});

describe("graphs of decode steps", () => {
  test("are recorded ahead, two for each size of a step; no step records any more", async () => {
    const [plain, world] = [await World.open(), await World.open()];
    world.device.calls.length = 0;
    await world.backend.captureDecodes();
    // Of 1, 2, 4 and 8 rows, with large items and without. Each is run once before, over counts of 0.
    const graphCount = 2 * 4;
    expect(world.device.calls.filter((name) => name === "copyIn")).toHaveLength(graphCount);
    expect(world.device.captures).toBe(graphCount);
    const freeBytes = world.device.freeBytes();
    expect(rounded(await world.run(mixed))).toEqual(rounded(await plain.run(mixed)));
    expect([world.device.captures, world.device.freeBytes()]).toEqual([graphCount, freeBytes]);
    expect(world.device.graphLaunches).toBeGreaterThan(plain.device.graphLaunches);
  });

  test("are not recorded where steps are launched one by one", async () => {
    const world = await World.open({ graphs: false });
    await world.backend.captureDecodes();
    expect([world.device.captures, world.device.calls.includes("embed_rows")]).toEqual([0, false]);
  });
});
