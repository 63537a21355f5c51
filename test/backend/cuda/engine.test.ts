/** Engine and CUDA backend on the emulated device: sampling, chunks, batches, and what a step costs the host. */
import { describe, expect, test } from "bun:test";
import { numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { folder, mixed, prompt, rounded, submit, tokensOf, World } from "./engine-world.ts";

describe("sampling on the device", () => {
  test("answers as the host's sampler: seeds, filters, penalties, bias, bans and log-probabilities", async () => {
    const device = await World.open();
    const host = await World.open({ hostSampling: true });
    expect(rounded(await device.run(mixed))).toEqual(rounded(await host.run(mixed)));
    expect(device.device.log).toContain("sample_rows");
    expect(host.device.log).not.toContain("sample_rows");
  });
});

describe("the same answers", () => {
  test("in chunks, beside others, alone, without graphs", async () => {
    const whole = tokensOf(await (await World.open()).run(mixed));
    const limits = { stepTokens: 24, prefillTokensBesideDecodes: 5, maxRunningRequests: 3 };
    expect(tokensOf(await (await World.open({ limits })).run(mixed))).toEqual(whole);
    expect(tokensOf(await (await World.open({ graphs: false })).run(mixed))).toEqual(whole);
    // A step of one row has sums and norms inside its products, which round elsewhere: a seed may draw another token.
    for (const [index, graphs] of [
      [0, true],
      [1, false],
      [2, false],
    ] as const) {
      const message = mixed[index];
      const alone = await (await World.open({ graphs })).run([message]);
      expect(tokensOf(alone)).toEqual({ [message.requestId]: whole[message.requestId] });
    }
  });
});

describe("what a step costs the host", () => {
  test("a decode step is one copy in, one graph, one copy out, and allocates nothing", async () => {
    const world = await World.open();
    await world.run([submit("first", prompt(20, 1))]);
    const { device } = world;
    const [captures, free] = [device.captures, device.freeBytes()];
    const launches = device.graphLaunches;
    device.log.length = 0;
    device.calls.length = 0;
    await world.run([submit("second", prompt(20, 2), {}, 4)]);
    expect([device.captures, device.freeBytes()]).toEqual([captures, free]);
    expect(device.graphLaunches - launches).toBe(3);
    expect(device.calls.slice(-9)).toEqual(Array(3).fill(["copyIn", "graph", "copyOut"]).flat());
  });

  test("a prompt's launches: four products a layer and one for the head", async () => {
    const world = await World.open();
    const { layerCount } = loadModel(folder, numericMode).config;
    world.device.log.length = 0;
    await world.run([submit("prompt", prompt(40, 1), {}, 1)]);
    const count = (name: string) => world.device.log.filter((entry) => entry === name).length;
    expect([count("matmul"), count("matvec_float")]).toEqual([4 * layerCount, 1]);
    expect(count("add_rmsnorm")).toBe(2 * layerCount + 1);
    expect([count("attention_tiles"), count("attention_packed")]).toEqual([layerCount, 0]);
    expect([count("embed_rows"), count("gather_rows"), count("copyIn"), count("copyOut")]).toEqual([1, 1, 1, 1]);
  });
});

describe("bounds", () => {
  test("a step that is too large is refused before anything is launched", async () => {
    const world = await World.open();
    const rows = 129;
    const zeros = new Int32Array(rows);
    const [one, two] = [Int32Array.of(0), Int32Array.of(0, 1)];
    const batch = {
      tokenIds: zeros,
      positions: zeros,
      slots: zeros,
      pieceRows: Int32Array.of(0, rows),
      pieceSegments: two,
      segmentBlockStarts: one,
      segmentFirstTokens: one,
      segmentTokenCounts: Int32Array.of(rows),
      segmentOffsets: one,
      blockIds: new Int32Array(9),
      logitRows: one,
    };
    world.device.calls.length = 0;
    await expect(world.backend.forward(batch)).rejects.toThrow("129 rows in a step of at most 128");
    expect(world.device.calls).toEqual([]);
  });
});
