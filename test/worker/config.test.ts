/** The worker's settings: bounds, and errors that name the variable. */
import { expect, test } from "bun:test";
import { assertHeadFits, assertSparseFits, parseWorkerConfig, sparseOptionsOf } from "../../worker/config.ts";

const folder = { SPANGATE_MODEL: "model" };

test("what is not set has a default that works", () => {
  const config = parseWorkerConfig(folder);
  expect(config).toMatchObject({ blockTokens: 16, stepTokens: 512, prefillTokensBesideDecodes: 128, isa: undefined });
  expect(config.kvPositions).toBe("deferred");
  expect(config.maxRunningRequests).toBeLessThanOrEqual(config.stepTokens);
});

test("invariants are checked where SPANGATE_DEBUG is 1", () => {
  expect(parseWorkerConfig(folder).checksInvariants).toBe(false);
  expect(parseWorkerConfig({ ...folder, SPANGATE_DEBUG: "0" }).checksInvariants).toBe(false);
  expect(parseWorkerConfig({ ...folder, SPANGATE_DEBUG: "1" }).checksInvariants).toBe(true);
});

test("a CUDA device has larger steps, and a pool of what is free", () => {
  expect(parseWorkerConfig(folder).cudaIndex).toBeUndefined();
  const config = parseWorkerConfig({ ...folder, SPANGATE_DEVICE: "cuda:3" });
  expect(config).toMatchObject({
    cudaIndex: 3,
    kvBytes: undefined,
    stepTokens: 8_192,
    prefillTokensBesideDecodes: 1_024,
  });
  const small = parseWorkerConfig({ ...folder, SPANGATE_DEVICE: "cuda:0", SPANGATE_STEP_TOKENS: "256" });
  expect(small).toMatchObject({ cudaIndex: 0, stepTokens: 256 });
});

test("mx8 is a way to hold KV, of heads that are whole groups", () => {
  const plain = [{}, { SPANGATE_KV_CODEC: "raw" }, { SPANGATE_KV_CODEC: "raw", SPANGATE_KV_TYPE: "float32" }];
  const kvTypes = plain.map((env) => parseWorkerConfig({ ...folder, ...env }).kvType);
  expect(kvTypes).toEqual(["float16", "float16", "float32"]);
  const config = parseWorkerConfig({ ...folder, SPANGATE_KV_CODEC: "mx8" });
  expect(config.kvType).toBe("mx8");
  for (const headDim of [32, 128]) assertHeadFits(config, headDim);
  expect(() => assertHeadFits(config, 80)).toThrow("SPANGATE_KV_CODEC: mx8 takes heads of a multiple of 32 dimensions");
  assertHeadFits(parseWorkerConfig(folder), 80);
  const onGpu = parseWorkerConfig({ ...folder, SPANGATE_KV_CODEC: "mx8", SPANGATE_DEVICE: "cuda:0" });
  expect(onGpu.kvType).toBe("mx8");
  for (const headDim of [64, 128]) assertHeadFits(onGpu, headDim);
  for (const headDim of [32, 96]) expect(() => assertHeadFits(onGpu, headDim)).toThrow("heads of 64 or 128 dimensions");
});

const choosable = { headDim: 128, headCount: 32, kvHeadCount: 8, contextTokens: 40_960 };

test("rows choose what they read where it is asked for, on the CPU and on a GPU", () => {
  expect(parseWorkerConfig(folder).sparse).toBeUndefined();
  expect(sparseOptionsOf(parseWorkerConfig(folder))).toBeUndefined();
  assertSparseFits(parseWorkerConfig(folder), { ...choosable, window: {} });
  const config = parseWorkerConfig({ ...folder, SPANGATE_SPARSE: "ahead" });
  expect(config.sparse).toEqual({ mode: "ahead", tokens: 2_048, listTokens: 3_076, fromTokens: 16_384, shadowBits: 4 });
  expect(sparseOptionsOf(config)).toEqual({ seats: 64, listTokens: 3_076, shadowBits: 4, rings: true });
  const own = { SPANGATE_SPARSE: "now", SPANGATE_SPARSE_TOKENS: "64", SPANGATE_SPARSE_FROM: "0" };
  for (const device of ["cpu", "cuda:1"]) {
    const chosen = parseWorkerConfig({ ...folder, ...own, SPANGATE_DEVICE: device });
    expect(chosen.sparse).toMatchObject({ mode: "now", tokens: 64, fromTokens: 0 });
    expect(sparseOptionsOf(chosen)).toMatchObject({ seats: 64, listTokens: 1_092, rings: false });
    assertSparseFits(chosen, choosable);
  }
});

test.each([
  [{ window: {} }, "both", "the model has layers of a sliding window, which read little as they are"],
  [{ scoreCap: 50 }, "both", "the model caps its attention scores"],
  [{ sinks: true }, "both", "the model has attention sinks"],
  [{ headDim: 80 }, "cuda:0", "a GPU takes heads of a multiple of 32 dimensions, not 80"],
  [{ headCount: 136 }, "cuda:0", "a GPU takes up to 16 query heads of a KV head"],
  [{ contextTokens: 600_000 }, "cuda:0", "a GPU takes contexts of up to 524288 tokens, not 600000"],
])("a model whose rows cannot choose is refused by name: %j", (change, on, words) => {
  for (const device of ["cpu", "cuda:0"]) {
    const config = parseWorkerConfig({ ...folder, SPANGATE_SPARSE: "now", SPANGATE_DEVICE: device });
    const check = () => assertSparseFits(config, { ...choosable, ...change });
    if (on === "both" || on === device) expect(check).toThrow(`SPANGATE_SPARSE: now: ${words}; leave it out`);
    else check();
  }
});

