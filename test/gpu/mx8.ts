/**
 * KV in mx8 on the device: `bun test/gpu/mx8.ts [part]... [folder of NVIDIA's libraries]...` from the project's root,
 * parts: kernels, moves, attention, model. The kernels that read it must give the bits that they give over a bfloat16
 * pool of the same values, and those that write it what plain loops do; then times beside bfloat16. Writes
 * $OUT/gpu-mx8.json.
 */
import { Random } from "../native/random.ts";
import { AttentionDevice } from "./attention-device.ts";
import { configOf } from "./models.ts";
import { movesBlocks } from "./moved-blocks.ts";
import { checkReads, mx8Cases, timeReads } from "./mx8-attention.ts";
import { benchKvElements } from "./mx8-model.ts";
import { checkStores } from "./mx8-rows.ts";
import { freshSeed, gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { Report } from "./report.ts";

const options = gpuOptions();
const report = new Report();
const isWanted = (part: string): boolean => options.parts.length === 0 || options.parts.includes(part);
const seed = freshSeed();
const random = new Random(seed);
console.log(`seed ${seed}`);

if (isWanted("kernels") || isWanted("attention")) {
  const device = new AttentionDevice(options.libraryFolders);
  if (isWanted("kernels")) {
    for (const [name, check] of mx8Cases(random)) {
      await report.check(`reading mx8, ${name}`, () => checkReads(device, random, check));
      device.clear();
    }
  }
  if (isWanted("attention")) await report.check("attention's times", () => timeReads(device, random, report));
  device.clear();
}
for (const headDim of [64, 128]) {
  if (!isWanted("moves")) continue;
  const device = await openTestDevice(headDim, options, "mx8");
  for (const rotaryDim of [0, headDim / 2, headDim]) {
    await report.check(`storing mx8, heads of ${headDim}, ${rotaryDim} rotated`, () =>
      checkStores(device, random, headDim, rotaryDim),
    );
  }
  await report.check(`blocks in mx8 go down and come up, heads of ${headDim}`, () => {
    const config = { ...configOf("Qwen3-8B"), headDim, layerCount: 5 };
    return movesBlocks(device, config, { seed, rounds: 20, kvElement: "mx8" });
  });
  await device.settled();
  device.close();
}
if (isWanted("model")) await report.check("a model of 8B", () => benchKvElements(report, options));
process.exitCode = await report.end(resultPath(options, "gpu-mx8.json"));
