import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { demoModelFolder, readDemoCorpora } from "../../gateway/cli/demo-corpora.ts";
import { runSpangate } from "../support/command-line.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

const [corpus] = readDemoCorpora();

describe("the command line", () => {
  let server: TestServer;
  let apiKey = "";

  beforeAll(async () => {
    server = await startTestServer();
    apiKey = (await server.tenant("cli")).apiKey;
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  async function spangate(args: readonly string[], env: Record<string, string> = {}) {
    const { SPANGATE_ADMIN_KEY: _admin, SPANGATE_API_KEY: _key, ...inherited } = process.env;
    return await runSpangate(args, {
      env: { ...inherited, SPANGATE_URL: server.url, SPANGATE_API_KEY: apiKey, ...env },
    });
  }

  test("makes a tenant and a key, and revokes it", async () => {
    const admin = { SPANGATE_API_KEY: server.adminKey };
    const tenant = await spangate(["tenant", "create", "Acme"], admin);
    expect(tenant.output).toStartWith("tenant_");
    expect((await spangate(["tenant", "list"], admin)).output).toContain("Acme");
    const made = await spangate(["key", "create", "--tenant", tenant.output, "--name", "laptop"], admin);
    expect(made.output).toStartWith("sk-");
    expect((await spangate(["ask", "Hello?", "--max-tokens", "1", "--api-key", made.output])).code).toBe(0);
    const listed = await spangate(["key", "list", "--tenant", tenant.output], admin);
    expect(listed.output).toContain("laptop");
    const keyId = /key_\w+/.exec(listed.output)?.[0] ?? "";
    expect((await spangate(["key", "revoke", keyId], admin)).code).toBe(0);
    const refused = await spangate(["ask", "Hello?", "--api-key", made.output]);
    expect(refused).toMatchObject({ code: 1 });
    expect(refused.errors).toContain("401");
  });

  test("ingests, prepares and asks", async () => {
    const folder = join(demoModelFolder, "corpora", corpus?.tenant ?? "");
    const files = (corpus?.documents ?? []).map(({ name }) => join(folder, name));
    const ingested = await spangate(["ingest", ...files, "--new", "handbook"]);
    expect(ingested.output).toStartWith("vs_");
    expect(ingested.errors).toContain(`${files.length}/${files.length}`);
    const prepared = await spangate(["prepare", ingested.output]);
    expect(prepared).toMatchObject({ code: 0 });
    expect(prepared.errors).toMatch(/(\d+)\/\1 {2}fragments/);
    const [first] = corpus?.questions ?? [];
    const args = ["ask", first?.question ?? "", "--store", ingested.output, "--max-results", "6", "--stats"];
    const answer = await spangate(args);
    expect(answer.output).toContain(first?.answer ?? "?");
    expect(answer.errors).toMatch(/first token [\d.]+ ms .* [1-9]\d* cached .* device/);
  });

  test("ingests a folder and goes past what cannot be read", async () => {
    const folder = mkdtempSync(join(tmpdir(), "spangate ingest "));
    mkdirSync(join(folder, "staff"));
    writeFileSync(join(folder, "staff", "list.md"), "The extension of Jon Vale is 3057.");
    writeFileSync(join(folder, "broken.pdf"), "%PDF-1.7 and nothing more");
    const ingested = await spangate(["ingest", folder, "--new", "folder"]);
    expect([ingested.code, ingested.output.slice(0, 3)]).toEqual([1, "vs_"]);
    expect(ingested.errors).toContain(`${join(folder, "broken.pdf")}: `);
    expect(ingested.errors).toContain("1 of 2 files were ingested");
    const asked = await spangate(["ask", "What is the extension of Jon Vale?", "--store", ingested.output]);
    expect(asked.output).toBe("The extension of Jon Vale is 3057.");
  });

  test("answers from a file", async () => {
    const folder = mkdtempSync(join(tmpdir(), "spangate cli "));
    const file = join(folder, "staff list.md");
    writeFileSync(file, "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.");
    const answer = await spangate(["ask", "What is the extension of Jon Vale?", "--document", file]);
    expect(answer.output).toContain("3057");
    rmSync(folder, { recursive: true });
    expect((await spangate(["ask", "What?", "--document", file])).errors).toContain("staff list.md cannot be read");
  });

  test.each([
    [["ask"], 2, "QUESTION is missing"],
    [["ask", "a", "b"], 2, 'unexpected argument "b"'],
    [["ask", "a", "--max-tokens", "many"], 2, "--max-tokens must be a whole number"],
    [["ask", "a", "--nonsense"], 2, "--nonsense"],
    [["ingest", "nowhere.md", "--new", "x"], 1, "nowhere.md is neither a file nor a folder"],
    [["prepare", "vs_000000000000000000000000"], 1, "404"],
    [["tenant", "create", "x"], 1, "403"],
    [["ask", "a", "--url", "http://127.0.0.1:9"], 1, "no server answers"],
    [["frobnicate"], 2, "unknown command 'frobnicate'"],
  ] as const)("%p ends with %d", async (args, code, sentence) => {
    const result = await spangate(args);
    expect(result.code).toBe(code);
    expect(result.errors).toContain(sentence);
    expect(result.errors).not.toMatch(/\n\s+at /);
  });

  test("every command explains itself", async () => {
    const { output } = await spangate(["--help"]);
    const names = [...output.matchAll(/^ {2}([a-z]+) /gm)].map(([, name]) => name ?? "");
    const data = ["backup", "restore"];
    const work = ["tenant", "key", "usage", "ingest", "sync", "source", "prepare", "ask", "query", "explain"];
    expect(names).toEqual(["serve", "pull", "status", "doctor", ...work, ...data, "bench", "help"]);
    for (const name of names.slice(0, -1)) {
      const help = await spangate([name, "--help"]);
      expect(help).toMatchObject({ code: 0, errors: "" });
      expect(help.output).toContain(`Usage: spangate ${name}`);
    }
  });
});
