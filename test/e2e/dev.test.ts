/** Two commands are enough: `spangate serve --dev`, and `spangate ask`. And what `status` and `doctor` say meanwhile. */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { version } from "../../package.json";
import { devSign, runSpangate, serveSpangate } from "../support/command-line.ts";
import { until } from "../support/until.ts";

setDefaultTimeout(60_000);

const root = mkdtempSync(join(tmpdir(), "spangate dev "));
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** A stranger's shell: nothing is set, and it stands in a folder of its own. */
const shell = (env: Readonly<Record<string, string>> = {}) => ({
  env: { PATH: process.env.PATH ?? "", HOME: root, ...env },
  cwd: root,
});
const spangate = (args: readonly string[], env: Readonly<Record<string, string>> = {}) => runSpangate(args, shell(env));

const serve = (flags: readonly string[], sign = "listening on") => serveSpangate(flags, sign, shell());
const serveDev = () => serve(["--dev"], devSign);

/** It signs a browser in as the tenant, once. */
async function expectConsoleLink({ url, output }: Awaited<ReturnType<typeof serveDev>>): Promise<void> {
  await until(async () => output().includes("in a browser, once: "), "the link is printed");
  const [, page, link] = /in a browser, once: (\S+)\/#\/sign-in\/(\S+)/.exec(output()) ?? [];
  expect(page).toBe(url);
  const signIn = () =>
    fetch(`${url}/admin/v1/session`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-spangate-console": "1", origin: url },
      body: JSON.stringify({ link }),
    });
  const signedIn = await signIn();
  expect(await signedIn.json()).toMatchObject({ object: "session", tenant_name: "default" });
  expect(signedIn.headers.get("set-cookie")).toContain("HttpOnly");
  expect((await signIn()).status).toBe(401);
}

const ask = ["ask", "-d", "staff.md", "What is the extension of Jon Vale?"];

test("serve --dev, then ask; again after a restart", async () => {
  writeFileSync(join(root, "staff.md"), "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.");
  const without = await spangate(ask);
  expect(without.code).toBe(2);
  expect(without.errors).toContain('or start the server with "bun run spangate serve --dev"');
  expect(await spangate(["status"])).toMatchObject({
    code: 1,
    output:
      'http://127.0.0.1:8080: no server answers; start one with "bun run spangate serve --dev", or name another with --url',
  });

  const first = await serveDev();
  const answer = await spangate(ask);
  expect(answer).toMatchObject({ code: 0, errors: "  [staff.md] The extension of Jon Vale is 3057.\n" });
  expect(answer.output).toContain("3057");
  const status = await spangate(["status"]);
  expect(status.code).toBe(0);
  expect(status.output.split("\n")).toEqual([`${first.url}: ready`, "model: demo", "worker-0: ready"]);
  const doctor = await spangate(["doctor"]);
  expect(doctor.output).not.toContain("wrong");
  expect(doctor.output.split("\n").map((line) => line.split(/[:\s]+/)[1])).toEqual([
    "Bun",
    "settings",
    "model",
    "search",
    "devices",
    "memory",
    "kernels",
    "data",
    "server",
    "API",
  ]);
  expect(doctor.code).toBe(0);

  const file = join(root, ".spangate", "dev-access.json");
  expect(statSync(file).mode & 0o777).toBe(0o600);
  const access = JSON.parse(readFileSync(file, "utf8")) as { api_key: string; admin_key: string };
  // Tenants and their keys are made without a further word, and a key of such a tenant works.
  const made = await spangate(["tenant", "create", "acme"]);
  expect(made).toMatchObject({ code: 0, errors: "" });
  expect(made.output).toStartWith("tenant_");
  const minted = await spangate(["key", "create", "--tenant", made.output]);
  expect(minted).toMatchObject({ code: 0, errors: "" });
  expect((await spangate(ask, { SPANGATE_API_KEY: minted.output })).output).toContain("3057");
  expect((await spangate(["tenant", "list"])).output).toContain("acme");
  // The key is for that server alone, and what is set goes before it.
  expect((await spangate([...ask, "--url", "http://127.0.0.1:9"])).errors).toContain("no API key");
  expect((await spangate(ask, { SPANGATE_API_KEY: "sk-wrong", SPANGATE_URL: first.url })).errors).toContain("401");
  await expectConsoleLink(first);
  expect(await first.stop()).toBe(0);

  const gone = await spangate(ask);
  expect(gone).toMatchObject({ code: 1 });
  expect(gone.errors).toContain("no server answers");
  // onnxruntime, unless told otherwise, keeps an identifier of the machine here, and sends it to its maker.
  expect(existsSync(join(root, ".cache", "Microsoft"))).toBe(false);
  const nobody = await spangate(["doctor"], { SPANGATE_DATA: join(root, "elsewhere") });
  expect(nobody.output).toMatch(/^none {2}server: none answers at .* — start one with "bun run spangate serve --dev"/m);
  expect(nobody.output).toMatch(/^\? {5}API key: not looked at without server$/m);
  expect(nobody).toMatchObject({ code: 0, output: expect.not.stringContaining("wrong") });
  const sick = await spangate(["doctor"], { SPANGATE_MODEL: "Qwen/Qwen3-8B" });
  expect(sick.code).toBe(1);
  expect(sick.output).toMatch(/^wrong model: SPANGATE_MODEL is "Qwen\/Qwen3-8B".* — name a folder/m);
  expect(sick.output).toMatch(/^\? {5}memory: not looked at without model$/m);
  const misled = await spangate(["doctor"], { SPANGATE_KV_BYTES: "8XB", SPANGATE_URL: "http://127.0.0.1:9" });
  expect(misled.code).toBe(1);
  expect(misled.output).toMatch(/^wrong settings: SPANGATE_KV_BYTES must be a size in bytes/m);
  expect(misled.output).toMatch(/^\? {5}kernels: not looked at without settings$/m);
  expect(misled.output).toMatch(/^wrong server: none answers at http:\/\/127\.0\.0\.1:9 — start one/m);

  const second = await serveDev();
  expect(JSON.parse(readFileSync(file, "utf8"))).toEqual({ ...access, url: second.url });
  expect((await spangate(ask)).output).toContain("3057");
  expect(await second.stop()).toBe(0);

  // A start that others may reach has no admin key in a file.
  const open = await serve([]);
  expect(JSON.parse(readFileSync(file, "utf8"))).toEqual({ url: second.url, api_key: access.api_key });
  const refused = await spangate(["tenant", "list", "--url", open.url, "--api-key", access.admin_key]);
  expect(refused.errors).toContain("401");
  expect(await open.stop()).toBe(0);
  const third = await serveDev();
  expect((await spangate(["tenant", "list"])).output).toContain("acme");
  expect(await third.stop()).toBe(0);
});

