/**
 * A program that says whether CUDA devices can be served from, without taking memory of them: `check-device.ts 0 1`. It
 * writes the bytes of memory of each, or one sentence and exits with 1 when one cannot. A process of its own keeps the driver out of the gateway.
 */
import { Nvrtc } from "./native/cuda/compile/nvrtc.ts";
import { assertCapability } from "./native/cuda/context.ts";
import { CublasLtLibrary } from "./native/cuda/cublaslt-library.ts";
import { CudaDriver, readDeviceProperties } from "./native/cuda/driver.ts";

try {
  const driver = new CudaDriver();
  const memory = process.argv.slice(2).map((index) => {
    const device = readDeviceProperties(driver, Number(index));
    assertCapability(device);
    const bytes = new BigUint64Array(1);
    driver.call("cuDeviceTotalMem_v2", bytes, device.handle);
    return Number(bytes[0]);
  });
  new Nvrtc(driver.version);
  new CublasLtLibrary(driver.version);
  process.stdout.write(JSON.stringify(memory));
} catch (error) {
  process.stdout.write(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
