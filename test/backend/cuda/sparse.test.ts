/** Rows that choose what they read, in a whole model on the emulated device: against the same rows that read all. */
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import type { CudaBackendOptions } from "../../../worker/backend/cuda/parts.ts";
import {
  assertChoicesFit,
  assertChoosable,
  mostCandidatesOf,
} from "../../../worker/backend/cuda/sparse/sparse-memory.ts";
import { choiceLaunches } from "../../../worker/backend/cuda/sparse/sparse-ops.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { sparseBackendChecks, sparseModelOptions, sparseRow } from "../../gpu/sparse-backend.ts";
import { Random } from "../../native/random.ts";
import { testSeed } from "../../support/seed.ts";
import { chainPieces } from "../chain-pieces.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const model = loadModel(join(import.meta.dir, "../../golden/qwen3"), numericMode);
const random = new Random(testSeed());
const tokens = Int32Array.from({ length: 80 }, () => random.integer(0, model.config.vocabSize - 1));
const piece = chainPieces(tokens);

async function open(options: Partial<CudaBackendOptions> = {}, device = new EmulatedDevice(model.config.headDim)) {
  return { device, backend: await CudaBackend.open(device, model, { ...sparseModelOptions, ...options }) };
}

describe.each([true, false])("with graphs: %p", (graphs) => {
  test.each(Object.entries(sparseBackendChecks))("%s", async (_, check) => {
    const opened = async () => (await open({ graphs })).backend;
    expect(await check(opened, model.config, random)).not.toBe("");
  });
});

test("attention of rows that choose is launched once a layer, and that of others is not planned for them", async () => {
  const { backend, device } = await open();
  await backend.forward(piece(0, 60, 0, []));
  device.log.length = 0;
  await backend.forward(sparseRow(tokens, 60, { chosen: 6 }));
  expect(device.log.filter((name) => name.startsWith("attend_choice"))).toHaveLength(model.config.layerCount);
  await backend.dispose();
});

test("a list has as many thread blocks as end soonest, and as can count what it chooses from", () => {
  const { listBlocks } = choiceLaunches(128, 132);
  const counts = (context: number) =>
    [8, 64, 128, 256, 400].map((lists) => listBlocks(lists, mostCandidatesOf(context)));
  expect(counts(40_000)).toEqual([8, 4, 2, 1, 8]);
  expect(counts(65_528)).toEqual([8, 4, 2, 1, 8]);
  expect(counts(65_600)).toEqual([8, 4, 2, 2, 8]);
  expect(counts(131_072)).toEqual([8, 4, 2, 2, 8]);
  expect(counts(262_144)).toEqual([8, 4, 4, 4, 8]);
  expect(counts(524_288)).toEqual([8, 8, 8, 8, 8]);
});

test("a row chooses from no more than its list's thread blocks count, which the engine knows", async () => {
  const contexts = [40_960, 65_536, 65_593, 131_072, 131_121, 524_288];
  expect(contexts.map(mostCandidatesOf)).toEqual([40_960, 65_528, 65_593, 131_056, 131_121, 524_224]);
  const { backend } = await open();
  expect(backend.shape.sparse?.mostCandidates).toBe(model.config.contextTokens);
  await backend.dispose();
  const limits = {
    options: sparseModelOptions.sparse,
    scoreTokens: 2 ** 20,
    mostUnits: 10_000,
    mostCandidates: 131_056,
  };
  const sizes = { entries: 1, units: 1, scoreTokens: 131_064, words: 0, mostCandidates: 131_056 };
  assertChoicesFit(limits, sizes);
  const more = { ...sizes, mostCandidates: 131_057 };
  expect(() => assertChoicesFit(limits, more)).toThrow("a row that chooses from 131057 tokens, of at most 131056");
});

describe("a backend without choices", () => {
  test("launches nothing of them, takes no memory for them, and gives the same bits", async () => {
    const { backend: plain, device } = await open({ sparse: undefined });
    const { backend } = await open();
    expect(plain.shape.sparse).toBeUndefined();
    const steps = [piece(0, 40, 0, [39]), piece(40, 41, 0, [0])];
    for (const step of steps) expect(await backend.forward(step)).toEqual(await plain.forward(step));
    expect(device.log.filter((name) => /shadow|chos/.test(name))).toEqual([]);
    expect(() => plain.choiceCounts(0)).toThrow("no row of this backend chooses");
  });
});

describe("refused before anything is launched", () => {
  test("another mode, a seat that there is not", async () => {
    const { backend, device } = await open();
    device.calls.length = 0;
    await expect(backend.forward(sparseRow(tokens, 60, { chosen: 6, mode: "quest" }))).rejects.toThrow("chooses by");
    await expect(backend.forward(sparseRow(tokens, 60, { chosen: 6, seat: 4 }))).rejects.toThrow("no seat 4");
    expect(device.calls).toEqual([]);
    await backend.dispose();
  });

  test("blocks of fewer tokens than a panel, when the backend is opened", async () => {
    await expect(open({ blockTokens: 8 })).rejects.toThrow("blocks have 8 tokens, and 16 are needed");
  });

  test.each([
    [{}, true, "KV is in mx8"],
    [{ headDim: 80 }, false, "heads have 80 dimensions"],
    [{ headCount: 34, kvHeadCount: 2 }, false, "more than 16 query heads"],
    [{ window: { tokens: 8, layers: [true] } }, false, "a sliding window"],
    [{ scoreCap: 50 }, false, "caps scores"],
    [{ sinks: true }, false, "sinks"],
    [{ contextTokens: 600_000 }, false, "of contexts of 600000 tokens, and 524288 are the most here"],
  ])("a model or a pool that does not go with choices: %p", (change, isMx8, words) => {
    expect(() => assertChoosable({ ...model.config, ...change }, 16, isMx8)).toThrow(words);
  });
});
