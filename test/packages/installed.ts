/** An installed Spangate as a stranger runs it: nothing is set, PATH has Node alone, home and folder are empty. */
import { expect } from "bun:test";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  statSync,
  symlinkSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, delimiter, join } from "node:path";
import { until } from "../support/until.ts";

/** Node itself: where Bun runs a script, it puts a `node` in front of PATH that is Bun. */
export const nodePath =
  (process.env.PATH ?? "")
    .split(delimiter)
    .map((folder) => join(folder, "node"))
    .find((path) => existsSync(path) && !basename(realpathSync(path)).startsWith("bun")) ?? null;

/** Files' modes do not bind root; a program that this starts is bound by them, as a user's is. */
export const plainUser: readonly string[] = plainUserArgv();

function plainUserArgv(): readonly string[] {
  const setpriv = process.getuid?.() === 0 ? Bun.which("setpriv") : null;
  if (setpriv === null) return [];
  const argv = [setpriv, "--bounding-set=-dac_override,-dac_read_search,-fowner,-chown"];
  // A root that may not give up what it may do, as in some containers, is left as it is.
  return Bun.spawnSync([...argv, process.execPath, "--version"]).exitCode === 0 ? argv : [];
}

export interface Stranger {
  readonly home: string;
  /** The working folder. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string>>;
  run(argv: readonly string[]): Promise<{ output: string; errors: string; code: number }>;
  /** Starts `serve --dev`; resolves when it is ready. */
  serve(argv: readonly string[]): Promise<{ stop(): Promise<number>; output(): string }>;
}

/** @param prefixArgv what runs a program as the stranger, when not as the user of the test */
export function stranger(name: string, prefixArgv: readonly string[] = []): Stranger {
  const root = mkdtempSync(join(tmpdir(), `spangate-${name}-`));
  const [home, folder, bin] = ["home", "folder", "bin"].map((each) => join(root, each)) as [string, string, string];
  for (const each of [home, folder, bin]) mkdirSync(each);
  // Whoever the stranger is, these are theirs.
  for (const each of [root, home, folder]) chmodSync(each, each === root ? 0o755 : 0o777);
  if (nodePath !== null) symlinkSync(nodePath, join(bin, "node"));
  const env = { HOME: home, PATH: bin };
  const start = (argv: readonly string[]) =>
    Bun.spawn([...prefixArgv, ...argv], { cwd: folder, env, stdio: ["ignore", "pipe", "pipe"] });
  return {
    home,
    folder,
    env,
    async run(argv) {
      const child = start(argv);
      const [output, errors, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
      return { output: output.trim(), errors, code };
    },
    async serve(argv) {
      const child = start([...argv, "serve", "--dev", "--port", "0"]);
      let output = "";
      const read = async (stream: ReadableStream<Uint8Array>) => {
        const decoder = new TextDecoder();
        for await (const bytes of stream) output += decoder.decode(bytes, { stream: true });
      };
      void read(child.stdout);
      void read(child.stderr);
      await until(() => output.includes("ready; from this folder") || child.exitCode !== null, "a server", 40_000);
      if (child.exitCode !== null) throw new Error(`the server ended with ${child.exitCode}:\n${output}`);
      return {
        output: () => output,
        stop: async () => {
          child.kill("SIGTERM");
          return await child.exited;
        },
      };
    },
  };
}

/** The console as a browser gets it with all that it loads, and the documents: every page of the menu, and a search. */
export async function expectPages({ folder }: Stranger): Promise<void> {
  const { url } = JSON.parse(readFileSync(join(folder, ".spangate", "dev-access.json"), "utf8"));
  const page = async (path: string): Promise<string> => {
    const response = await fetch(url + path, { headers: { accept: "text/html" } });
    const text = await response.text();
    expect(response.status, `${path}: ${text.slice(0, 300)}`).toBe(200);
    return text;
  };
  const linked = (text: string, within: RegExp): string[] => [...text.matchAll(within)].map(([, path = ""]) => path);
  const shell = await page("/");
  const assets = linked(shell, /(?:src|href)="(\/console\/[^"]+)"/g);
  expect(assets.map((path) => path.split(".").at(-1)).sort()).toEqual(expect.arrayContaining(["css", "js"]));
  for (const path of assets) expect((await page(path)).length).toBeGreaterThan(100);
  const start = await page("/docs");
  const menu = linked(start, /<li><a href="(\/docs\/[^"#]+)"/g);
  expect(menu).toEqual(expect.arrayContaining(["/docs/operations", "/docs/span-queries", "/docs/api/chat"]));
  for (const path of new Set(menu)) expect(await page(path)).toContain("<h1");
  expect(await page("/docs/search?q=rotate%20salt")).toContain('href="/docs/operations#');
  expect(await page("/docs/pictures/rag.svg")).toContain("<svg");
}

/** Every file below a folder, with its size and when it was changed. */
export function listing(folder: string): readonly string[] {
  if (!existsSync(folder)) return [];
  const paths = readdirSync(folder, { recursive: true, encoding: "utf8" }).sort();
  return paths.map((path) => {
    const { size, mtimeMs } = statSync(join(folder, path));
    return `${path} ${size} ${mtimeMs}`;
  });
}
