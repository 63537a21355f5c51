/** What a start says of memory before it loads anything: the bytes that are then taken, and settings that do fit. */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { CpuBackend } from "../../worker/backend/cpu/cpu-backend.ts";
import { parseWorkerConfig, WorkerSettingError } from "../../worker/config.ts";
import { memoryText, planMemory } from "../../worker/memory-plan.ts";
import { loadModel, readModel } from "../../worker/model/load.ts";
import { openCpuKernels } from "../../worker/native/cpu-kernels.ts";
import { hollowModel } from "../model/hollow-folder.ts";
import { repositoryRoot } from "../support/import-graph.ts";

// Kernels may have to be compiled, on a machine that has other things to do.
setDefaultTimeout(60_000);

const [mib, gib] = [2 ** 20, 2 ** 30];
/** Qwen3-8B's shape. */
const eight = {
  ...{ num_hidden_layers: 36, hidden_size: 4_096, num_attention_heads: 32, num_key_value_heads: 8, head_dim: 128 },
  ...{ intermediate_size: 12_288, vocab_size: 151_936, tie_word_embeddings: false, max_position_embeddings: 40_960 },
};
const workerOf = (env: Record<string, string> = {}) =>
  parseWorkerConfig({ SPANGATE_MODEL: "x", SPANGATE_ISA: "avx512", ...env });

describe("on the CPU", () => {
  const golden = (name: string) => join(repositoryRoot, "test", "golden", name);

  test.each(["qwen3", "qwen3-moe", "gpt-oss-mxfp4"])("weights take what is told: %s", async (name) => {
    for (const weightMode of ["float32", "int8"] as const) {
      const model = loadModel(golden(name), "test");
      const kernels = await openCpuKernels({ isa: "reference", threadCount: 1 });
      const open = kernels.openMatrix.bind(kernels);
      let bytes = 0;
      kernels.openMatrix = (options) => {
        const matrix = open(options);
        bytes += matrix.bytes;
        return matrix;
      };
      const options = { weightMode, dense: "native", kvType: "float16", kvBytes: mib, blockTokens: 16 } as const;
      const backend = await CpuBackend.open(model, {
        ...options,
        threadCount: 1,
        maxRows: 16,
        maxLogitRows: 4,
        kernels,
      });
      const info = model.weights.info("model.embed_tokens.weight");
      const table = (info.dtype === "F32" ? 4 : 2) * info.shape.reduce((product, extent) => product * extent);
      await backend.dispose();
      const { weightBytes } = await planMemory(workerOf({ SPANGATE_WEIGHTS: weightMode }), model, gib);
      expect(weightBytes / (bytes + table)).toBeGreaterThan(0.9);
      expect(weightBytes / (bytes + table)).toBeLessThan(1.15);
    }
  });

  test("an 8B is told by its header alone, in a line", async () => {
    const model = readModel(hollowModel(eight));
    const plan = await planMemory(workerOf(), model, 32 * gib);
    expect(memoryText(plan)).toBe(
      "15.3 GiB for weights (15.3 GiB in files), 4.8 GiB to work with, up to 1.0 GiB for KV, of 31.8 GiB",
    );
    expect(plan.weightBytes / (2 * 8_190_735_360)).toBeCloseTo(1, 1);
    const int8 = await planMemory(workerOf({ SPANGATE_WEIGHTS: "int8" }), model, 32 * gib);
    expect(int8.weightBytes / plan.weightBytes).toBeLessThan(0.6);
    const onnx = await planMemory(workerOf({ SPANGATE_ISA: "avx2" }), model, 64 * gib);
    expect(onnx.weightBytes / plan.weightBytes).toBeGreaterThan(2);
  });

  test("with sparse decoding the pool leaves room for the shadows of K", async () => {
    const model = readModel(hollowModel(eight));
    const whole = await planMemory(workerOf(), model, 32 * gib);
    const memory = whole.weightBytes + whole.workBytes + 256 * mib + 600 * mib;
    const { kvBytes } = await planMemory(workerOf({ SPANGATE_SPARSE: "now" }), model, memory);
    // 66 bytes of shadow for 512 of K and V, for each token and head.
    expect(kvBytes).toBe(Math.floor((600 * 512) / (512 + 66)) * mib);
    const given = { SPANGATE_SPARSE: "now", SPANGATE_KV_BYTES: `${600 * mib}` };
    await expect(planMemory(workerOf(given), model, memory)).rejects.toThrow("SPANGATE_KV_BYTES=531MiB");
  });

  test("a pool that was given no size leaves room for the model", async () => {
    const model = readModel(hollowModel(eight));
    const whole = await planMemory(workerOf(), model, 32 * gib);
    const needed = whole.weightBytes + whole.workBytes + 256 * mib;
    const { kvBytes } = await planMemory(workerOf(), model, needed + 700 * mib);
    expect(kvBytes).toBe(700 * mib);
  });
});

