/** The kernels of one instruction set, a layer's attention with them, and how far that lies from the slow twin's. */
import { afterAll, test } from "bun:test";
import { CpuKernels, type Isa, type KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { greatestExcess, outBounds, toFloats, withAbsoluteValues } from "./compare.ts";
import type { Random } from "./random.ts";
import { elementsOf, openWorld, type World } from "./world.ts";

/** The instruction sets that attention has kernels of. */
export const attentionIsas = ["amx", "avx512", "avx2"] as const;

/** Of 7 heads and more that share a KV head AMX attends for generated rows, too. */
export function ownHeads(isa: Isa, random: Random): Partial<KvPoolOptions> {
  if (isa !== "amx") return {};
  const kvHeads = random.integer(1, 2);
  return { kvHeads, queryHeads: kvHeads * random.pick([1, 2, 3, 7, 8, 16, 17]) };
}

/** Whether AMX attends for any of the rows. */
function isByTiles({ isa }: CpuKernels, { options, pieces }: World): boolean {
  return isa === "amx" && (options.queryHeads / options.kvHeads >= 7 || pieces.some((piece) => !piece.isGenerated));
}

/** To be called in a `describe`, whose end closes the kernels. `testHere` skips where this CPU lacks the instruction set. */
export function kernelsOf(libraryPath: string, isa: Isa, threadCount: number) {
  let kernels: CpuKernels | undefined;
  try {
    kernels = new CpuKernels(libraryPath, { isa, threadCount });
  } catch {
    // Reported as skipped: this CPU lacks the instruction set.
  }
  afterAll(() => kernels?.close());
  const here = (): CpuKernels => {
    if (kernels === undefined) throw new Error("skipped tests do not run");
    return kernels;
  };
  return { testHere: test.skipIf(kernels === undefined), here };
}

/** Writes K and V of the step's rows in layer 1 and attends. Rows that nothing writes to stay NaN. */
export function runLayer(kernels: CpuKernels, world: World) {
  const pool = openWorld(kernels, world);
  const out = new Float32Array(world.batch.positions.length * pool.outWidth).fill(Number.NaN);
  pool.attention(1, world.qkv, out, world.norms);
  const elements = elementsOf(pool).slice();
  pool.close();
  return { out, elements };
}

/** How far `out` of `kernels` lies from the oracle's over the same K and V, in units of what rounding explains. */
export function excessOf(
  oracle: CpuKernels,
  kernels: CpuKernels,
  world: World,
  out: Float32Array,
  elements: Float32Array | Uint16Array,
) {
  const expectedOut = (kv: typeof elements): Float32Array => {
    const pool = openWorld(oracle, { ...world, kv });
    const expected = new Float32Array(out.length).fill(Number.NaN);
    pool.attend(1, world.qkv, expected, world.norms?.q);
    pool.close();
    return expected;
  };
  const absolute = expectedOut(withAbsoluteValues(world, elements));
  const bounds = outBounds(world, toFloats(elements), absolute, isByTiles(kernels, world));
  return greatestExcess(out, expectedOut(elements), bounds);
}
