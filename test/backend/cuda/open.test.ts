/**
 * Opening a model on a device without enough of something: one sentence says what and how much, and nothing is left.
 */
import { beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { checkDevices, checkMemory } from "../../../gateway/compose/preflight.ts";
import { parseConfig } from "../../../gateway/config.ts";
import { allowAttention } from "../../../worker/backend/cuda/attention.ts";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import { kernelSignatures } from "../../../worker/backend/cuda/device/kernels.ts";
import { type CudaDevice, openDevice } from "../../../worker/backend/cuda/open-device.ts";
import { FileReader } from "../../../worker/backend/cuda/weights/tensor-reader.ts";
import { parseWorkerConfig, sparseOptionsOf } from "../../../worker/config.ts";
import { planMemory } from "../../../worker/memory-plan.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { parameterBytes, type Signature } from "../../../worker/native/cuda/arguments.ts";
import { CudaDriver } from "../../../worker/native/cuda/driver.ts";
import { fake, fakePath } from "../../native/cuda/fake.ts";
import { EmulatedDevice } from "./emulated-device.ts";

// A model is opened once for each of its allocations.
setDefaultTimeout(60_000);

const model = loadModel(join(import.meta.dir, "../../golden/qwen3"), numericMode);
const { headDim } = model.config;
// Small chunks: the fake fills all memory that it gives.
const reader = new FileReader({ partElements: 1 << 14 });
const options = { kvBytes: 1 << 20, blockTokens: 16, maxRows: 32, maxLogitRows: 8, reserveBytes: 0, reader };
const outOfMemory = 2;

for (const [name, signature] of Object.entries<Signature>(kernelSignatures)) {
  fake.addKernel(name, signature.map(parameterBytes));
}
const folder = await mkdtemp(join(tmpdir(), "spangate-open-"));
for (const name of ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"]) await symlink(fakePath, join(folder, name));

beforeEach(() => fake.reset());

function open(size = headDim): Promise<CudaDevice> {
  const driver = new CudaDriver({ libraryNames: [fakePath] });
  return openDevice({ index: 0, headDim: size, driver, libraryFolders: [folder], cubinFolder: folder });
}

async function openModel(): Promise<CudaBackend> {
  return CudaBackend.open(await open(), model, options);
}

/** The sentence of what fails; nothing that was made by then may be left. */
async function sentenceOf(run: () => Promise<unknown>): Promise<string> {
  const before = [fake.liveBytes(), fake.liveObjects(), fake.liveDescriptors()];
  const error = await run().then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect([fake.liveBytes(), fake.liveObjects(), fake.liveDescriptors()]).toEqual(before);
  if (!(error instanceof Error)) throw new Error("nothing was thrown");
  return error.message;
}

describe("memory", () => {
  test("a model that fits opens, and leaves nothing when it is closed", async () => {
    const before = [fake.liveBytes(), fake.liveObjects()];
    const backend = await openModel();
    expect(backend.shape.blockCount).toBe(Math.floor(options.kvBytes / backend.shape.kvBytesPerBlock));
    await backend.dispose();
    expect([fake.liveBytes(), fake.liveObjects()]).toEqual(before);
  });

  test.each([
    ["cuMemAlloc_v2", " of device memory are free"],
    ["cuMemHostAlloc", "the system gives no more page-locked memory"],
  ])("each allocation by %s may fail", async (call, end) => {
    await (await openModel()).dispose();
    const count = fake.notes(call).length;
    expect(count).toBeGreaterThan(5);
    for (let run = 1; run <= count; run++) {
      fake.reset();
      fake.fail(call, outOfMemory, run);
      const sentence = await sentenceOf(openModel);
      expect(sentence).toMatch(/^cuda:0 \(Fake 0\) is out of memory: "[\w ]+" takes [\d.]+ ([KMG]iB|bytes), /);
      expect(sentence).toEndWith(end);
      expect(fake.notes(call)).toHaveLength(run);
    }
  });

  test("weights that do not fit are named with their size and what is free", async () => {
    const backend = await openModel();
    await backend.dispose();
    const weightKib = (backend.weightBytes / 1024).toFixed(1);
    const matrixProductBytes = 32 << 20;
    fake.setFreeBytes(matrixProductBytes + 1024);
    expect(await sentenceOf(openModel)).toBe(
      `cuda:0 (Fake 0) is out of memory: "weights" takes ${weightKib} KiB, 1.0 KiB of device memory are free`,
    );
  });

  test("a device that is full beside the model says what a block takes", async () => {
    const backend = await openModel();
    const { kvBytesPerBlock } = backend.shape;
    const used = fake.notes("cuMemAlloc_v2").reduce((sum, line) => sum + Number(line.split(" ")[1]), 0);
    await backend.dispose();
    const beside = used - backend.shape.blockCount * kvBytesPerBlock;
    fake.reset();
    fake.setFreeBytes(beside + kvBytesPerBlock - 8_192);
    expect(await sentenceOf(openModel)).toStartWith(
      `the device has no memory for one block of 16 tokens (${kvBytesPerBlock / 1024}.0 KiB): `,
    );
  });
});

test.each(["cuGraphInstantiateWithFlags", "cuGraphUpload"])("a recording that %s has no memory for", async (call) => {
  const device = await open();
  const buffer = device.allocate("buffer", 256);
  const before = fake.liveGraphs();
  let records = 0;
  const record = () => {
    records += 1;
    device.fill(buffer, 7);
  };
  fake.fail(call, outOfMemory);
  const recording = device.capture(record);
  expect(fake.liveGraphs()).toBe(before);
  fake.reset();
  recording.launch();
  recording.launch();
  expect([records, fake.notes("cuMemsetD8Async").length]).toEqual([3, 2]);
  recording.close();
  fake.fail(call, 1);
  expect(() => device.capture(record)).toThrow(call);
  expect(fake.liveGraphs()).toBe(before);
  device.close();
});

describe("devices that are too small", () => {
  test("compute capability below 8.0, before anything is compiled", async () => {
    fake.setCapability(75);
    expect(await sentenceOf(() => open())).toBe(
      "cuda:0 (Fake 0) has compute capability 7.5, Spangate needs 8.0 or newer",
    );
    expect(fake.notes("nvrtcCompileProgram")).toEqual([]);
  });

  test("a kernel that wants more shared memory than a thread block can have", async () => {
    fake.setCapability(89);
    const device = await open(128);
    expect(() => device.allowSharedBytes("copy_tokens", 104_448)).toThrow(
      "copy_tokens takes 104448 bytes of shared memory in a thread block, cuda:0 (Fake 0) has 101376",
    );
    device.close();
  });
});

test.each([
  ["8.9", 101_376],
  ["8.0", 166_912],
  ["9.0", 232_448],
])("attention fits the shared memory of compute capability %s", (version, bytes) => {
  for (let size = 16; size <= 128; size += 16) {
    const device = new EmulatedDevice(size, 1 << 16);
    device.maxSharedBytesPerBlock = bytes;
    device.hasWarpgroups = version === "9.0";
    expect(() => allowAttention(device, size)).not.toThrow();
  }
});

test.each(["cuModuleLoadData", "cublasLtCreate", "cuEventCreate", "nvrtcCreateProgram", "cuMemsetD8Async"])(
  "nothing is left when %s fails",
  async (call) => {
    fake.fail(call, 1);
    expect(await sentenceOf(async () => openModelFresh())).toContain(call);
  },
);

/** With nothing compiled before. */
async function openModelFresh(): Promise<CudaBackend> {
  const driver = new CudaDriver({ libraryNames: [fakePath] });
  const cubinFolder = await mkdtemp(join(tmpdir(), "spangate-open-"));
  const device = await openDevice({ index: 0, headDim, driver, libraryFolders: [folder], cubinFolder });
  return CudaBackend.open(device, model, options);
}

describe("what a start says of a GPU's memory", () => {
  test.each(["off", "now"])("is what opening takes there, sparse: %s", async (mode) => {
    const device = await open();
    const sizes = { SPANGATE_STEP_TOKENS: "512", SPANGATE_MAX_RUNNING: "64", SPANGATE_KV_BYTES: String(64 << 20) };
    const rows = { ...sizes, SPANGATE_SPARSE: mode, SPANGATE_SPARSE_TOKENS: "64" };
    const worker = parseWorkerConfig({ SPANGATE_MODEL: "x", SPANGATE_DEVICE: "cuda:0", ...rows });
    const before = fake.liveBytes();
    const backend = await CudaBackend.open(device, model, {
      ...options,
      kvBytes: 64 << 20,
      maxRows: 512,
      maxLogitRows: 64,
      sparse: sparseOptionsOf(worker),
    });
    const taken = fake.liveBytes() - before;
    const { weightBytes, workBytes, kvBytes, shadowBytes } = await planMemory(worker, model, 8 * 2 ** 30);
    const { blockCount, sparse } = backend.shape;
    await backend.dispose();
    expect(kvBytes).toBe(64 << 20);
    // A pool is of whole blocks.
    const perBlock = sparse?.shadowBytesPerBlock ?? 0;
    expect(shadowBytes).toBeWithin(blockCount * perBlock, (blockCount + 1) * perBlock + 1);
    // One GiB is left to the driver and to graphs; the fake counts page-locked memory of the host too.
    const told = weightBytes + workBytes - 2 ** 30 + kvBytes + shadowBytes;
    expect(told).toBeLessThanOrEqual(taken);
    // Both copies of a step on the host have room for what rows choose from.
    expect(told).toBeGreaterThan(taken - ((mode === "off" ? 48 : 50) << 20));
  });

  test("is told before anything is loaded, for each of them", async () => {
    const env = { SPANGATE_DEVICES: "cuda:1,cuda:0", LD_LIBRARY_PATH: folder, PATH: process.env.PATH };
    const gpus = await checkDevices(parseConfig(env), env);
    expect(gpus).toEqual(
      new Map([
        ["cuda:1", 140 * 2 ** 30],
        ["cuda:0", 141 * 2 ** 30],
      ]),
    );
    const lines = await checkMemory(parseConfig(env), env, model, gpus);
    expect(lines).toEqual([
      expect.stringMatching(/^cuda:1: \d+ MiB for weights .* KV, of 140\.0 GiB$/),
      expect.stringMatching(/^cuda:0: \d+ MiB for weights .* KV, of 141\.0 GiB$/),
    ]);
    const small = new Map([["cuda:0", 2 ** 29]]);
    const one = { ...env, SPANGATE_DEVICES: "cuda:0" };
    const refused = checkMemory(parseConfig(one), one, model, small);
    await expect(refused).rejects.toThrow(
      /^SPANGATE_MODEL is a model that takes .*, and cuda:0 has 0\.5 GiB; no setting/,
    );
  });
});
