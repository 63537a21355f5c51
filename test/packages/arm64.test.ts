/**
 * Kernels for arm64, cross-compiled as packages for that processor have them. The kernels' own tests run in qemu by hand:
 * `PATH=DIR:$PATH qemu-aarch64 -L /usr/aarch64-linux-gnu BUN test test/native`, with Bun for arm64 and a link `g++` to the
 * cross compiler in DIR.
 */
import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildLibrary } from "../../kernels/build.ts";
import { portableCpuLibrary } from "../../kernels/manifest.ts";
import { stagePackages } from "../../packages/stage.ts";
import { kernelsFolder } from "../../places/places.ts";
import { isLong } from "../support/effort.ts";

setDefaultTimeout(120_000);

const compiler = "aarch64-linux-gnu-g++";
/** Machine 183 of the ELF header, little-endian. */
const aarch64 = 183;

test.skipIf(Bun.which(compiler) === null)("load on every glibc for arm64, and need no libstdc++", async () => {
  const cacheFolder = mkdtempSync(join(tmpdir(), "spangate-arm64-"));
  const options = { cacheFolder, compilers: [compiler] };
  const portable = portableCpuLibrary("arm64");
  // Less optimized it takes half the time, and calls the same of the system.
  const compileFlags = isLong ? portable.compileFlags : [...portable.compileFlags, "-O1"];
  const library = await buildLibrary({ ...portable, compileFlags }, kernelsFolder, options);
  const bytes = Buffer.from(await Bun.file(library).bytes());
  expect(bytes.readUInt16LE(18)).toBe(aarch64);
  const versions = [...bytes.toString("latin1").matchAll(/\0(GLIBC(?:XX)?_[\d.]+)(?=\0)/g)].map(
    ([, version]) => version,
  );
  expect(new Set(versions)).toEqual(new Set(["GLIBC_2.17"]));
  rmSync(cacheFolder, { recursive: true });
});

test("packages for another processor name what is missing for it, and how to get it", async () => {
  const folder = mkdtempSync(join(tmpdir(), "spangate-stage-arm64-"));
  const failure = String(
    await stagePackages(folder, { arch: "arm64", modules: folder }).catch((error: unknown) => error),
  );
  expect(failure).toContain("sqlite-vec-linux-arm64 0.1.9 is needed for linux-arm64");
  expect(failure).toContain("npm install --prefix FOLDER --force sqlite-vec-linux-arm64@0.1.9");
  // Nothing was compiled for that: the folder is as it was.
  expect(readdirSync(folder)).toEqual([]);
  rmSync(folder, { recursive: true });
});
