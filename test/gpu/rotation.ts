/**
 * What it costs a decode step that q is rotated anew for each document: one request over 5 prepared documents of 4,096
 * tokens and a question of 64, against the same with all documents read as if they stood at the same place:
 * `bun test/gpu/rotation.ts [folder of NVIDIA's libraries]...` from the project's root; random weights in the shape of
 * Qwen3-8B. Writes $OUT/rotation.json.
 */
import { BenchEngine, median } from "./bench-engine.ts";
import { configOf, openRandomModel } from "./models.ts";
import { gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { Report } from "./report.ts";

const documentCount = 5;
const documentTokens = 4_096;
const questionTokens = 64;
const outputTokens = 128;
const rounds = 6;
const stepTokens = 8_192;

const options = gpuOptions();
const report = new Report();

await report.check("decode over 5 documents of 4,096", async () => {
  const device = await openTestDevice(128, options);
  const backend = await openRandomModel(device, configOf("Qwen3-8B"), { kvBytes: 20e9, maxRows: stepTokens });
  const engine = new BenchEngine(backend, device, stepTokens);
  const documents = Array.from({ length: documentCount }, () => engine.randomTokens(documentTokens));
  const stepMs = { rotated: [] as number[], still: [] as number[] };
  for (let round = 0; round <= rounds; round++) {
    for (const kind of ["rotated", "still"] as const) {
      engine.submit(documents, engine.randomTokens(questionTokens), outputTokens, true, kind === "rotated");
      const steps = (await engine.settle()).slice(-outputTokens + 16);
      // The first round computes the documents and warms everything up.
      if (round > 0) for (const step of steps) stepMs[kind].push(step.deviceMs);
    }
  }
  await backend.dispose();
  const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [rotated, still] = [median(stepMs.rotated), median(stepMs.still)];
  return [
    report.figure("turnedMs", rotated),
    report.figure("stillMs", still),
    report.figure("turnedOverStill", rotated / still),
    report.figure("meanTurnedOverStill", mean(stepMs.rotated) / mean(stepMs.still)),
  ].join(", ");
});
process.exitCode = await report.end(resultPath(options, "rotation.json"));
