/** The CPU backend against itself in other shapes of the same work, on a small random model. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { CpuBackend, type CpuBackendOptions, numericMode } from "../../worker/backend/cpu/cpu-backend.ts";
import { loadModel } from "../../worker/model/load.ts";
import { tinyConfig, writeModelFolder } from "../model/folder.ts";
import { Choices } from "../sim/random.ts";
import { testSeed } from "../support/seed.ts";
import { chainPieces } from "./chain-pieces.ts";

const options: CpuBackendOptions = {
  weightMode: "float32",
  kvType: "float32",
  kvBytes: 1 << 20,
  blockTokens: 16,
  threadCount: 2,
  maxRows: 64,
  maxLogitRows: 64,
};
const choices = new Choices(testSeed());
const tokens = Int32Array.from({ length: 40 }, () => choices.int(0, tinyConfig.vocab_size - 1));

const piece = chainPieces(tokens);

function maxDifference(a: Float32Array, b: Float32Array): number {
  expect(a.length).toBe(b.length);
  return a.reduce((max, value, i) => Math.max(max, Math.abs(value - b[i])), 0);
}

// Two float32 evaluations of a 2-layer, 64-wide model differ by rounding only: about 2 layers x 4 matrices x
// sqrt(96) summands x 2^-24 relative, on logits of size about 4: 2e-5. A dropped token or layer is off by 0.1 and more.
const rounding = 1e-4;

/** How far rows that are computed together and apart may differ: our own products give a row the same bits anywhere. */
const modes = [
  { weightMode: "float32", dense: "onnx", differs: rounding },
  { weightMode: "int8", dense: "onnx", differs: rounding },
  { weightMode: "float32", dense: "native", differs: Number.MIN_VALUE },
  { weightMode: "int8", dense: "native", differs: Number.MIN_VALUE },
] as const;

describe.each(modes)("weights in $weightMode, products by $dense", ({ weightMode, dense, differs }) => {
  const folder = writeModelFolder(tinyConfig);
  let backend: CpuBackend;
  beforeAll(async () => {
    const chosen = { ...options, weightMode, dense };
    backend = await CpuBackend.open(loadModel(folder, numericMode(chosen)), chosen);
  });
  afterAll(() => backend.dispose());

  test("chunks give what the whole gives", async () => {
    const whole = (await backend.forward(piece(0, 40, 0, [39]))).slice();
    expect((await backend.forward(piece(0, 23, 8, []))).length).toBe(0);
    await backend.forward(piece(23, 31, 8, [7]));
    const chunked = (await backend.forward(piece(31, 40, 8, [8]))).slice();
    expect(maxDifference(whole, chunked)).toBeLessThan(differs);
  });

  test("logits of some rows are those of all rows", async () => {
    const vocab = tinyConfig.vocab_size;
    const every = Array.from({ length: 40 }, (_, i) => i);
    const all = (await backend.forward(piece(0, 40, 0, every))).slice();
    const some = (await backend.forward(piece(0, 40, 0, [3, 17, 38]))).slice();
    const picked = [3, 17, 38].flatMap((row) => [...all.subarray(row * vocab, (row + 1) * vocab)]);
    expect(maxDifference(some, Float32Array.from(picked))).toBeLessThan(differs);
  });

  test("another token earlier in the chain changes the logits", async () => {
    const before = (await backend.forward(piece(0, 40, 0, [39]))).slice();
    const kept = tokens[2];
    tokens[2] = (kept + 1) % tinyConfig.vocab_size;
    const after = (await backend.forward(piece(0, 40, 0, [39]))).slice();
    tokens[2] = kept;
    expect(maxDifference(before, after)).toBeGreaterThan(10 * rounding);
  });

  test("too many rows and too many logits are refused", async () => {
    const long = piece(0, 40, 0, []);
    const grown = { ...long, tokenIds: new Int32Array(65) };
    expect(backend.forward(grown)).rejects.toThrow(/65 rows/);
  });
});

test("our own products give what onnxruntime's give, and are another numeric mode", async () => {
  const folder = writeModelFolder(tinyConfig);
  const [onnx, native] = await Promise.all(
    (["onnx", "native"] as const).map(async (dense) => {
      const chosen = { ...options, dense };
      const model = loadModel(folder, numericMode(chosen));
      const backend = await CpuBackend.open(model, chosen);
      const logits = (await backend.forward(piece(0, 40, 0, [0, 20, 39]))).slice();
      expect(backend.name).toMatch(/^cpu\/(amx|avx512|avx2|reference)$/);
      await backend.dispose();
      return { logits, digest: model.digest };
    }),
  );
  expect(maxDifference(onnx.logits, native.logits)).toBeLessThan(rounding);
  expect(onnx.digest).not.toBe(native.digest);
});

test("KV in mx8 is another numeric mode, of logits that lie near", async () => {
  const folder = writeModelFolder({ ...tinyConfig, head_dim: 32 });
  const answers = new Map<string, { digest: string; backend: CpuBackend; logits: Float32Array }>();
  for (const kvType of ["float32", "float16", "mx8"] as const) {
    const chosen = { ...options, kvType };
    const model = loadModel(folder, numericMode(chosen));
    const backend = await CpuBackend.open(model, chosen);
    const logits = (await backend.forward(piece(0, 40, 0, [39]))).slice();
    answers.set(kvType, { digest: model.digest, backend, logits });
  }
  const [wide, half, mx8] = [...answers.values()];
  expect(new Set([wide.digest, half.digest, mx8.digest]).size).toBe(3);
  expect(maxDifference(mx8.logits, wide.logits)).toBeGreaterThan(2 * maxDifference(half.logits, wide.logits));
  expect(maxDifference(mx8.logits, wide.logits)).toBeLessThan(0.05);
  expect([half.backend.shape.blends, mx8.backend.shape.blends]).toEqual([undefined, false]);
  expect(mx8.backend.shape.blockCount / half.backend.shape.blockCount).toBeGreaterThan(1.9);
  await expect(mx8.backend.deviations(piece(0, 40, 0, []))).rejects.toThrow("KV in mx8 stays where it is");
  for (const { backend } of answers.values()) await backend.dispose();
});

test("a pool too small for one block, or greater than the machine's memory, is refused", async () => {
  const model = loadModel(writeModelFolder(tinyConfig), "float32");
  const open = (kvBytes: number) => CpuBackend.open(model, { ...options, kvBytes });
  await expect(open(100)).rejects.toThrow("a KV pool of 100 bytes does not hold one block");
  await expect(open(2 ** 52)).rejects.toThrow("a KV pool of 4194304.0 GiB is more than the machine's memory of ");
});
