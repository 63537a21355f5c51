/** Every golden folder with our own products in place of onnxruntime's: on the best instruction set; `--all`: on each. */
import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { buildCpuKernels } from "../../kernels/build.ts";
import { CpuKernels, type Isa } from "../../worker/native/cpu-kernels.ts";
import { isLong } from "../support/effort.ts";
import { openOnCpu } from "./cpu-model.ts";
import { goldenSchema } from "./golden-model.ts";

const libraryPath = await buildCpuKernels();
const folders = readdirSync(import.meta.dir, { withFileTypes: true }).filter((entry) => entry.isDirectory());
const isas: readonly Isa[] = isLong ? ["amx", "avx512", "avx2"] : ["auto"];

function isHere(isa: Isa): boolean {
  try {
    new CpuKernels(libraryPath, { isa, threadCount: 1 }).close();
    return true;
  } catch {
    return false;
  }
}

describe.each(isas)("%s", (isa) => {
  test.skipIf(!isHere(isa)).each(folders.map((entry) => entry.name))("%s", async (name) => {
    const folder = join(import.meta.dir, name);
    const { cases } = goldenSchema.parse(JSON.parse(readFileSync(join(folder, "golden.json"), "utf8")));
    const model = await openOnCpu(folder, "float32", { dense: "native", isa });
    for (const goldenCase of cases) {
      const result = await model.run(goldenCase);
      expect(result.maxRelativeExcess).toBeLessThanOrEqual(1);
      expect(result.greedyMatches).toBe(result.greedyLength);
    }
    await model.dispose();
  });
});
