/**
 * The npm packages that the server and its benches import, each bundled to as few files as it takes, as a node_modules
 * for a machine without a registry: `bun test/gpu/packages.ts FOLDER` where they are installed. With it in its root the
 * tree runs there as it is, on CUDA devices: onnxruntime, native code that serves the CPU alone, is an empty module.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { builtinModules } from "node:module";
import { join, relative, resolve } from "node:path";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";

const sourceFolders = ["gateway", "worker", "db", "kernels", "test/bench", "test/support", "test/gpu"];
const emptied = "onnxruntime-node";
/** The client of end-to-end tests alone. */
const leftOut = "openai";

/** `hono/http-exception` is part of `hono`, `@huggingface/jinja` is a package. */
function packageOf(specifier: string): string {
  return specifier
    .split("/")
    .slice(0, specifier.startsWith("@") ? 2 : 1)
    .join("/");
}

function isPackage(specifier: string): boolean {
  const isOurs = specifier.startsWith(".") || specifier.includes(":") || builtinModules.includes(specifier);
  return !isOurs && ![emptied, leftOut].includes(packageOf(specifier));
}

/** Specifiers of all packages that the sources import, in order. */
function importedSpecifiers(): string[] {
  const transpiler = new Bun.Transpiler({ loader: "ts" });
  const files = sourceFolders.flatMap((folder) =>
    [...new Bun.Glob("**/*.ts").scanSync(join(repositoryRoot, folder))].map((file) =>
      join(repositoryRoot, folder, file),
    ),
  );
  const importsOf = (file: string) => transpiler.scanImports(readFileSync(file, "utf8").replace(/^#!.*/, ""));
  const found = files.flatMap((file) => importsOf(file).map(({ path }) => path));
  return [...new Set(found)].filter(isPackage).sort();
}

/** Puts a bundle of every specifier where its package has it, and package.json files that lead there. */
async function writePackages(folder: string): Promise<void> {
  const modules = join(repositoryRoot, "node_modules");
  const specifiers = importedSpecifiers();
  const entries = specifiers.map((specifier) => Bun.resolveSync(specifier, repositoryRoot));
  // One build for all, so that a module that two of them need is there once.
  const { logs, success } = await Bun.build({
    entrypoints: entries,
    root: modules,
    outdir: folder,
    target: "bun",
    minify: true,
    splitting: true,
  });
  if (!success) throw new Error(logs.join("\n"));
  const bundles = specifiers.map((specifier, index) => {
    const bundle = relative(modules, entries[index] ?? "").replace(/\.[cm]?js$/, ".js");
    if (!existsSync(join(folder, bundle))) throw new Error(`the bundle of ${specifier} is not at ${bundle}`);
    return { specifier, bundle };
  });
  for (const [name, parts] of Map.groupBy(bundles, ({ specifier }) => packageOf(specifier))) {
    const exports = parts.map(({ specifier, bundle }) => [
      `.${specifier.slice(name.length)}`,
      `./${relative(name, bundle)}`,
    ]);
    describePackage(folder, name, Object.fromEntries(exports));
  }
  describePackage(folder, emptied, { ".": "./empty.js" });
  writeFileSync(join(folder, emptied, "empty.js"), "export {};");
  console.log(`${specifiers.join(", ")}: bundled into ${folder}`);
}

function describePackage(folder: string, name: string, exports: Readonly<Record<string, string>>): void {
  mkdirSync(join(folder, name), { recursive: true });
  writeFileSync(join(folder, name, "package.json"), JSON.stringify({ name, type: "module", exports }));
}

const [folder] = process.argv.slice(2);
if (folder === undefined) throw new Error("a folder is needed");
await writePackages(resolve(folder));
