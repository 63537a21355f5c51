/**
 * What a document would run that has taken over the process which reads it: it opens what the server's user may open, in
 * every way that this process has, and gives what it could open as its text. The document names more files to look for.
 */
import { readdirSync, readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";

const { files, folders, port } = (await Bun.stdin.json()) as {
  readonly files: readonly string[];
  readonly folders: readonly string[];
  readonly port: number;
};
const ofServer = ["environ", "mem", "maps", "auxv"].map((name) => `/proc/${process.ppid}/${name}`);
const elsewhere = `process.stdout.write(require("node:fs").readFileSync(process.argv[1]))`;
const found: string[] = [];

async function attempt(what: string, way: () => unknown): Promise<void> {
  try {
    const got = (await way()) as { readonly length: number } | undefined;
    if (got === undefined || got.length > 0) found.push(what);
  } catch {
    // That way is closed.
  }
}

for (const file of [...files, ...ofServer, "/proc/1/environ"]) {
  await attempt(`${file} at once`, () => readFileSync(file));
  await attempt(`${file} by a thread`, () => readFile(file));
  await attempt(`${file} by Bun`, () => Bun.file(file).bytes());
  await attempt(`${file} by a child`, () => Bun.spawnSync([process.execPath, "-e", elsewhere, file]).stdout);
}
for (const folder of folders) await attempt(`list of ${folder}`, () => readdirSync(folder));
await attempt("the server, by a signal", () => void process.kill(process.ppid, 0));
await attempt("the server, by the network", async () => {
  await fetch(`http://127.0.0.1:${port}/`);
  return undefined;
});
await Bun.write(Bun.stdout, `T[]\n${found.join("\n")}`);
process.exit(0);
