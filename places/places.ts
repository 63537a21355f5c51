/**
 * Where the parts of this installation lie. A clone of the repository has the programs as sources, and writes what it
 * compiles beside them. In the npm packages, which `packages/build.ts` makes, the programs are bundles, the demo model
 * and native libraries are packages of their own, and nothing is written: packages may belong to another user.
 */
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, isAbsolute, join } from "node:path";

/** In a package this code stands in a bundle in `app/`; both folders lie in the root. */
export const root = join(import.meta.dir, "..");
const isPackage = import.meta.path.endsWith(".js");

/** How the command line is called here, as messages say it. */
export const commandLine = isPackage ? "spangate" : "bun run spangate";

/** Every program that is started as a process or a thread of its own. */
export const programs = {
  cli: "gateway/cli/main.ts",
  gateway: "gateway/main.ts",
  confine: "gateway/extract/main.ts",
  document: "gateway/extract/document.ts",
  gather: "gateway/sources/main.ts",
  mover: "gateway/mover/main.ts",
  "compile-thread": "gateway/tools/compile-thread.ts",
  "search-thread": "gateway/corpus/search/search-thread.ts",
  "log-thread": "gateway/data/log-thread.ts",
  worker: "worker/main.ts",
  embedder: "worker/embedder.ts",
  "check-device": "worker/check-device.ts",
} as const;

export const programPath = (name: keyof typeof programs): string =>
  isPackage ? join(root, "app", `${name}.js`) : join(root, programs[name]);

export const migrationsFolder = join(root, "migrations");
export const kernelsFolder = join(root, "kernels");

/** The console's sources, which a clone bundles; packages have it ready. */
export const consoleSources = join(root, "gateway", "console", "client");
export const readyConsole = isPackage ? join(root, "console") : undefined;

/** The folder's name is the model's in the API. */
export const demoModelFolder = isPackage
  ? join(packageFolder("@spangate/demo-model") ?? root, "demo")
  : join(root, "worker", "model", "demo");

/** The package of native libraries for this machine. */
export const nativePackage = `@spangate/native-${process.platform}-${process.arch}`;

/** Whether it should be there and is not: npm leaves out optional packages when it is told to. */
export const isNativeMissing = isPackage && packageFolder(nativePackage) === undefined;

/** Path of a library of that package; undefined: it is not there, as in a clone, which compiles or has npm's own. */
export function nativeLibrary(file: string): string | undefined {
  const folder = isPackage ? packageFolder(nativePackage) : undefined;
  const path = folder && join(folder, file);
  return path && existsSync(path) ? path : undefined;
}

/** Where compiled kernels are kept. @param env the environment that says where the user's caches are */
export function cacheFolder(env: Readonly<Record<string, string | undefined>> = process.env): string {
  if (!isPackage) return join(root, ".build");
  // The XDG Base Directory Specification 0.8: a relative path is invalid and counts as unset.
  const { XDG_CACHE_HOME: caches = "" } = env;
  return join(isAbsolute(caches) ? caches : join(homedir(), ".cache"), "spangate");
}

function packageFolder(name: string): string | undefined {
  try {
    return dirname(Bun.resolveSync(`${name}/package.json`, root));
  } catch {
    return undefined;
  }
}
