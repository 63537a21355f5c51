/**
 * Every CUDA kernel compiles for the architectures that it is written for, where CUDA's compiler is installed: for all
 * of them in the long form, else for those that differ and without the optimizations that take most of the time. Kernels
 * that have compiled are compiled again when one of their sources, the compiler or this test changes, and in the long form.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, relative } from "node:path";
import { cacheFolder, kernelsFolder } from "../../places/places.ts";
import { isLong } from "../support/effort.ts";

const folder = join(kernelsFolder, "cuda");
const sources = [...new Bun.Glob("**/*.cu").scanSync(folder)].sort();
/** Files include each other by name, whatever folder they stand in. */
const folders = ["", "attention", "attention/wgmma", "experts", "products", "sparse"];
const includes = folders.map((name) => `-I${join(folder, name)}`);
const nvcc = Bun.which("nvcc");
/** What is wrong in a source is found without optimizations too, in half the time. Older compilers cannot leave them out. */
const fastOption = "--Ofast-compile";
const hasFastOption = nvcc !== null && Bun.spawnSync([nvcc, "--help"]).stdout.toString().includes(fastOption);
const effortOptions = hasFastOption && !isLong ? [`${fastOption}=max`] : [];

/**
 * What compiles for the oldest compiles for newer ones, but for what stands behind a condition for Hopper: that is in
 * the attention kernels, in those that have clusters or bulk copies, and in a header that they include as all others do.
 * Tiles of other sizes are compiled once.
 */
const hopperSources = ["sparse/attend_choice.cu", "sparse/score_shadows.cu"];

function architecturesOf(source: string, headDim: number): readonly string[] {
  if (isLong) return ["80", "89", "90a"];
  // These are for Hopper alone; elsewhere they are empty, which the long form compiles too.
  if (source.includes("wgmma")) return ["90a"];
  if (!source.startsWith("attention/") && !hopperSources.includes(source)) return ["80"];
  return headDim === 128 ? ["80", "90a"] : ["80"];
}

interface KernelCase {
  readonly source: string;
  readonly headDim: number;
  /** 1: of a KV pool in mx8. */
  readonly mx8: 0 | 1;
}

/** Head sizes whose tiles differ: the usual, the largest, and one that no power of two divides; 128 where none is asked for. */
const headDims: Readonly<Record<string, readonly number[]>> = {
  "attention_packed.cu": [128, 80, 256],
  "attention_tiles.cu": [128, 80, 256],
  "qkv_finish.cu": [128, 256],
  "deviations.cu": [128, 256],
  "copy_tokens.cu": [128, 256],
  "shadow_keys.cu": [128, 96, 256],
  "score_shadows.cu": [128, 16, 256],
  "attend_choice.cu": [128, 80, 256],
  "attention_packed_wgmma.cu": [128, 80, 64],
  "attention_wgmma.cu": [128, 80, 64],
};

/** Kernels of pools in mx8 differ where these stand, and in the two that read such a pool for Hopper alone. */
const mx8Sources = ["qkv_finish.cu", "move_blocks.cu", "attention_packed_wgmma.cu", "attention_wgmma.cu"];

function compile({ source, headDim, mx8 }: KernelCase): string {
  const scratch = mkdtempSync(join(tmpdir(), "spangate-cuda-"));
  try {
    // No model with long heads goes without a cap here, and none of the others has one.
    const cap = headDim > 128 ? 50 : 0;
    const defines = [
      `--define-macro=HEAD_DIM=${headDim}`,
      `--define-macro=KV_MX8=${mx8}`,
      `--define-macro=SCORE_CAP=${cap}`,
    ];
    const options = ["--fatbin", "--std=c++17", "--Werror=all-warnings", ...effortOptions, ...defines];
    const targets = architecturesOf(source, headDim).map(
      (name) => `--generate-code=arch=compute_${name},code=sm_${name}`,
    );
    const command = [nvcc ?? "", ...options, ...includes, ...targets, "-o", join(scratch, "out"), join(folder, source)];
    const { exitCode, stdout, stderr } = Bun.spawnSync(command);
    return exitCode === 0 ? "" : `${stdout}${stderr}`;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** What a compilation's outcome depends on: every file that a kernel can include, the compiler, and the options. */
function inputsHash(): string {
  const hasher = new Bun.CryptoHasher("sha256");
  hasher.update(Bun.spawnSync([nvcc ?? "", "--version"]).stdout);
  const files = [...new Bun.Glob("**/*").scanSync(folder)].sort().map((file) => join(folder, file));
  for (const file of [import.meta.path, ...files]) {
    const bytes = readFileSync(file);
    // Another clone's record counts as well.
    hasher.update(`${relative(folder, file)}\n${bytes.length}\n`);
    hasher.update(bytes);
  }
  return hasher.digest("hex");
}

test("functions that are evaluated while a kernel compiles are said to be the device's, as NVRTC wants it", () => {
  for (const file of new Bun.Glob("**/*.{cu,cuh}").scanSync(folder)) {
    expect(readFileSync(join(folder, file), "utf8")).not.toMatch(/^(?:static |inline )*constexpr [\w: ]+\(/m);
  }
});

test("there are kernels", () => expect(sources.length).toBeGreaterThan(10));

describe.skipIf(nvcc === null)("CUDA kernels compile (needs nvcc)", () => {
  const plain = sources.flatMap((source) =>
    (headDims[basename(source)] ?? [128]).map((headDim) => ({ source, headDim, mx8: 0 as const })),
  );
  const packed = sources.flatMap((source) => {
    if (!mx8Sources.includes(basename(source))) return [];
    return (isLong ? [128, 64] : [128]).map((headDim) => ({ source, headDim, mx8: 1 as const }));
  });
  const cases: KernelCase[] = [...plain, ...packed];
  const hash = nvcc === null ? "" : inputsHash();
  const compiledPath = join(cacheFolder(), "cuda-compiled");
  const isKnown = !isLong && existsSync(compiledPath) && readFileSync(compiledPath, "utf8") === hash;
  let compiled = 0;

  test.each(cases)(
    "$source for heads of $headDim, mx8: $mx8",
    (one) => {
      if (isKnown) return;
      expect(compile(one)).toBe("");
      compiled += 1;
    },
    120_000,
  );

  afterAll(() => {
    if (compiled < cases.length) return;
    mkdirSync(dirname(compiledPath), { recursive: true });
    writeFileSync(compiledPath, hash);
  });
});
