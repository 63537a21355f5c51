/** Secrets that a process of the server's own user could read: its environment, its memory, its files. */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseConfig } from "../../gateway/config.ts";
import { type ExtractLimits, Extractor } from "../../gateway/corpus/ingest/extractor.ts";
import { ReaderProgram } from "../../gateway/corpus/ingest/reader-program.ts";
import { withSecrets } from "../../gateway/process/secret-settings.ts";

setDefaultTimeout(60_000);

const limits: ExtractLimits = {
  ...{ maxTextChars: 100_000, maxPages: 1, maxUnpackedBytes: 1, maxParts: 1 },
  ...{ maxMs: 30_000, maxMemoryBytes: 2 ** 40 },
};
const folder = mkdtempSync(join(tmpdir(), "spangate-secrets-"));
const secretFile = join(folder, "secret");
const key = "sk-a-key-that-nobody-may-find-in-a-process";
writeFileSync(secretFile, key);
afterAll(() => rmSync(folder, { recursive: true }));

/** What the program could open: a document that it is given names files, folders and a port. */
async function foundBy(program: ReaderProgram): Promise<readonly string[]> {
  using server = Bun.serve({ port: 0, fetch: () => new Response("reached") });
  const wanted = { files: [secretFile], folders: [folder], port: server.port };
  const bytes = new TextEncoder().encode(JSON.stringify(wanted));
  const { text } = await new Extractor(limits, program).extract("html", bytes, new AbortController().signal);
  return text.split("\n").filter((line) => line !== "");
}

const confine = join(import.meta.dir, "..", "..", "gateway", "process", "confine.ts");
const snooping = join(import.meta.dir, "snooping-document.ts");
let unconfined = false;
const program = new ReaderProgram(() => {
  unconfined = true;
}, snooping);
await program.arguments();

test("documents are confined wherever the system can confine a process", () => {
  const code = `
    const { executeConfined } = await import(${JSON.stringify(confine)});
    executeConfined(["/bin/true"], [{ path: "/", to: "execute" }]);
    process.exit(1);`;
  const canConfine = Bun.spawnSync([process.execPath, "-e", code], { env: {} }).exitCode === 0;
  expect(unconfined).toBe(!canConfine);
});

test.skipIf(unconfined)(
  "a document that takes over its reader finds no secret, no file and nobody to talk to",
  async () => {
    expect(await foundBy(program)).toEqual([]);
  },
);

test("the same document finds all of that where it is not confined, so it would have found a way", async () => {
  const open = new ReaderProgram();
  open.arguments = async () => [snooping];
  const found = await foundBy(open);
  const expected = [`${secretFile} at once`, `${secretFile} by a thread`, `${secretFile} by Bun`, `list of ${folder}`];
  expect(found).toEqual(expect.arrayContaining([...expected, "the server, by the network"]));
});

test.skipIf(process.platform !== "linux")(
  "a process that hides has no secret in the environment it was started with",
  async () => {
    const code = `
    const { hideSelf } = await import(${JSON.stringify(confine)});
    hideSelf(["SPANGATE_ADMIN_KEY", "EMPTY", "UNSET"]);
    console.log("hidden", process.env.OTHER);
    await Bun.stdin.bytes();`;
    const env = { SPANGATE_ADMIN_KEY: key, OTHER: "stays", EMPTY: "", PATH: process.env.PATH ?? "" };
    const child = Bun.spawn([process.execPath, "-e", code], { env, stdin: "pipe", stdout: "pipe" });
    const [line] = await child.stdout
      .getReader()
      .read()
      .then(({ value }) => [new TextDecoder().decode(value)]);
    expect(line).toBe("hidden stays\n");
    const isRoot = process.getuid?.() === 0;
    // Root may look; others may not even do that.
    const look = () => readFileSync(`/proc/${child.pid}/environ`, "latin1");
    if (isRoot) expect(look()).toContain("OTHER=stays");
    else expect(look).toThrow("EACCES");
    if (isRoot) expect(look()).not.toContain(key);
    child.stdin.end();
    expect(await child.exited).toBe(0);
  },
);

test("the key may stand in a file", () => {
  expect(parseConfig(withSecrets({ SPANGATE_ADMIN_KEY_FILE: secretFile })).adminKey).toBe(key);
  const both = { SPANGATE_ADMIN_KEY_FILE: secretFile, SPANGATE_ADMIN_KEY: key };
  expect(() => withSecrets(both)).toThrow("are both set");
  expect(() => withSecrets({ SPANGATE_ADMIN_KEY_FILE: join(folder, "none") })).toThrow(
    "SPANGATE_ADMIN_KEY_FILE: the file",
  );
  expect(withSecrets({ SPANGATE_ADMIN_KEY_FILE: "", SPANGATE_ADMIN_KEY: key })).toMatchObject({
    SPANGATE_ADMIN_KEY: key,
  });
});
