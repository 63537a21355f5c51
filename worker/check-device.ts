/**
 * A program that says whether CUDA devices can be served from, without taking memory of them: `check-device.ts 0 1`. It
 * writes one sentence and exits with 1 when one cannot. A process of its own keeps the driver out of the gateway.
 */
import { Nvrtc } from "./native/cuda/compile/nvrtc.ts";
import { assertCapability } from "./native/cuda/context.ts";
import { CublasLtLibrary } from "./native/cuda/cublaslt-library.ts";
import { CudaDriver, readDeviceProperties } from "./native/cuda/driver.ts";

try {
  const driver = new CudaDriver();
  for (const index of process.argv.slice(2)) assertCapability(readDeviceProperties(driver, Number(index)));
  new Nvrtc(driver.version);
  new CublasLtLibrary(driver.version);
} catch (error) {
  process.stdout.write(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
