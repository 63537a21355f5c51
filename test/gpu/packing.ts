/**
 * Time per output token of 64 requests at once, each over some of 16 shared documents in an order of its own, with rows
 * that read the same KV packed and not: `bun test/gpu/packing.ts [folder of NVIDIA's libraries]...` from the project's
 * root; random weights in the shape of Qwen3-8B. Writes $OUT/packing.json.
 */
import { Choices } from "../sim/random.ts";
import { BenchEngine, median, type StepTimes } from "./bench-engine.ts";
import { configOf, openRandomModel } from "./models.ts";
import { gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { Report } from "./report.ts";

const model = "Qwen3-8B";
const requestCount = 64;
const documentCount = 16;
const documentTokens = 2_048;
const questionTokens = 64;
const outputTokens = 64;
const stepTokens = 8_192;
/** Documents that each request reads. */
const readCounts = [4, 16] as const;

const options = gpuOptions();
const report = new Report();

async function stepTimes(packing: boolean, readCount: number): Promise<{ wallMs: number; deviceMs: number }> {
  const device = await openTestDevice(128, options);
  const backend = await openRandomModel(device, configOf(model), { kvBytes: 40e9, maxRows: stepTokens, packing });
  const engine = new BenchEngine(backend, device, stepTokens);
  const choices = new Choices(1);
  const documents = Array.from({ length: documentCount }, () => engine.randomTokens(documentTokens));
  for (let i = 0; i < requestCount; i++) {
    const left = [...documents];
    const own = Array.from({ length: readCount }, () => left.splice(choices.int(0, left.length - 1), 1)[0]);
    engine.submit(own, engine.randomTokens(questionTokens), outputTokens, true);
  }
  // The last requests begin late: in these steps all of them decode.
  const steps = (await engine.settle()).slice(-outputTokens + 16, -16);
  const of = (read: (step: StepTimes) => number) => median(steps.map(read));
  const times = { wallMs: of((step) => step.wallMs), deviceMs: of((step) => step.deviceMs) };
  await backend.dispose();
  return times;
}

for (const readCount of readCounts) {
  await report.check(`${requestCount} requests over ${readCount} of ${documentCount} documents`, async () => {
    const packed = await stepTimes(true, readCount);
    const plain = await stepTimes(false, readCount);
    const name = (what: string) => `read${readCount}.${what}`;
    return [
      report.figure(name("packedWallMs"), packed.wallMs),
      report.figure(name("packedDeviceMs"), packed.deviceMs),
      report.figure(name("plainWallMs"), plain.wallMs),
      report.figure(name("plainDeviceMs"), plain.deviceMs),
      report.figure(name("gain"), plain.wallMs / packed.wallMs),
    ].join(", ");
  });
}
process.exitCode = await report.end(resultPath(options, "packing.json"));
