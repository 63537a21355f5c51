/** Lays out the folders that become npm packages, each with the files that it ships and nothing else. */
import { chmodSync, copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { bundleConsole } from "../gateway/console/build.ts";
import { buildLibrary, prebuiltName } from "../kernels/build.ts";
import { portableCpuLibrary } from "../kernels/manifest.ts";
import { dependencies, description, devDependencies, license, version } from "../package.json";
import { demoModelFolder, kernelsFolder, root } from "../places/places.ts";
import { bundle, bundlePrograms, licenceNotices, packagesOf } from "./bundle.ts";
import { bunPackage } from "./launcher/find-bun.ts";

/** Processors that packages are made for, all of them under Linux; `spangate` asks npm for the one that it is on. */
const architectures = ["x64", "arm64"] as const;
export type Architecture = (typeof architectures)[number];
export const isArchitecture = (name: string): name is Architecture => architectures.some((each) => each === name);
const platform = "linux";
export const platformName = (arch: string): string => `${platform}-${arch}`;
const machineOf = (arch: Architecture) => ({ os: [platform], cpu: [arch], libc: ["glibc"] });
/** Kernels for another processor than this one's are compiled by Debian's cross compiler. */
const crossCompilers: Readonly<Record<Architecture, string>> = {
  x64: "x86_64-linux-gnu-g++",
  arm64: "aarch64-linux-gnu-g++",
};
const isHere = (arch: Architecture): boolean => platformName(arch) === `${process.platform}-${process.arch}`;

/** What packages are made for, and of what. */
export interface Target {
  readonly arch: Architecture;
  /** Where packages of npm for that processor are installed; absent: in the clone. */
  readonly modules?: string | undefined;
}
/** The Bun that packages ask for is the one that everything was tested with. */
const bunVersion = devDependencies["bun-types"].replace(/^[^\d]*/, "");

const common = { version, license, engines: { node: ">=18" }, publishConfig: { access: "public" } };

interface Stage {
  readonly name: string;
  /** Writes the files below the folder. @returns further fields of package.json */
  fill(folder: string, target: Target): Promise<object>;
}

function copy(folder: string, paths: readonly string[], from = root): void {
  for (const path of paths) cpSync(join(from, path), join(folder, path), { recursive: true });
}

const nativeName = (arch: Architecture): string => `@spangate/native-${platformName(arch)}`;

/** A package of npm for the processor that packages are made for. @throws Error with a remedy */
function foreignPackage(name: string, wanted: string, { arch, modules }: Target): string {
  const folder = join(modules ?? join(root, "node_modules"), name);
  const file = join(folder, "package.json");
  const found = existsSync(file) ? (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version : "none";
  if (found === wanted) return folder;
  const remedy = `npm install --prefix FOLDER --force ${name}@${wanted}, and --modules FOLDER/node_modules`;
  throw new Error(`${name} ${wanted} is needed for ${platformName(arch)}, and there is ${found}: ${remedy}`);
}

const sqliteVecFolder = (target: Target): string =>
  foreignPackage(`sqlite-vec-${platformName(target.arch)}`, dependencies["sqlite-vec"], target);

const server: Stage = {
  name: "spangate",
  async fill(folder) {
    const packages = await bundlePrograms(join(folder, "app"));
    const launcher = { spangate: "packages/launcher/main.ts" };
    await bundle(join(folder, "bin"), { entries: launcher, target: "node", banner: "#!/usr/bin/env node" });
    chmodSync(join(folder, "bin", "spangate.js"), 0o755);
    await bundle(join(folder, "client"), { entries: { query: "gateway/client/exports.ts" }, target: "bun" });
    await declareTypes(join(folder, "types"));
    copy(folder, ["README.md", "LICENSE", "CHANGELOG.md", "docs", "migrations", "deploy"]);
    // A page of /docs.
    copy(folder, ["gateway/query/README.md"]);
    copy(folder, ["kernels/abi.h", "kernels/abi_sparse.h", "kernels/cpu", "kernels/cuda"]);
    const consoleFiles = await bundleConsole(join(folder, "console"));
    writeFileSync(join(folder, "NOTICES.txt"), licenceNotices([...packages, ...packagesOf(consoleFiles)]));
    return {
      description,
      type: "module",
      os: [platform],
      bin: { spangate: "bin/spangate.js" },
      exports: {
        "./query": { types: "./types/gateway/client/exports.d.ts", default: "./client/query.js" },
        "./package.json": "./package.json",
      },
      dependencies: { [demoModel.name]: version },
      optionalDependencies: Object.fromEntries(
        architectures.flatMap((arch) => [
          [nativeName(arch), version],
          [bunPackage(platform, arch), bunVersion],
        ]),
      ),
    };
  },
};

const native = (target: Target): Stage => ({
  name: nativeName(target.arch),
  async fill(folder, { arch }) {
    const kernels = await prebuiltName(platform, arch);
    const compilers = isHere(arch) ? {} : { compilers: [crossCompilers[arch]] };
    copyFileSync(await buildLibrary(portableCpuLibrary(arch), kernelsFolder, compilers), join(folder, kernels));
    const modules = (name: string): string => join(root, "node_modules", name);
    const runtime = join(modules("onnxruntime-node"), "bin", "napi-v6", platform, arch);
    // The package of onnxruntime has libraries for other systems and for GPUs too: only what this CPU needs is copied.
    copy(folder, ["onnxruntime_binding.node", "libonnxruntime.so.1"], runtime);
    copy(folder, ["vec0.so"], sqliteVecFolder(target));
    copy(folder, ["LICENSE"]);
    writeFileSync(join(folder, "NOTICES.txt"), licenceNotices(["onnxruntime-node", "sqlite-vec"].map(modules)));
    return {
      description: `Spangate's native libraries for ${platformName(arch)}: CPU kernels, onnxruntime, sqlite-vec`,
      ...machineOf(arch),
    };
  },
});

const demoModel: Stage = {
  name: "@spangate/demo-model",
  async fill(folder) {
    const index = JSON.parse(readFileSync(join(demoModelFolder, "model.safetensors.index.json"), "utf8"));
    const shards = new Set<string>(Object.values(index.weight_map));
    const texts = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    // The folder's name is the model's in the API.
    copy(join(folder, "demo"), [...texts, "model.safetensors.index.json", ...shards], demoModelFolder);
    copy(folder, ["README.md"], demoModelFolder);
    copy(folder, ["LICENSE"]);
    return { description: "A small language model that answers questions from documents: Spangate's default" };
  },
};

/** A copy of Bun, of the one that builds where it fits, under its own package's name: with it the packages install without a registry. */
const runtime = (target: Target): Stage => ({
  name: bunPackage(platform, target.arch),
  async fill(folder, { arch }) {
    if (Bun.version !== bunVersion) throw new Error(`packages are built by Bun ${bunVersion}; this is ${Bun.version}`);
    mkdirSync(join(folder, "bin"));
    const foreign = () => join(foreignPackage(bunPackage(platform, arch), bunVersion, target), "bin", "bun");
    copyFileSync(isHere(arch) ? process.execPath : foreign(), join(folder, "bin", "bun"));
    chmodSync(join(folder, "bin", "bun"), 0o755);
    const licences = "Bun is under the MIT licence; JavaScriptCore, a part of it, is under the LGPL 2.";
    writeFileSync(
      join(folder, "NOTICES.txt"),
      `${licences}\nTexts and sources: https://bun.com/docs/project/licensing\n`,
    );
    // It is Bun's project that publishes this package.
    const notOurs = { engines: undefined, publishConfig: undefined, private: true };
    const described = { version: bunVersion, license: "MIT", description: `Bun for ${platformName(arch)}` };
    return { ...described, ...machineOf(arch), ...notOurs };
  },
});

/** Types of `spangate/query`. */
async function declareTypes(folder: string): Promise<void> {
  const flags =
    "--ignoreConfig --declaration --emitDeclarationOnly --skipLibCheck --strict --allowImportingTsExtensions";
  const options = "--target ESNext --module ESNext --moduleResolution bundler --types bun-types --rootDir .";
  const argv = [process.execPath, "x", "--no-install", "tsc", ...flags.split(" "), ...options.split(" ")];
  await runTool([...argv, "--outDir", folder, "gateway/client/exports.ts"], root);
}

/** @returns what it wrote. @throws Error with what it wrote when it fails */
export async function runTool(argv: readonly string[], cwd: string): Promise<string> {
  const child = Bun.spawn([...argv], { cwd, stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [output, errors, exitCode] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (exitCode !== 0) throw new Error(`${argv.slice(0, 4).join(" ")} ended with ${exitCode}:\n${output}${errors}`);
  return output;
}

/** Writes every package's folder below `nodeModules`, as npm would lay them beside each other. @returns their folders */
export async function stagePackages(nodeModules: string, target: Target): Promise<readonly string[]> {
  // What is missing is said before anything is compiled.
  sqliteVecFolder(target);
  const folders: string[] = [];
  for (const { name, fill } of [server, native(target), demoModel, runtime(target)]) {
    const folder = join(nodeModules, name);
    mkdirSync(folder, { recursive: true });
    const fields = await fill(folder, target);
    const files = [...new Bun.Glob("*").scanSync({ cwd: folder, onlyFiles: false, dot: true })].sort();
    writeFileSync(join(folder, "package.json"), `${JSON.stringify({ name, ...common, ...fields, files }, null, 2)}\n`);
    folders.push(folder);
  }
  return folders;
}
