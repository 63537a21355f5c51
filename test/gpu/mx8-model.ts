/** A model of 8B in both kinds of KV: how many tokens a pool holds, what a step of long contexts takes, and a prompt. */
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { KvElement } from "../../worker/backend/cuda/pool.ts";
import { BenchEngine, median } from "./bench-engine.ts";
import { configOf, openRandomModel } from "./models.ts";
import { type GpuOptions, openTestDevice } from "./options.ts";
import { assertThat, type Report } from "./report.ts";

const config = configOf("Qwen3-8B");
const stepTokens = 8_192;
const kvBytes = 64e9;
const decodes = [
  [1, 32_768],
  [32, 8_192],
] as const;

async function decodeMs(backend: CudaBackend, device: CudaDevice, rows: number, tokens: number) {
  const engine = new BenchEngine(backend, device, stepTokens);
  for (let row = 0; row < rows; row++) engine.submit([], engine.randomTokens(tokens), 60, false);
  const steps = (await engine.settle()).slice(-50, -8);
  return { wallMs: median(steps.map(({ wallMs }) => wallMs)), deviceMs: median(steps.map((step) => step.deviceMs)) };
}

async function promptMs(backend: CudaBackend, device: CudaDevice, tokens: number): Promise<number> {
  const engine = new BenchEngine(backend, device, stepTokens);
  const times: number[] = [];
  for (let round = 0; round < 4; round++) {
    engine.submit([], engine.randomTokens(tokens), 1, false);
    times.push((await engine.settle()).reduce((sum, { wallMs }) => sum + wallMs, 0));
  }
  return median(times.slice(1));
}

export async function benchKvElements(report: Report, options: GpuOptions): Promise<string> {
  const figures = new Map<string, number>();
  for (const kvElement of ["bfloat16", "mx8"] as const satisfies readonly KvElement[]) {
    const device = await openTestDevice(config.headDim, options, kvElement);
    const backend = await openRandomModel(device, config, { kvBytes, maxRows: stepTokens, kvElement });
    const note = (name: string, value: number): void => {
      report.figure(`${name}.${kvElement}`, value);
      figures.set(`${name} ${kvElement}`, value);
    };
    note("poolTokens", backend.shape.blockCount * backend.shape.blockTokens);
    for (const [rows, tokens] of decodes) {
      const { wallMs, deviceMs } = await decodeMs(backend, device, rows, tokens);
      note(`step${rows}x${tokens}.wallMs`, wallMs);
      note(`step${rows}x${tokens}.deviceMs`, deviceMs);
    }
    note("prompt8192Ms", await promptMs(backend, device, 8_192));
    note("prompt32768Ms", await promptMs(backend, device, 32_768));
    await device.settled();
    await backend.dispose();
  }
  const tokens = (figures.get("poolTokens mx8") ?? 0) / (figures.get("poolTokens bfloat16") ?? 1);
  assertThat(tokens >= 1.9, `a pool holds ${tokens} times the tokens`);
  return [...figures].map(([name, value]) => `${name} ${value.toPrecision(4)}`).join(", ");
}
