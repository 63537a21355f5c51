/**
 * The console's files: packages have them ready, a clone bundles them when they are first asked for and keeps them under
 * a name made from everything that went into them. Safe when several processes begin at once: each writes a folder of
 * its own and renames it when it is whole.
 */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { cacheFolder, consoleSources, readyConsole, root } from "../../places/places.ts";

/** Where the files lie under the server's address. */
export const assetsPath = "/console/";
/** The page itself; all else has its content's hash in its name. */
export const shellFile = "index.html";

/** @returns the folder with the shell and what it loads. @throws Error when it cannot be bundled */
export async function consoleFolder(): Promise<string> {
  if (readyConsole !== undefined) return readyConsole;
  const folder = join(cacheFolder(), `console-${await digestOfSources()}`);
  if (existsSync(join(folder, shellFile))) return folder;
  await mkdir(cacheFolder(), { recursive: true });
  const aside = await mkdtemp(`${folder}-`);
  try {
    await bundleConsole(aside);
    // Another process may have been sooner: its files are the same.
    await rename(aside, folder).catch((error) => {
      if (!existsSync(join(folder, shellFile))) throw error;
    });
  } finally {
    await rm(aside, { recursive: true, force: true });
  }
  return folder;
}

async function digestOfSources(): Promise<string> {
  const files = (await readdir(consoleSources, { recursive: true, withFileTypes: true }))
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
  const others = [join(root, "bun.lock"), join(root, "gateway", "console", "build.ts")];
  const hash = createHash("sha256").update(Bun.version);
  for (const file of [...files.sort(), ...others]) {
    hash.update(`\0${file.slice(root.length)}\0`).update(await readFile(file));
  }
  return hash.digest("hex").slice(0, 24);
}

/**
 * Writes the console's files into the folder.
 * @returns the npm packages' files that went into them
 */
export async function bundleConsole(folder: string): Promise<readonly string[]> {
  const name = "[name]-[hash].[ext]";
  const { outputs, metafile } = await Bun.build({
    entrypoints: [join(consoleSources, "main.tsx")],
    outdir: folder,
    target: "browser",
    splitting: true,
    minify: true,
    metafile: true,
    publicPath: assetsPath,
    naming: { entry: name, chunk: name, asset: name },
    define: { "process.env.NODE_ENV": '"production"' },
    env: "disable",
  });
  const named = (kind: string, ending: string): string => {
    const found = outputs.find((output) => output.kind === kind && output.path.endsWith(ending));
    if (found === undefined) throw new Error(`the console's bundle has no ${ending}`);
    return assetsPath + basename(found.path);
  };
  const icon = await readFile(join(consoleSources, "icon.svg"));
  const iconFile = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8)}.svg`;
  await writeFile(join(folder, iconFile), icon);
  const links = { script: named("entry-point", ".js"), style: named("asset", ".css"), icon: assetsPath + iconFile };
  await writeFile(join(folder, shellFile), shell(links));
  return Object.keys(metafile?.inputs ?? {});
}

interface ShellLinks {
  readonly script: string;
  readonly style: string;
  readonly icon: string;
}

const shell = ({ script, style, icon }: ShellLinks): string => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Spangate</title>
<link rel="icon" type="image/svg+xml" href="${icon}">
<link rel="stylesheet" href="${style}">
<script type="module" src="${script}"></script>
</head>
<body>
<div id="app"></div>
<noscript>The console needs JavaScript. The <a href="/docs">documentation</a> does not.</noscript>
</body>
</html>
`;
