/** Routing by its definition, and layers with experts: a row's bits are its own, and its experts are those of the router. */
import { expect, test } from "bun:test";
import { ExpertLayers } from "../../worker/backend/cpu/expert-layers.ts";
import { Packer } from "../../worker/backend/cpu/packer.ts";
import { Products } from "../../worker/backend/cpu/products.ts";
import { Routes } from "../../worker/backend/cpu/routes.ts";
import { parseModelConfig } from "../../worker/model/config.ts";
import { Weights } from "../../worker/model/weights.ts";
import { openCpuKernels } from "../../worker/native/cpu-kernels.ts";
import { randomTensors, tinyConfig, writeModelFolder } from "../model/folder.ts";
import { firstDifferentBits } from "../native/compare.ts";
import { Random } from "../native/random.ts";
import { testSeed } from "../support/seed.ts";

/** [expert, weight] of one row, by the expert's number. */
function chosenByDefinition(scores: Float32Array, perToken: number, normalised: boolean): [number, number][] {
  const all = Array.from(scores, (score) => Math.exp(score));
  const best = [...all.keys()].sort((a, b) => all[b] - all[a] || a - b).slice(0, perToken);
  const sum = (normalised ? best : [...all.keys()]).reduce((total, expert) => total + all[expert], 0);
  return best.sort((a, b) => a - b).map((expert) => [expert, all[expert] / sum]);
}

test.each([true, false])("rows go to their highest scores, weights normalised: %p", (normalised) => {
  const [rows, count, perToken] = [50, 9, 3];
  const random = new Random(testSeed());
  const scores = random.normals(rows * count);
  // Equal scores: the lower number goes first.
  scores.fill(1, 0, count);
  const routes = new Routes({ count, perToken, normalised }, 64);
  // What an earlier step chose is forgotten.
  routes.choose(random.normals(64 * count), 64);
  routes.choose(scores, rows);
  const found = Array.from({ length: rows }, (): [number, number][] => []);
  for (let expert = 0; expert < count; expert++) {
    const { rows: own, factors } = routes.of(expert);
    for (const [i, row] of own.entries()) found[row].push([expert, factors[i]]);
    expect([...own]).toEqual([...own].sort((a, b) => a - b));
  }
  for (const [row, choices] of found.entries()) {
    const expected = chosenByDefinition(scores.subarray(row * count, (row + 1) * count), perToken, normalised);
    expect(choices.map(([expert]) => expert)).toEqual(expected.map(([expert]) => expert));
    for (const [i, [, weight]] of choices.entries()) expect(weight).toBeCloseTo(expected[i][1], 6);
  }
});

test("a score that is no number sends its row somewhere, and no other row elsewhere", () => {
  const routes = new Routes({ count: 4, perToken: 2, normalised: true }, 2);
  routes.choose(Float32Array.of(Number.NaN, Number.NaN, Number.NaN, Number.NaN, 1, 4, 3, 2), 2);
  const counts = [0, 1, 2, 3].map((expert) => [...routes.of(expert).rows].filter((row) => row === 1).length);
  expect(counts).toEqual([0, 1, 1, 0]);
  expect([0, 1, 2, 3].reduce((sum, expert) => sum + routes.of(expert).count, 0)).toBe(4);
});

const experts = { num_experts: 8, num_experts_per_tok: 3, moe_intermediate_size: 40, norm_topk_prob: true };
const raw = { ...tinyConfig, ...experts, architectures: ["Qwen3MoeForCausalLM"] };

test("a router of another width, and an expert that is missing or one too many, are refused by name", () => {
  const config = parseModelConfig(raw, "config.json");
  const spoiled = (change: (tensors: ReturnType<typeof randomTensors>) => void) => {
    const tensors = randomTensors(raw);
    change(tensors);
    return () => new Weights(writeModelFolder(raw, tensors), config);
  };
  const last = "model.layers.1.mlp.experts.7.up_proj.weight";
  const beyond = "model.layers.1.mlp.experts.8.up_proj.weight";
  const matrix = (rows: number, columns: number) => ({
    shape: [rows, columns],
    data: new Float32Array(rows * columns),
  });
  expect(spoiled((tensors) => tensors.delete(last))).toThrow(`tensor "${last}" is missing`);
  expect(spoiled((tensors) => tensors.set(beyond, matrix(40, 64)))).toThrow(`tensor "${beyond}" does not belong`);
  const router = spoiled((tensors) => tensors.set("model.layers.0.mlp.gate.weight", matrix(9, 64)));
  expect(router).toThrow("is [9,64], expected [8,64]");
});

test("the bits are the same however many experts a native call has, and where one is too much for a call", async () => {
  const config = parseModelConfig(raw, "config.json");
  const kernels = await openCpuKernels({ threadCount: 2 });
  const parts = { config, weights: new Weights(writeModelFolder(raw), config), weightMode: "int8", kernels } as const;
  const both = { ...parts, threadCount: 2, maxRows: 40 };
  const before = new Random(testSeed()).normals(40 * config.hiddenSize);
  // An expert's gates and ups are 96 x 64 weights, times some 15 rows: each too much, some together, all together.
  const [each, some, all] = await Promise.all(
    [1, 200_000, undefined].map(async (mostWork) => {
      const layers = ExpertLayers.open(both, new Packer(both), new Products(), mostWork);
      const residual = before.slice();
      await layers?.run(1, residual, 40);
      layers?.close();
      return residual;
    }),
  );
  expect(firstDifferentBits(all, before)).toBe(0);
  expect(firstDifferentBits(each, all)).toBe(-1);
  expect(firstDifferentBits(some, all)).toBe(-1);
  kernels.close();
});

test("a row's bits are the same alone and beside others", async () => {
  const config = parseModelConfig(raw, "config.json");
  const kernels = await openCpuKernels({ threadCount: 2 });
  for (const weightMode of ["float32", "int8"] as const) {
    const parts = { config, weights: new Weights(writeModelFolder(raw), config), weightMode, kernels };
    const both = { ...parts, threadCount: 2, maxRows: 40 };
    const layers = ExpertLayers.open(both, new Packer(both), new Products());
    const before = new Random(testSeed()).normals(40 * config.hiddenSize);
    const together = before.slice();
    await layers?.run(1, together, 40);
    expect(firstDifferentBits(together, before)).toBe(0);
    for (const row of [0, 7, 39]) {
      const alone = before.slice(row * config.hiddenSize, (row + 1) * config.hiddenSize);
      await layers?.run(1, alone, 1);
      const same = together.slice(row * config.hiddenSize, (row + 1) * config.hiddenSize);
      expect(firstDifferentBits(alone, same)).toBe(-1);
    }
    layers?.close();
  }
  kernels.close();
});
