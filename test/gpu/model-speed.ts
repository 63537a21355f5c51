/** How long a model's decode steps and prompts take on the device. */
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { BenchEngine, median } from "./bench-engine.ts";

const contextTokens = 1_024;
export const prefillTokens = 8_192;

/** Of a whole step, and of that on the device alone. */
export interface StepSpan {
  readonly wallMs: number;
  readonly deviceMs: number;
}

export const spanText = ({ wallMs, deviceMs }: StepSpan): string =>
  `${wallMs.toFixed(3)} ms (device ${deviceMs.toFixed(3)})`;

/** Median of 48 steps of so many requests at a context of 1,024 tokens. */
export async function decodeMs(backend: CudaBackend, device: CudaDevice, batch: number): Promise<StepSpan> {
  const engine = new BenchEngine(backend, device, prefillTokens);
  for (let i = 0; i < batch; i++) engine.submit([], engine.randomTokens(contextTokens - 32), 64, false);
  const steps = (await engine.settle()).slice(-56, -8);
  return {
    wallMs: median(steps.map(({ wallMs }) => wallMs)),
    deviceMs: median(steps.map(({ deviceMs }) => deviceMs)),
  };
}

/** Median of three prompts of 8,192 tokens. */
export async function prefillMs(backend: CudaBackend, device: CudaDevice): Promise<number> {
  const engine = new BenchEngine(backend, device, prefillTokens);
  const times: number[] = [];
  for (let round = 0; round < 4; round++) {
    engine.submit([], engine.randomTokens(prefillTokens), 1, false);
    times.push((await engine.settle()).reduce((sum, { wallMs }) => sum + wallMs, 0));
  }
  return median(times.slice(1));
}
