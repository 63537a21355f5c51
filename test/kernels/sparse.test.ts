/** The kernels of rows that choose, run as code of the host, against plain loops: what test/gpu/sparse.ts asks of a device. */
import { expect, setDefaultTimeout, test } from "bun:test";
import { KernelTwin } from "../gpu/kernel-twin.ts";
import { checkSparse, type SparseCase, sparseCases } from "../gpu/sparse-kernels.ts";
import { Random } from "../native/random.ts";
import { isLong } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";
import { HostCudaDevice } from "./host-cuda.ts";

// A list of thousands takes some seconds, and twice that on a machine that has other things to do.
setDefaultTimeout(60_000);

/**
 * A candidate costs the host some milliseconds a head. Lists of thousands, which a device cuts into many units, are one
 * case of the short form; in its other cases rows have hundreds of candidates, in as many segments, and the long form
 * has thousands for every size of a head.
 */
function shortCases(headDim: number): SparseCase[] {
  const shape = { headDim, rotaryDim: headDim - 16, queryHeads: 4, kvHeads: 2, blockTokens: 64 };
  const rows: SparseCase["rows"] = [
    [[37, 260, 5, 16], 64, 79],
    [[3], 9, 1],
    [[90, 40], 500, 12],
  ];
  return [{ ...shape, rows }];
}

const [oneRow, ...usual] = sparseCases(128);
const shorter = [...shortCases(64), ...shortCases(96), ...shortCases(128)];
const cases = isLong
  ? [oneRow, ...usual, sparseCases(64)[1], sparseCases(96)[1]]
  : [{ ...oneRow, rows: [[[520], 300, 70]] as const }, ...usual.slice(1), ...shorter];

test.each(cases.map((given) => [JSON.stringify(given), given] as const))("%s", async (_, given) => {
  const device = new HostCudaDevice(given.headDim);
  const twin = new KernelTwin(device, isLong ? 64 << 20 : 16 << 20, given.headDim);
  expect(await checkSparse(device, twin, new Random(testSeed()), given, [1])).toContain("out");
});
