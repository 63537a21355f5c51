/** What the device can do at best, measured in the same run: copying, and bfloat16 matrix products. */
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { roundToBfloat16 } from "../../worker/backend/cuda/weights/tensor-reader.ts";
import { CudaEvent } from "../../worker/native/cuda/event.ts";
import { median } from "./bench-engine.ts";
import { copyOnDevice, millisecondsBetween } from "./driver-calls.ts";

export interface Ceilings {
  /** Bytes read plus bytes written, a second. */
  readonly copyBytesPerSecond: number;
  readonly matrixFlopPerSecond: number;
}

const copyBytes = 2 ** 32;
const size = 8_192;

export function measureCeilings(device: CudaDevice): Ceilings {
  const memory = device.allocate("ceilings", 2 * copyBytes);
  const [start, end] = [0, 1].map(() => new CudaEvent(device.context, { timing: true })) as [CudaEvent, CudaEvent];
  const seconds = (run: () => void): number => {
    run();
    const times = Array.from({ length: 7 }, () => {
      device.stream.record(start);
      run();
      device.stream.record(end);
      return millisecondsBetween(start, end) / 1_000;
    });
    return median(times);
  };
  const [first, second] = [memory.slice(0, copyBytes), memory.slice(copyBytes, copyBytes)];
  const copySeconds = seconds(() => copyOnDevice(device.stream, second, first));
  const matrix = size * size * 2;
  const random = new Uint16Array(device.allocateHost("random", matrix).buffer);
  roundToBfloat16(
    Float32Array.from({ length: size * size }, () => Math.random() - 0.5),
    1,
    random,
  );
  const [a, b, c] = [0, 1, 2].map((i) => memory.slice(i * matrix, matrix));
  device.copyIn(a, random);
  device.copyIn(b, random);
  const shape = { rows: size, inWidth: size, outWidth: size, outputType: "bfloat16" } as const;
  const productSeconds = seconds(() => device.matmul(shape, { input: a, weights: b, output: c }));
  return { copyBytesPerSecond: (2 * copyBytes) / copySeconds, matrixFlopPerSecond: (2 * size ** 3) / productSeconds };
}
