/**
 * The examples of the documents, run: what stands in README and docs as shell with curl and the command line, and as
 * TypeScript, against a server with the demo model.
 */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readText, repositoryRoot } from "../support/import-graph.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

setDefaultTimeout(120_000);

interface Block {
  readonly file: string;
  readonly language: string;
  readonly code: string;
}

/** Fenced blocks of a document, of the languages that are run. */
function blocksOf(file: string): readonly Block[] {
  const fences = readText(file).matchAll(/^```(sh|ts|python)\n([\s\S]*?)^```/gm);
  return [...fences].map(([, language = "", code = ""]) => ({ file, language, code }));
}

const blocks = ["README.md", "docs/quickstart-cpu.md", "docs/api.md"].flatMap(blocksOf);
/** Shell that asks a server; what installs or starts one is run by test/packages and test/cli. */
const shells = blocks.filter(
  ({ language, code }) => language === "sh" && /\$SPANGATE_URL\/|spangate (?:query|explain)/.test(code),
);
const scripts = blocks.filter(({ language }) => language === "ts");
const pythons = blocks.filter(({ language }) => language === "python");

interface World {
  readonly server: TestServer;
  readonly tenant: TestTenant;
  /** With the file that examples upload. */
  readonly folder: string;
  readonly fileId: string;
  readonly storeId: string;
}
const context: { world?: World } = {};

beforeAll(async () => {
  const server = await startTestServer();
  const tenant = await server.tenant("reader");
  const folder = mkdtempSync(join(tmpdir(), "spangate-examples-"));
  symlinkSync(join(repositoryRoot, "node_modules"), join(folder, "node_modules"));
  writeFileSync(join(folder, "handbook.md"), "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.\n");
  const form = new FormData();
  form.set("purpose", "assistants");
  form.set("file", new File(["Mara Ellison works as a cartographer."], "other.md"));
  const headers = { authorization: `Bearer ${tenant.apiKey}` };
  const uploaded = await fetch(`${server.url}/v1/files`, { method: "POST", headers, body: form });
  const { id: fileId } = (await uploaded.json()) as { id: string };
  const { id: storeId } = await tenant.client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "store" });
  context.world = { server, tenant, folder, fileId, storeId };
});
afterAll(async () => {
  if (context.world === undefined) return;
  await context.world.server[Symbol.asyncDispose]();
  rmSync(context.world.folder, { recursive: true, force: true });
});

/** @returns what it wrote, both streams together. @throws Error with that when it fails */
async function run(argv: readonly string[]): Promise<string> {
  const { server, tenant, folder } = context.world as World;
  const env = { ...process.env, SPANGATE_URL: server.url, SPANGATE_API_KEY: tenant.apiKey };
  const child = Bun.spawn([...argv], { cwd: folder, env, stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [out, errors, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0) throw new Error(`${code}: ${out}${errors}`);
  return out + errors;
}

/** The block as it is, but for this server's address and ids in place of those that a reader fills in. */
function runnable(code: string): string {
  const { fileId, storeId } = context.world as World;
  return code
    .replace(/^export SPANGATE_URL.*$/gm, "")
    .replaceAll("bun run spangate", `"${process.execPath}" "${join(repositoryRoot, "gateway/cli/main.ts")}"`)
    .replaceAll("vs_…", storeId)
    .replaceAll("file-…", fileId);
}

describe("examples of", () => {
  test("the documents are found", () => {
    expect(shells.map(({ file }) => file)).toEqual([
      "README.md",
      "docs/quickstart-cpu.md",
      "docs/api.md",
      "docs/api.md",
      "docs/api.md",
    ]);
    expect([scripts.length, pythons.length]).toEqual([1, 1]);
  });

  for (const [index, { file, code }] of shells.entries()) {
    test(`${file}, shell ${index + 1}`, async () => {
      const strict = 'set -e\ncurl() { command curl --fail-with-body "$@"; }\n';
      const written = await run(["bash", "-c", strict + runnable(code)]);
      expect(written).toMatch(code.includes("extension of Jon Vale") ? /3057/ : /"(?:id|object)"|Mara Ellison/);
    });
  }

  for (const { file, code } of scripts) {
    test(`${file}, TypeScript`, async () => {
      const { folder } = context.world as World;
      writeFileSync(join(folder, "example.ts"), code);
      expect(await run([process.execPath, "example.ts"])).toContain("3057");
    });
  }

  for (const { file, code } of pythons) {
    test.skipIf(Bun.which("python3") === null)(`${file}, Python`, async () => {
      const { folder } = context.world as World;
      writeFileSync(join(folder, "example.py"), code);
      // Where OpenAI's package for Python is not installed, the example is at least Python.
      const has = await run(["python3", "-c", "import openai"]).then(
        () => true,
        () => false,
      );
      if (has) expect(await run(["python3", "example.py"])).toContain("3057");
      else await run(["python3", "-m", "py_compile", "example.py"]);
    });
  }
});
