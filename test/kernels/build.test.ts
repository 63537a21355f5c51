/** Building a kernel library: once, under a name made from its sources, with clear words when it cannot be. */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { statSync } from "node:fs";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { buildCpuKernels, buildLibrary, KernelBuildError } from "../../kernels/build.ts";
import { cpuLibrary, type KernelLibrary } from "../../kernels/manifest.ts";

/** A compiler on a busy machine takes its time. */
setDefaultTimeout(120_000);

const folder = await mkdtemp(join(tmpdir(), "spangate-build-"));
afterAll(() => rm(folder, { recursive: true, force: true }));

const library: KernelLibrary = {
  name: "probe",
  units: [
    { name: "one", source: "one.cpp", flags: ["-DVALUE=1"] },
    { name: "two", source: "one.cpp", flags: ["-DVALUE=2"] },
  ],
  headers: ["probe.h"],
  compileFlags: ["-std=c++17", "-fPIC"],
  linkFlags: ["-shared"],
};

/** A source folder and an empty cache of its own. */
async function probe(source = 'static int value = VALUE;\n#include "probe.h"\n') {
  const root = await mkdtemp(join(folder, "probe-"));
  await Bun.write(join(root, "one.cpp"), source);
  await Bun.write(join(root, "probe.h"), "// nothing yet\n");
  const cacheFolder = join(root, "cache");
  const compiled: string[] = [];
  const options = { cacheFolder, onCompile: (name: string) => compiled.push(name) };
  return { root, cacheFolder, compiled, options };
}

test("compiles once and finds the library again", async () => {
  const { root, cacheFolder, compiled, options } = await probe();
  const path = await buildLibrary(library, root, options);
  expect(await buildLibrary(library, root, options)).toBe(path);
  expect(compiled).toEqual(["probe"]);
  expect((await readdir(cacheFolder)).sort()).toEqual(["objects", basename(path)]);
});

test("a changed header, source or flag makes another library", async () => {
  const { root, options } = await probe();
  const paths = [await buildLibrary(library, root, options)];
  await Bun.write(join(root, "probe.h"), "// something else\n");
  paths.push(await buildLibrary(library, root, options));
  paths.push(await buildLibrary({ ...library, compileFlags: ["-std=c++17", "-fPIC", "-O1"] }, root, options));
  expect(new Set(paths).size).toBe(3);
});

test("a library that is only linked otherwise takes the objects that are there", async () => {
  const { root, cacheFolder, compiled, options } = await probe();
  const objects = async () => {
    const folder = join(cacheFolder, "objects");
    const names = (await readdir(folder)).sort();
    return names.map((name) => [name, statSync(join(folder, name)).mtimeMs]);
  };
  const first = await buildLibrary(library, root, options);
  const made = await objects();
  expect(made).toHaveLength(2);
  const other = { ...library, linkFlags: [...library.linkFlags, "-Wl,--gc-sections"] };
  expect(await buildLibrary(other, root, options)).not.toBe(first);
  expect(compiled).toHaveLength(2);
  expect(await objects()).toEqual(made);
  await Bun.write(join(root, "probe.h"), "// something else\n");
  await buildLibrary(other, root, options);
  expect(await objects()).toHaveLength(4);
});

test("several starts at once end with one whole library and no litter", async () => {
  const { root, cacheFolder, options } = await probe();
  const paths = await Promise.all(Array.from({ length: 3 }, () => buildLibrary(library, root, options)));
  expect(new Set(paths).size).toBe(1);
  expect((await readdir(cacheFolder)).sort()).toEqual(["objects", basename(paths[0] ?? "")]);
  expect(await readdir(join(cacheFolder, "objects"))).toHaveLength(2);
});

test("a compiler's refusal is passed on, and leaves nothing behind", async () => {
  const { root, cacheFolder, options } = await probe("#error no such machine\n");
  const failure = await buildLibrary(library, root, options).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(KernelBuildError);
  expect(failure).toMatchObject({ message: expect.stringContaining("no such machine") });
  expect(await readdir(cacheFolder)).toEqual([]);
});

test("without a compiler there is one clear sentence", async () => {
  const { root, options } = await probe();
  const failure = await buildLibrary(library, root, { ...options, compilers: ["no-such-compiler"] }).catch((e) => e);
  expect(failure).toBeInstanceOf(KernelBuildError);
  expect(failure.message).toContain("Spangate needs a C++17 compiler (g++ or clang++); install it with");
});

test("the manifest names every source and header of the CPU kernels", async () => {
  const { units, headers } = cpuLibrary("x64");
  const named = new Set([
    ...units.map((unit) => unit.source),
    ...headers.filter((header) => header.startsWith("cpu/")),
  ]);
  const present = await readdir(join(import.meta.dir, "../../kernels/cpu"));
  expect([...named].sort()).toEqual(present.map((file) => `cpu/${file}`).sort());
  const shared = (await readdir(join(import.meta.dir, "../../kernels"))).filter((file) => file.endsWith(".h"));
  expect(headers.filter((header) => !header.startsWith("cpu/")).sort()).toEqual(shared.sort());
});

test("other processors get the library without vector units", () => {
  expect(cpuLibrary("arm64").units.some((unit) => unit.flags.length > 0)).toBe(false);
  expect(cpuLibrary("arm64").units.map((unit) => unit.name)).toContain("reference");
});

test("the CPU library is in the project's cache after it was built", async () => {
  const path = await buildCpuKernels();
  expect(await Bun.file(path).exists()).toBe(true);
  expect(await buildCpuKernels()).toBe(path);
});
