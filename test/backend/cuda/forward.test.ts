/** The backend's launches on an emulated device: golden cases through engine and backend, and what a step puts in. */
import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import { llamaNorms } from "../../../worker/model/family.ts";
import { loadModel, readModel } from "../../../worker/model/load.ts";
import { GoldenModel, goldenSchema } from "../../golden/golden-model.ts";
import { EmulatedDevice } from "./emulated-device.ts";
import { rowBatch } from "./row-batch.ts";

const goldenFolder = join(import.meta.dir, "../../golden");
const folders = readdirSync(goldenFolder, { withFileTypes: true }).filter((entry) => entry.isDirectory());

/** Where the reference does not say how far bfloat16 is off. */
const usualError = 0.08;
const roundingError = 0.02;
/** Of six cases those in which a row of a small random model may go to other experts, since scores nearly tie in bfloat16. */
const mostOtherExperts = 2;

async function openEmulated(folder: string, graphs: boolean) {
  const model = loadModel(folder, numericMode);
  const { headDim, scoreCap } = model.config;
  const device = new EmulatedDevice(headDim, 256 << 20, "bfloat16", scoreCap);
  const options = { kvBytes: 4 << 20, blockTokens: 16, maxRows: 256, maxLogitRows: 8, reserveBytes: 0, graphs };
  return { device, model, backend: await CudaBackend.open(device, model, options) };
}

/** Logits of four rows, one after the other, and what the last one launched. */
async function runRows(folder: string, graphs: boolean) {
  const { device, backend } = await openEmulated(folder, graphs);
  let logits = new Float32Array(0);
  for (const [position, id] of [7, 3, 11, 5].entries()) {
    device.log.length = 0;
    logits = (await backend.forward(rowBatch(id, position))).slice();
  }
  await backend.dispose();
  return { logits, names: device.log };
}

const norm = (values: Float32Array) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0));

describe.each(folders.map((entry) => entry.name))("%s", (name) => {
  test("a prompt and a span query are as far off as bfloat16 is", async () => {
    const folder = join(goldenFolder, name);
    const { cases } = goldenSchema.parse(JSON.parse(readFileSync(join(folder, "golden.json"), "utf8")));
    const { device, model, backend } = await openEmulated(folder, true);
    const hasExperts = model.config.experts !== undefined;
    const chosen = hasExperts
      ? cases
      : ["causal", "span"].flatMap((kind) => cases.findLast((each) => each.kind === kind) ?? []);
    const golden = new GoldenModel(backend, model.digest);
    let beyond = 0;
    for (const goldenCase of chosen) {
      const { withinBfloat16, maxAbsolute } = await golden.run(goldenCase);
      if (!(withinBfloat16 ?? maxAbsolute < usualError)) beyond += 1;
    }
    expect(beyond).toBeLessThanOrEqual(hasExperts ? mostOtherExperts : 0);
    expect(device.captures).toBe(1);
    expect(device.graphLaunches).toBeGreaterThan(10);
    await golden.dispose();
    expect(device.closed).toBe(true);
  });

  test("a step of one row, with sums and norms inside its products, gives what any step gives", async () => {
    const folder = join(goldenFolder, name);
    const [fused, plain] = [await runRows(folder, true), await runRows(folder, false)];
    const difference = norm(fused.logits.map((x, i) => x - plain.logits[i])) / norm(plain.logits);
    // Rows are rounded to bfloat16, with and without the factor of their norm, at a dozen places of each layer.
    expect(difference).toBeLessThan(roundingError);
    const { layerNorms, layerCount, normsAddOne, outputBias, experts } = readModel(folder).config;
    const isFused = layerNorms === llamaNorms && !normsAddOne && !outputBias;
    expect(plain.names.includes("activate")).toBe(experts === undefined);
    expect(fused.names.includes("activate")).toBe(!isFused && experts === undefined);
    // What experts give is added up with the norm behind them.
    const norms = isFused ? 1 + (experts?.layers.filter((has) => has).length ?? 0) : 2 * layerCount + 1;
    expect(fused.names.filter((launch) => launch === "add_rmsnorm")).toHaveLength(norms);
  });
});
