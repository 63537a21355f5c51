/** The backend's launches on an emulated device: golden cases through engine and backend, and what a step puts in. */
import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { GoldenModel, goldenSchema } from "../../golden/golden-model.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const goldenFolder = join(import.meta.dir, "../../golden");
const folders = readdirSync(goldenFolder, { withFileTypes: true }).filter((entry) => entry.isDirectory());

/** Where the reference does not say how far bfloat16 is off. */
const usualError = 0.08;

async function openEmulated(folder: string, graphs: boolean) {
  const model = loadModel(folder, numericMode);
  const device = new EmulatedDevice(model.config.headDim);
  const options = { kvBytes: 4 << 20, blockTokens: 16, maxRows: 256, maxLogitRows: 8, reserveBytes: 0, graphs };
  return { device, model, backend: await CudaBackend.open(device, model, options) };
}

describe.each(folders.map((entry) => entry.name))("%s", (name) => {
  test("a prompt and a span query are as far off as bfloat16 is", async () => {
    const folder = join(goldenFolder, name);
    const { cases } = goldenSchema.parse(JSON.parse(readFileSync(join(folder, "golden.json"), "utf8")));
    const chosen = ["causal", "span"].flatMap((kind) =>
      cases.filter((goldenCase) => goldenCase.kind === kind).slice(-1),
    );
    const { device, model, backend } = await openEmulated(folder, true);
    const golden = new GoldenModel(backend, model.digest);
    for (const goldenCase of chosen) {
      const { withinBfloat16, maxAbsolute } = await golden.run(goldenCase);
      expect(withinBfloat16 ?? maxAbsolute < usualError).toBe(true);
    }
    expect(device.captures).toBe(1);
    expect(device.graphLaunches).toBeGreaterThan(10);
    await golden.dispose();
    expect(device.closed).toBe(true);
  });
});
