/** What each command that speaks to a server says when that fails: what is wrong, and what to do next. */
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { q } from "spangate/query";

const main = join(import.meta.dir, "..", "..", "gateway", "cli", "main.ts");
const dir = mkdtempSync(join(tmpdir(), "spangate-messages-"));
writeFileSync(join(dir, "a.txt"), "A text.");
writeFileSync(join(dir, "query.json"), JSON.stringify(q.g({}, "Hi")));
const refusal = { error: { message: "The API key is not valid.", code: "invalid_api_key" } };
const asked: string[] = [];
const refusing = Bun.serve({
  port: 0,
  fetch(request) {
    asked.push(new URL(request.url).pathname);
    return Response.json(refusal, { status: 401 });
  },
});
afterAll(async () => {
  await refusing.stop(true);
  rmSync(dir, { recursive: true });
});

interface Said {
  readonly output: string;
  readonly errors: string;
  readonly code: number;
}

async function spangate(args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<Said> {
  const child = Bun.spawn([process.execPath, main, ...args], {
    cwd: dir,
    env: { PATH: process.env.PATH ?? "", HOME: dir, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const [output, errors, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { output, errors, code };
}

/** Each command, right as it stands, and whose key it takes. */
const calls: readonly (readonly [role: "tenant" | "platform", ...args: string[]])[] = [
  ["tenant", "ask", "Who?"],
  ["tenant", "ask", "Who?", "-d", "a.txt"],
  ["tenant", "ask", "Who?", "--store", "vs_1"],
  ["tenant", "ingest", "a.txt", "--new", "x"],
  ["tenant", "sync", ".", "--new", "x"],
  ["tenant", "sync", ".", "--store", "vs_1"],
  ["tenant", "prepare", "vs_1"],
  ["tenant", "source", "list", "--store", "vs_1"],
  ["tenant", "query", "query.json"],
  ["tenant", "explain", "query.json"],
  ["platform", "usage"],
  ["platform", "tenant", "list"],
  ["platform", "tenant", "create", "Acme"],
  ["platform", "key", "list", "--tenant", "tenant_1"],
];
const nobody = "http://127.0.0.1:9";

describe.each(calls)("with the key of a %s: spangate %s %s", (role, ...args) => {
  const variable = role === "platform" ? "SPANGATE_ADMIN_KEY" : "SPANGATE_API_KEY";

  test("without a key", async () => {
    const { errors, code } = await spangate(args);
    expect(code).toBe(2);
    expect(errors).toStartWith(`spangate ${args[0]}: no API key: pass --api-key, set ${variable}, or start the server`);
  });

  test("without a server", async () => {
    const { output, errors, code } = await spangate([...args, "--url", nobody], { [variable]: "sk-x" });
    const remedy = 'start one with "bun run spangate serve --dev", or name another with --url';
    expect({ output, errors, code }).toEqual({
      output: "",
      errors: `spangate ${args[0]}: no server answers at ${nobody}; ${remedy}\n`,
      code: 1,
    });
  });

  test("with a wrong key, which says where the key is from", async () => {
    asked.length = 0;
    const { errors, code } = await spangate([...args, "--url", refusing.url.origin], { [variable]: "sk-x" });
    expect(asked).toHaveLength(1);
    const whose = `(the key is that of ${variable}; --api-key gives another)`;
    expect(errors).toBe(
      `spangate ${args[0]}: the server answered 401 (invalid_api_key): The API key is not valid. ${whose}\n`,
    );
    expect(code).toBe(1);
  });

  test("with what is no URL", async () => {
    const { errors, code } = await spangate([...args, "--url", "ftp://x"], { [variable]: "sk-x" });
    expect(errors).toBe(`spangate ${args[0]}: "ftp://x" is no URL of a server, such as http://127.0.0.1:8080\n`);
    expect(code).toBe(1);
  });
});

test("a host that is not this machine is not told to be started here", async () => {
  const { errors } = await spangate(["ask", "Who?", "--url", "http://host.invalid"], { SPANGATE_API_KEY: "sk-x" });
  expect(errors).toBe("spangate ask: no server answers at http://host.invalid; is --url (or SPANGATE_URL) right?\n");
});

test("status and doctor refuse what is no URL, too", async () => {
  for (const command of ["status", "doctor"]) {
    const { errors, code } = await spangate([command, "--url", "nonsense"]);
    expect(errors).toBe(`spangate ${command}: "nonsense" is no URL of a server, such as http://127.0.0.1:8080\n`);
    expect(code).toBe(1);
  }
});

test.each([
  [["tenant", "creat"], "say one of: create NAME, list, delete ID, budget ID"],
  [["tenant"], "say one of: create NAME"],
  [["key", "creat"], "say one of: create --tenant ID, list --tenant ID, revoke KEY_ID, reset-admin"],
  [["key", "create"], "--tenant is missing"],
  [["source", "ad", "x"], "say one of: add URL --store ID"],
])("%p is wrong usage, key or not", async (args, sentence) => {
  const { errors, code } = await spangate(args);
  expect(errors).toStartWith(`spangate ${args[0]}: ${sentence}`);
  expect(code).toBe(2);
});