test.each([
  [{ SPANGATE_SPARSE: "on" }, 'SPANGATE_SPARSE: must be "off", "now" or "ahead"'],
  [{ SPANGATE_SPARSE_TOKENS: "0" }, "SPANGATE_SPARSE_TOKENS: must be a number from 16 to 131072"],
  [{ SPANGATE_SPARSE_TOKENS: "-5" }, "SPANGATE_SPARSE_TOKENS: must be a number from 16 to 131072"],
  [{ SPANGATE_SPARSE_FROM: "131073" }, "SPANGATE_SPARSE_FROM: must be a number from 0 to 131072"],
  [{ SPANGATE_SPARSE_SHADOW_BITS: "2" }, 'SPANGATE_SPARSE_SHADOW_BITS: must be "4"'],
  [
    { SPANGATE_SPARSE: "ahead", SPANGATE_DEVICE: "cuda:0" },
    "SPANGATE_SPARSE: ahead is for the CPU: on cuda:0 a row chooses by its own query alone; take now",
  ],
  [
    { SPANGATE_SPARSE: "now", SPANGATE_DEVICE: "cuda:0", SPANGATE_KV_CODEC: "mx8" },
    "SPANGATE_SPARSE: now does not go with SPANGATE_KV_CODEC mx8 on cuda:0",
  ],
  [
    { SPANGATE_SPARSE: "now", SPANGATE_DEVICE: "cuda:0", SPANGATE_KV_POSITIONS: "relocate" },
    "SPANGATE_SPARSE: now does not go with SPANGATE_KV_POSITIONS relocate",
  ],
  [
    { SPANGATE_SPARSE: "now", SPANGATE_BLOCK_TOKENS: "8" },
    "SPANGATE_SPARSE: now takes SPANGATE_BLOCK_TOKENS of 16 or more, not 8",
  ],
  [
    { SPANGATE_SPARSE: "now", SPANGATE_KV_POSITIONS: "relocate" },
    "SPANGATE_SPARSE: now does not go with SPANGATE_KV_POSITIONS relocate",
  ],
  [{ SPANGATE_DEVICE: "cuda" }, 'SPANGATE_DEVICE: must be "cpu" or "cuda:N"'],
  [{ SPANGATE_BLOCK_TOKENS: "24" }, "SPANGATE_BLOCK_TOKENS: must be a power of two"],
  [{ SPANGATE_STEP_TOKENS: "32" }, "SPANGATE_STEP_TOKENS: 32 is below SPANGATE_MAX_RUNNING (64)"],
  [{ SPANGATE_MAX_PREFILL_BESIDE_DECODE: "0" }, "SPANGATE_MAX_PREFILL_BESIDE_DECODE: "],
  [{ SPANGATE_KV_CODEC: "int8" }, 'SPANGATE_KV_CODEC: must be "raw" or "mx8"'],
  [
    { SPANGATE_KV_CODEC: "mx8", SPANGATE_DEVICE: "cuda:1", SPANGATE_BLOCK_TOKENS: "8" },
    "SPANGATE_KV_CODEC: mx8 takes SPANGATE_BLOCK_TOKENS of 16 or more on cuda:1, not 8",
  ],
  [{ SPANGATE_KV_CODEC: "mx8", SPANGATE_KV_TYPE: "float16" }, "takes the place of SPANGATE_KV_TYPE, which is float16"],
  [
    { SPANGATE_KV_CODEC: "mx8", SPANGATE_KV_POSITIONS: "relocate" },
    "mx8 does not go with SPANGATE_KV_POSITIONS relocate",
  ],
  [{ SPANGATE_KV_POSITIONS: "absolute" }, 'SPANGATE_KV_POSITIONS: must be "deferred" or "relocate"'],
  [{ SPANGATE_DEBUG: "yes" }, 'SPANGATE_DEBUG: must be "0" or "1"'],
  [
    { SPANGATE_KV_HOST_BYTES: "1073741824" },
    "SPANGATE_KV_HOST_BYTES: is for GPUs; the CPU's pool is the host's memory",
  ],
  [{ SPANGATE_KV_HOST_BYTES: "-1", SPANGATE_DEVICE: "cuda:0" }, "SPANGATE_KV_HOST_BYTES: must be a number from 0"],
  [{ SPANGATE_KV_BYTES: "many" }, "SPANGATE_KV_BYTES: must be a number"],
  [{ SPANGATE_MAX_WAITING: "-1" }, "SPANGATE_MAX_WAITING: must be a number from 0 to 100000"],
])("%j is refused by name", (env, message) => {
  expect(() => parseWorkerConfig({ ...folder, ...env })).toThrow(message);
});
