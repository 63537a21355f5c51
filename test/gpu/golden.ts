/**
 * The golden models on the device, through engine and backend: `bun test/gpu/golden.ts [folder of NVIDIA's libraries]...`.
 * The bar of a case is what transformers is off by in bfloat16, times 2 (test/golden); beside it stands what the same
 * steps are off by in plain loops (test/backend/cuda).
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../worker/backend/cuda/cuda-backend.ts";
import type { ComputeDevice } from "../../worker/backend/cuda/device.ts";
import { type LoadedModel, loadModel } from "../../worker/model/load.ts";
import { EmulatedDevice } from "../backend/cuda/emulated-device.ts";
import { GoldenModel, goldenSchema } from "../golden/golden-model.ts";
import { gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";

const options = gpuOptions();
const report = new Report();
const root = "test/golden";
const folders = readdirSync(root, { withFileTypes: true }).filter((entry) => entry.isDirectory());

async function open(device: ComputeDevice, model: LoadedModel, graphs: boolean): Promise<GoldenModel> {
  const shared = { kvBytes: 4 << 20, blockTokens: 16, maxRows: 512, maxLogitRows: 8, reserveBytes: 0 };
  return new GoldenModel(await CudaBackend.open(device, model, { ...shared, graphs }), model.digest);
}

for (const { name } of folders) {
  const folder = join(root, name);
  const { cases } = goldenSchema.parse(JSON.parse(readFileSync(join(folder, "golden.json"), "utf8")));
  const model = loadModel(folder, numericMode);
  const { headDim } = model.config;
  for (const graphs of [true, false]) {
    await report.check(`${name}${graphs ? "" : ", plain launches"}`, async () => {
      const emulated = await open(new EmulatedDevice(headDim), model, graphs);
      const device = await open(await openTestDevice(headDim, options), model, graphs);
      const lines: string[] = [];
      for (const goldenCase of cases) {
        const [bound, result] = [await emulated.run(goldenCase), await device.run(goldenCase)];
        const words = `${result.maxAbsolute.toFixed(4)} (bfloat16 ${bound.maxAbsolute.toFixed(4)})`;
        lines.push(`${words} greedy ${result.greedyMatches}/${result.greedyLength}, ${bound.greedyMatches}`);
        assertThat(
          result.withinBfloat16 ?? result.maxAbsolute <= 2 * bound.maxAbsolute,
          `${goldenCase.kind}: off by ${words}, greedy ${result.greedyMatches}`,
        );
      }
      await device.dispose();
      return lines.join("; ");
    });
  }
}
process.exit(await report.end(resultPath(options, "golden.json")));
