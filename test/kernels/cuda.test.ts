/** Every CUDA kernel compiles for the architectures that it is written for, where CUDA's compiler is installed. */
import { describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

const folder = join(import.meta.dir, "..", "..", "kernels", "cuda");
const sources = [...new Bun.Glob("**/*.cu").scanSync(folder)].sort();
/** Files include each other by name, whatever folder they stand in. */
const includes = ["", "attention", "attention/wgmma"].map((name) => `-I${join(folder, name)}`);
const nvcc = Bun.which("nvcc");

/** Compiler arguments; one pass of the compiler for all three. */
const architectures = ["80", "89", "90a"];
const targets = architectures.map((name) => `--generate-code=arch=compute_${name},code=sm_${name}`);

/** Head sizes whose tiles differ: the largest, and one that no power of two divides; 128 where none is asked for. */
const headDims: Readonly<Record<string, readonly number[]>> = {
  "attention_packed.cu": [128, 80],
  "attention_tiles.cu": [128, 80],
  "attention_packed_wgmma.cu": [128, 80, 64],
  "attention_wgmma.cu": [128, 80, 64],
};

function compile(source: string, headDim: number): string {
  const scratch = mkdtempSync(join(tmpdir(), "spangate-cuda-"));
  try {
    const options = ["--fatbin", "--std=c++17", "--Werror=all-warnings", `--define-macro=HEAD_DIM=${headDim}`];
    const command = [nvcc ?? "", ...options, ...includes, ...targets, "-o", join(scratch, "out"), join(folder, source)];
    const { exitCode, stdout, stderr } = Bun.spawnSync(command);
    return exitCode === 0 ? "" : `${stdout}${stderr}`;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

test("there are kernels", () => expect(sources.length).toBeGreaterThan(10));

describe.skipIf(nvcc === null)(`CUDA kernels compile for sm_${architectures.join(", sm_")} (needs nvcc)`, () => {
  for (const source of sources) {
    for (const headDim of headDims[basename(source)] ?? [128]) {
      test(`${source} for heads of ${headDim}`, () => expect(compile(source, headDim)).toBe(""), 120_000);
    }
  }
});