test.each([
  [["serve", "--port", "http"], 2, "spangate serve: --port must be a whole number\n"],
  [["serve", "--kv-bytes", "8G"], 2, "spangate serve: --kv-bytes must be a size in bytes, as in 8GB, 8GiB"],
  [["serve", "--model", "x.gguf"], 2, "spangate serve: --model names a GGUF file (x.gguf)"],
  [["serve", "--kv-type", "int4"], 2, "spangate serve: --kv-type must be"],
  [["serve", "--dev", "--host", "0.0.0.0"], 2, "spangate serve: --host must be 127.0.0.1, ::1 or localhost with"],
  [["serve", "--prot", "1"], 2, "(Did you mean --port?)"],
  [["serv"], 2, "(Did you mean serve?)"],
] as const)("%p is blamed on what was typed", async (args, code, sentence) => {
  const result = await spangate(args);
  expect(result.errors).toContain(sentence);
  expect(result.errors).not.toContain("SPANGATE_PORT");
  expect(result.code).toBe(code);
});

test("a wrong variable is blamed on the variable", async () => {
  const { errors, code } = await spangate(["serve"], { SPANGATE_PORT: "http" });
  expect({ errors, code }).toEqual({ errors: "spangate serve: SPANGATE_PORT must be a whole number\n", code: 1 });
});

test("the version, and a flag for every setting in the help", async () => {
  expect(await spangate(["--version"])).toEqual({ output: version, errors: "", code: 0 });
  const { output } = await spangate(["serve", "--help"]);
  for (const flag of ["--dev", "-p, --port <PORT>", "--kv-bytes <SIZE>", "--embedding-model <DIR>", "--log <LEVEL>"])
    expect(output).toContain(flag);
  expect(output).toContain("SPANGATE_KV_BYTES");
  expect(output).toMatch(/--strict {2,}A field that nobody knows/);
  expect(output).not.toContain("--admin-key <");
});
