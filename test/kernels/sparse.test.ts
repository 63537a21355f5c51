/** The kernels of rows that choose, run as code of the host, against plain loops: what test/gpu/sparse.ts asks of a device. */
import { expect, test } from "bun:test";
import { KernelTwin } from "../gpu/kernel-twin.ts";
import { checkSparse, sparseCases } from "../gpu/sparse-kernels.ts";
import { Random } from "../native/random.ts";
import { testSeed } from "../support/seed.ts";
import { HostCudaDevice } from "./host-cuda.ts";

/** All cases for the usual heads; of others one with several rows and segments. */
const cases = [...sparseCases(128), sparseCases(64)[1], sparseCases(96)[1]];

test.each(cases.map((given) => [JSON.stringify(given), given] as const))("%s", async (_, given) => {
  const device = new HostCudaDevice(given.headDim);
  const twin = new KernelTwin(device, 64 << 20, given.headDim);
  expect(await checkSparse(device, twin, new Random(testSeed()), given)).toContain("out");
});
