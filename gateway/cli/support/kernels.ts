/** Builds the native kernels, and tells the person who waits what is built and how long it took. */
import { buildCpuKernels, KernelBuildError } from "../../../kernels/build.ts";
import { cacheFolder } from "../../../places/places.ts";
import { CommandError } from "./command.ts";

/** @throws CommandError with one sentence when there is no compiler. */
export async function prepareKernels(): Promise<void> {
  const startMs = performance.now();
  let isCompiled = false;
  const onCompile = () => {
    isCompiled = true;
    console.log(`Compiling the native kernels (once; they are kept in ${cacheFolder()}) …`);
  };
  try {
    await buildCpuKernels({ onCompile });
  } catch (error) {
    if (error instanceof KernelBuildError) throw new CommandError(error.message, { cause: error });
    throw error;
  }
  if (isCompiled) console.log(`Native kernels compiled in ${((performance.now() - startMs) / 1_000).toFixed(1)} s.`);
}
