/** The kernels of rows that choose, run as code of the host, against plain loops: what test/gpu/sparse.ts asks of a device. */
import { describe, expect, test } from "bun:test";
import { KernelTwin } from "../gpu/kernel-twin.ts";
import { checkSparse, sparseCases } from "../gpu/sparse-kernels.ts";
import { Random } from "../native/random.ts";
import { testSeed } from "../support/seed.ts";
import { HostCudaDevice } from "./host-cuda.ts";

describe.each([128, 64, 96])("heads of %d", (headDim) => {
  test.each(sparseCases(headDim).map((given) => [JSON.stringify(given), given] as const))("%s", async (_, given) => {
    const device = new HostCudaDevice(headDim);
    const twin = new KernelTwin(device, 64 << 20, headDim);
    expect(await checkSparse(device, twin, new Random(testSeed()), given)).toContain("out");
  });
});
