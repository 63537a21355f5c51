/**
 * Takes the kernel library that a package has ready, or compiles it at first start and keeps it under a name made from
 * everything that went into it (sources, flags, compiler version). So are its objects, which libraries that are linked
 * otherwise share. Safe when several processes start at once: each compiles in a folder of its own and renames the
 * finished file, so a reader never sees half a library.
 */
import { mkdir, mkdtemp, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import {
  isNativeMissing,
  kernelsFolder,
  nativeLibrary,
  nativePackage,
  cacheFolder as placeOfCaches,
} from "../places/places.ts";
import { cpuLibrary, type KernelLibrary, type KernelUnit } from "./manifest.ts";

/** The library could not be built. The message is one sentence for the operator, followed by the compiler's output. */
export class KernelBuildError extends Error {
  override readonly name = "KernelBuildError";
}

export interface BuildOptions {
  /** The folder where libraries are kept; default: what `places` says. */
  readonly cacheFolder?: string;
  /** Compiler commands to try, in this order; default: g++, clang++, c++. */
  readonly compilers?: readonly string[];
  /** Called once before a compilation; not called when the library exists already. */
  readonly onCompile?: (library: string) => void;
}

const missingHint =
  `The package ${nativePackage} is not installed beside spangate, and without it there is no onnxruntime either: ` +
  "install it in the same version; npm does that by itself unless it was told to omit optional packages.";
const installHint =
  `No ready-made kernels fit here (the package ${nativePackage} has them), and there is no compiler: ` +
  "Spangate needs a C++17 compiler (g++ or clang++); install it with " +
  "`apt-get install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora), `apk add g++` (Alpine) " +
  "or `xcode-select --install` (macOS).";

/**
 * Builds the CPU kernels unless a package has them ready or they are in the cache.
 * @returns path of the shared library
 * @throws KernelBuildError when there is no compiler, it refuses the source, or other native libraries are missing too
 */
export async function buildCpuKernels(options: BuildOptions = {}): Promise<string> {
  if (isNativeMissing) throw new KernelBuildError(missingHint);
  const prebuilt = nativeLibrary(await prebuiltName(process.platform, process.arch));
  return prebuilt ?? (await buildLibrary(cpuLibrary(process.arch), kernelsFolder, options));
}

/** File name of prebuilt CPU kernels: of these sources, whatever compiled them. */
export async function prebuiltName(platform: string, arch: string): Promise<string> {
  return `cpu-${await contentHash(cpuLibrary(arch), kernelsFolder, [arch, platform])}.so`;
}

/** Like buildCpuKernels, for any library whose sources lie in `sourceFolder`. */
export async function buildLibrary(
  library: KernelLibrary,
  sourceFolder: string,
  options: BuildOptions = {},
): Promise<string> {
  const compiler = findCompiler(options.compilers ?? ["g++", "clang++", "c++"]);
  const cacheFolder = options.cacheFolder ?? placeOfCaches();
  const key = [process.arch, process.platform, await run([compiler, "--version"])];
  const path = join(cacheFolder, `${library.name}-${await contentHash(library, sourceFolder, key)}.so`);
  if (await Bun.file(path).exists()) return path;

  options.onCompile?.(library.name);
  await mkdir(cacheFolder, { recursive: true });
  const folder = await mkdtemp(join(cacheFolder, "compile-"));
  try {
    const objects = await compileUnits(library, async (unit) => {
      const own = { ...library, units: [unit], linkFlags: [] };
      const object = join(cacheFolder, "objects", `${unit.name}-${await contentHash(own, sourceFolder, key)}.o`);
      if (await Bun.file(object).exists()) return object;
      const compiled = join(folder, `${unit.name}.o`);
      const flags = [...library.compileFlags, ...unit.flags];
      await run([compiler, ...flags, "-c", join(sourceFolder, unit.source), "-o", compiled]);
      await mkdir(dirname(object), { recursive: true });
      await rename(compiled, object);
      return object;
    });
    const linked = join(folder, "library.so");
    await run([compiler, ...objects, ...library.linkFlags, "-o", linked]);
    await rename(linked, path);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return path;
}

function findCompiler(commands: readonly string[]): string {
  for (const command of commands) {
    const path = Bun.which(command);
    if (path !== null) return path;
  }
  throw new KernelBuildError(installHint);
}

async function contentHash(library: KernelLibrary, sourceFolder: string, key: readonly string[]): Promise<string> {
  const hasher = new Bun.CryptoHasher("sha256");
  hasher.update(JSON.stringify([library, ...key]));
  const files = [...library.headers, ...new Set(library.units.map((unit) => unit.source))];
  for (const file of files) {
    const text = await Bun.file(join(sourceFolder, file)).text();
    hasher.update(`${file}\n${text.length}\n`);
    hasher.update(text);
  }
  return hasher.digest("hex").slice(0, 24);
}

/** How many compilers run at the same time. */
const parallelCount = 2;

/**
 * The first error ends the rest of the queue.
 * @returns paths of the objects, in the units' order
 */
async function compileUnits(
  { units }: KernelLibrary,
  compile: (unit: KernelUnit) => Promise<string>,
): Promise<readonly string[]> {
  const queue = [...units];
  const objects = new Map<KernelUnit, string>();
  const compileNext = async (): Promise<void> => {
    for (let unit = queue.shift(); unit !== undefined; unit = queue.shift()) {
      try {
        objects.set(unit, await compile(unit));
      } catch (error) {
        queue.length = 0;
        throw error;
      }
    }
  };
  // All compilers must have ended before the folder is removed, since they write into it.
  const results = await Promise.allSettled(Array.from({ length: parallelCount }, compileNext));
  const failed = results.find((result) => result.status === "rejected");
  if (failed !== undefined) throw failed.reason;
  return units.map((unit) => objects.get(unit) ?? "");
}

async function run(command: readonly string[]): Promise<string> {
  const child = Bun.spawn([...command], { stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [output, errors, exitCode] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (exitCode === 0) return output;
  const words = errors.trim().slice(0, 4000);
  throw new KernelBuildError(`${command[0]} could not build the kernels (exit ${exitCode}):\n${words}`);
}