describe("the setting that is named fits", () => {
  const model = readModel(hollowModel(eight));

  /** Plans with more and more memory. @returns the settings that were named, in order */
  async function named(env: Record<string, string>, workerCount: number, sizes: readonly number[]): Promise<string[]> {
    const found: string[] = [];
    for (const memoryBytes of sizes) {
      const error = await planMemory(workerOf(env), model, memoryBytes, workerCount).catch((reason: unknown) => reason);
      if (!(error instanceof WorkerSettingError)) {
        found.push("fits");
        continue;
      }
      const settings = [...error.problem.matchAll(/(SPANGATE_\w+)=(\w+)/g)].map(([, name, value]) => [name, value]);
      found.push(settings.map(([name]) => name).join("+") || "none");
      if (settings.length === 0) {
        expect(error.problem).toEndWith("no setting makes it fit: take a smaller model, or more memory");
        continue;
      }
      const { SPANGATE_DEVICES: devices, ...others } = Object.fromEntries(settings);
      const bytes = /^(\d+)MiB$/.exec(others.SPANGATE_KV_BYTES ?? "")?.[1];
      const given = { ...others, ...(bytes !== undefined && { SPANGATE_KV_BYTES: String(Number(bytes) * mib) }) };
      await planMemory(workerOf({ ...env, ...given }), model, memoryBytes, devices === undefined ? workerCount : 1);
    }
    return found.filter((each, i) => each !== found[i - 1]);
  }

  const upTo = (gibs: number) => Array.from({ length: 2 * gibs }, (_, i) => (i + 1) * (gib / 2));

  test("on the CPU", async () => {
    expect(await named({}, 1, upTo(30))).toEqual(["none", "SPANGATE_WEIGHTS", "fits"]);
    expect(await named({ SPANGATE_WEIGHTS: "int8" }, 1, upTo(20))).toEqual(["none", "fits"]);
    expect(await named({ SPANGATE_KV_BYTES: String(12 * gib) }, 1, upTo(40))).toEqual([
      ...["none", "SPANGATE_WEIGHTS+SPANGATE_KV_BYTES", "SPANGATE_KV_BYTES", "fits"],
    ]);
    expect(await named({}, 2, upTo(50))).toEqual([
      ...["none", "SPANGATE_DEVICES+SPANGATE_WEIGHTS", "SPANGATE_DEVICES", "fits"],
    ]);
  });

  test("on a GPU", async () => {
    const env = { SPANGATE_DEVICE: "cuda:0" };
    expect(await named(env, 1, [8 * gib, 16 * gib, 17 * gib, 18 * gib, 24 * gib, 80 * gib])).toEqual([
      ...["none", "SPANGATE_STEP_TOKENS", "fits"],
    ]);
    const plan = await planMemory(workerOf(env), model, 80 * gib);
    expect(plan.weightBytes / (2 * 8_190_735_360)).toBeCloseTo(1, 2);
    expect(plan.kvBytes).toBe(plan.memoryBytes - plan.weightBytes - plan.workBytes);
    expect(plan.shadowBytes).toBe(0);
  });

  test("on a GPU that keeps shadows of K", async () => {
    const env = { SPANGATE_DEVICE: "cuda:0", SPANGATE_SPARSE: "now" };
    const sizes = Array.from({ length: 80 }, (_, i) => 16 * gib + i * 64 * mib);
    expect(await named(env, 1, sizes)).toEqual(["none", "SPANGATE_STEP_TOKENS", "fits"]);
    const small = { ...env, SPANGATE_STEP_TOKENS: "512" };
    expect(await named(small, 1, sizes)).toEqual(["none", "SPANGATE_SPARSE", "fits"]);
    const plan = await planMemory(workerOf(env), model, 80 * gib);
    const dense = await planMemory(workerOf({ SPANGATE_DEVICE: "cuda:0" }), model, 80 * gib);
    expect(plan.weightBytes).toBe(dense.weightBytes);
    // 66 bytes of shadow for 512 of K and V, for each token and head; what else there is, is scores and lists.
    expect(plan.shadowBytes / plan.kvBytes).toBeCloseTo(66 / 512, 6);
    expect(plan.workBytes - dense.workBytes).toBeWithin(150 * mib, 300 * mib);
    const all = plan.weightBytes + plan.workBytes + plan.kvBytes + plan.shadowBytes;
    expect(all / plan.memoryBytes).toBeCloseTo(1, 9);
    expect(memoryText(plan)).toMatch(/ up to \d+\.\d GiB for KV and \d\.\d GiB for shadows of K, of 80\.0 GiB$/);
  });
});
