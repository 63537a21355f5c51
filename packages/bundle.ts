/** The programs as bundles: our sources and the npm packages that they import, in plain JavaScript. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { BunPlugin } from "bun";
import { programs, root } from "../places/places.ts";

const libraryFile = '"onnxruntime_binding.node"';
/** The call in onnxruntime-node that loads its library; its path is a template. */
const bindingCall = /require\(`[^`]*onnxruntime_binding\.node`\)/;

/** onnxruntime's own code looks for its library beside itself; in packages it lies with the other native ones. */
const nativeBinding: BunPlugin = {
  name: "native-binding",
  setup(build) {
    build.onLoad({ filter: /onnxruntime-node\/dist\/binding\.js$/ }, ({ path }) => {
      const text = readFileSync(path, "utf8");
      if (!bindingCall.test(text)) throw new Error(`${path} loads its library in another way than before`);
      const places = JSON.stringify(join(root, "places", "places.ts"));
      return {
        contents: text.replace(
          bindingCall,
          `require(require(${places}).nativeLibrary(${libraryFile}) ?? ${libraryFile})`,
        ),
        loader: "js",
      };
    });
  },
};

interface BundleOptions {
  /** Names of bundles to the sources that they begin with. */
  readonly entries: Readonly<Record<string, string>>;
  readonly target: "bun" | "node";
  readonly banner?: string;
}

/**
 * Writes `NAME.js` for each entry into the folder, and what several share into files beside them.
 * @returns the folders of the npm packages that went into them, in order
 */
export async function bundle(folder: string, { entries, target, banner }: BundleOptions): Promise<readonly string[]> {
  // Several sources are called main.ts: a line each gives the bundles names of their own.
  const stubs = mkdtempSync(join(tmpdir(), "spangate-entries-"));
  for (const [name, source] of Object.entries(entries)) {
    writeFileSync(join(stubs, `${name}.ts`), `export * from ${JSON.stringify(join(root, source))};\n`);
  }
  const { logs, success, metafile } = await Bun.build({
    entrypoints: Object.keys(entries).map((name) => join(stubs, `${name}.ts`)),
    root: stubs,
    outdir: folder,
    target,
    splitting: true,
    metafile: true,
    plugins: [nativeBinding],
    // Names are kept, so that what is logged of an error tells where it is.
    minify: { whitespace: true, syntax: true, identifiers: false },
    ...(banner !== undefined && { banner }),
  });
  rmSync(stubs, { recursive: true });
  if (!success) throw new Error(logs.join("\n"));
  return packagesOf(Object.keys(metafile?.inputs ?? {}));
}

/** `node_modules/@a/b/c.js` is of `node_modules/@a/b`; a package may have others in a node_modules of its own. */
export function packagesOf(inputs: readonly string[]): readonly string[] {
  const folders = inputs.flatMap((input) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+(?=\/)/.exec(input)?.[0] ?? []);
  return [...new Set(folders)].sort().map((folder) => resolve(folder));
}

/** Bundles every program. */
export const bundlePrograms = (folder: string): Promise<readonly string[]> =>
  bundle(folder, { entries: programs, target: "bun" });

/** The licences of npm packages whose code is part of a package of ours, as they ask for it. */
export function licenceNotices(folders: readonly string[]): string {
  const notices = folders.map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
    const text = file === undefined ? "" : `\n\n${readFileSync(join(folder, file), "utf8").trim()}`;
    return `${name} ${version} (${license})${text}`;
  });
  return `${notices.join(`\n\n${"-".repeat(72)}\n\n`)}\n`;
}
