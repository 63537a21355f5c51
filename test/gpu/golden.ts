/**
 * The golden models on the device, through engine and backend: `bun test/gpu/golden.ts [name]... [folder of NVIDIA's
 * libraries]...`.
 * The bar of a case is what transformers is off by in bfloat16 (test/golden), or the same steps in plain loops
 * (test/backend/cuda) where that is not known, times 2. Of a model with experts some cases may be off by more: where two
 * scores of a small random router nearly tie, rounding sends a row to another expert.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../worker/backend/cuda/cuda-backend.ts";
import type { ComputeDevice } from "../../worker/backend/cuda/device/device.ts";
import { type LoadedModel, loadModel } from "../../worker/model/load.ts";
import { EmulatedDevice } from "../backend/cuda/emulated-device.ts";
import { type CaseResult, type GoldenCase, GoldenModel, goldenSchema } from "../golden/golden-model.ts";
import { gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";

const options = gpuOptions();
const report = new Report();
const root = "test/golden";
const { parts } = options;
const folders = readdirSync(root, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .filter(({ name }) => parts.length === 0 || parts.includes(name));

async function open(device: ComputeDevice, model: LoadedModel, graphs: boolean): Promise<GoldenModel> {
  const shared = { kvBytes: 4 << 20, blockTokens: 16, maxRows: 512, maxLogitRows: 8, reserveBytes: 0 };
  return new GoldenModel(await CudaBackend.open(device, model, { ...shared, graphs }), model.digest);
}

for (const { name } of folders) {
  const folder = join(root, name);
  const { cases } = goldenSchema.parse(JSON.parse(readFileSync(join(folder, "golden.json"), "utf8")));
  const model = loadModel(folder, numericMode);
  const { headDim, scoreCap } = model.config;
  const loops = await open(new EmulatedDevice(headDim, 256 << 20, "bfloat16", scoreCap), model, false);
  const bounds = new Map<GoldenCase, CaseResult>();
  // Where the reference does not say what bfloat16 is off by, the plain loops do.
  for (const each of cases) if (each.bf16_errors === undefined) bounds.set(each, await loops.run(each));
  for (const graphs of [true, false]) {
    await report.check(`${name}${graphs ? "" : ", plain launches"}`, async () => {
      const device = await open(await openTestDevice(headDim, options, "bfloat16", scoreCap), model, graphs);
      const [lines, beyond]: string[][] = [[], []];
      for (const goldenCase of cases) {
        const result = await device.run(goldenCase);
        const bound = bounds.get(goldenCase)?.maxAbsolute ?? Math.max(...(goldenCase.bf16_errors ?? []));
        const words = `${result.maxAbsolute.toFixed(4)} (bfloat16 ${bound.toFixed(4)})`;
        lines.push(`${words} greedy ${result.greedyMatches}/${result.greedyLength}`);
        if (!(result.withinBfloat16 ?? result.maxAbsolute <= 2 * bound)) beyond.push(`${goldenCase.kind}: ${words}`);
      }
      await device.dispose();
      const most = model.config.experts === undefined ? 0 : cases.length / 3;
      assertThat(beyond.length <= most, `off by ${beyond.join("; ")}`);
      return lines.join("; ");
    });
  }
  await loops.dispose();
}
process.exit(await report.end(resultPath(options, "golden.json")));
