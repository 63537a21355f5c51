/**
 * What a stranger does with the tarballs: npm installs them without a network, in a prefix that is then read-only, and
 * one question is answered within the bar. Packing a hundred megabytes takes its time, so this is for `check --all`;
 * stage.test.ts runs the same files as they are laid out.
 */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { version } from "../../package.json";
import { nativePackage, root } from "../../places/places.ts";
import { isLong } from "../support/effort.ts";
import { expectPages, listing, nodePath, plainUser, type Stranger, stranger } from "./installed.ts";

setDefaultTimeout(300_000);

const npm = Bun.which("npm");
const folder = mkdtempSync(join(tmpdir(), "spangate-install-"));
const [packed, prefix] = [join(folder, "packed"), join(folder, "prefix")];
const chmod = (change: string) => Bun.spawnSync(["chmod", "-R", change, prefix]);
const tarballs = () =>
  readdirSync(packed)
    .filter((file) => file.endsWith(".tgz"))
    .map((file) => join(packed, file));

/** From `npm i -g` on, or from unpacking: everything until the first answer has this long. */
const answerMs = 10_000;
const question = ["ask", "-d", "staff.md", "What is the extension of Jon Vale?"];

async function run(argv: readonly string[], cwd: string, env: Readonly<Record<string, string>>) {
  const child = Bun.spawn([...argv], { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
  const [output, errors, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  if (code !== 0) throw new Error(`${argv.join(" ")} ended with ${code}:\n${output}${errors}`);
  return output;
}

/** npm's own environment: an empty home, and the folders that its first line looks for Node in. */
const npmEnv = (home: string) => ({ HOME: home, PATH: [dirname(nodePath ?? ""), "/usr/bin", "/bin"].join(":") });

async function expectAnswer(someone: Stranger, argv: readonly string[]): Promise<void> {
  writeFileSync(
    join(someone.folder, "staff.md"),
    "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.",
  );
  const startMs = performance.now();
  const server = await someone.serve(argv);
  const answer = await someone.run([...argv, ...question]);
  const tookMs = performance.now() - startMs;
  process.stdout.write(`first answer ${(tookMs / 1_000).toFixed(2)} s after "serve --dev"\n`);
  expect(answer).toMatchObject({ code: 0, errors: expect.stringContaining("[staff.md] ") });
  expect(answer.output).toContain("3057");
  expect(tookMs).toBeLessThan(answerMs);
  await expectPages(someone);
  expect(await server.stop()).toBe(0);
}

describe.skipIf(!isLong || process.platform !== "linux" || process.arch !== "x64" || npm === null || nodePath === null)(
  "from tarballs alone",
  () => {
    beforeAll(async () => {
      const { HOME = "", PATH = "" } = process.env;
      await run([process.execPath, "run", "package", packed], root, { HOME, PATH });
    });
    afterAll(() => {
      chmod("u+w");
      rmSync(folder, { recursive: true, force: true });
    });

    test("npm i -g offline, then an answer from a prefix that nobody may write to", async () => {
      const someone = stranger("npm", plainUser);
      const argv = [npm ?? "", "install", "--global", "--offline", "--prefix", prefix, ...tarballs()];
      await run(argv, someone.folder, npmEnv(someone.home));
      chmod("a-w");
      const before = listing(prefix);
      const made = new Set(listing(someone.home));
      await expectAnswer(someone, [join(prefix, "bin", "spangate")]);
      expect(listing(prefix)).toEqual(before);
      expect(listing(someone.home).filter((each) => !made.has(each))).toEqual([]);
      // PATH's Node reads the link's first line, as a shell would have it.
      expect(await someone.run([join(prefix, "bin", "spangate"), "--version"])).toMatchObject({
        output: version,
        code: 0,
      });
    });

    test("npx runs them without installing", async () => {
      const someone = stranger("npx");
      const packages = tarballs().flatMap((path) => ["--package", path]);
      const argv = [join(dirname(npm ?? ""), "npx"), "--offline", "--yes", ...packages, "spangate", "--version"];
      expect((await run(argv, someone.folder, npmEnv(someone.home))).trim()).toBe(version);
    });

    test("the release answers where there is no Node either", async () => {
      const someone = stranger("release", plainUser);
      const release = join(folder, "release");
      mkdirSync(release);
      const [archive = ""] = readdirSync(packed).filter((file) => file.endsWith(".tar.gz"));
      await run(
        ["tar", "-xzf", join(packed, archive), "--strip-components=1", "-C", release],
        folder,
        npmEnv(someone.home),
      );
      rmSync(join(someone.env.PATH ?? "", "node"));
      // The script that starts it needs a shell's usual tools.
      for (const tool of ["sh", "dirname", "readlink"]) {
        await run(
          ["ln", "-s", Bun.which(tool) ?? "", join(someone.env.PATH ?? "", tool)],
          folder,
          npmEnv(someone.home),
        );
      }
      await expectAnswer(someone, [join(release, "bin", "spangate")]);
    });

    const compiler = Bun.which("g++") ?? Bun.which("clang++");
    test.skipIf(compiler === null)("kernels that are not ready are compiled into the user's caches", async () => {
      const someone = stranger("compile", plainUser);
      const native = join(prefix, "lib", "node_modules", nativePackage);
      const [kernels = ""] = readdirSync(native).filter((file) => file.startsWith("cpu-"));
      chmod("u+w");
      rmSync(join(native, kernels));
      chmod("a-w");
      const path = `PATH=${[someone.env.PATH, dirname(compiler ?? ""), "/usr/bin", "/bin"].join(":")}`;
      const { output } = await someone.run([Bun.which("env") ?? "", path, join(prefix, "bin", "spangate"), "doctor"]);
      expect(output).toMatch(/^ok {4}kernels: /m);
      expect(readdirSync(join(someone.home, ".cache", "spangate"))).toEqual([expect.stringMatching(/^cpu-\w+\.so$/)]);
    });
  },
);
