/** The first start as an operator lives it: the key that is printed once, and what to do when it is lost. */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";
import { runSpangate } from "../support/command-line.ts";
import { until } from "../support/until.ts";

setDefaultTimeout(60_000);

const root = mkdtempSync(join(tmpdir(), "spangate first "));
const dataDir = join(root, "data");
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** The environment of somebody who has set nothing. */
const plainEnv = { PATH: process.env.PATH ?? "", HOME: root, SPANGATE_PORT: "0", SPANGATE_DATA: dataDir };

function serve(env: Readonly<Record<string, string>> = {}) {
  const child = Bun.spawn([process.execPath, join(repositoryRoot, "gateway", "main.ts")], {
    env: { ...plainEnv, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const said = { output: "", log: "" };
  const read = async (stream: ReadableStream<Uint8Array>, name: "output" | "log"): Promise<void> => {
    const decoder = new TextDecoder();
    for await (const bytes of stream) said[name] += decoder.decode(bytes, { stream: true });
  };
  void read(child.stdout, "output");
  void read(child.stderr, "log");
  const url = (): string => /listening on (\S+)/.exec(said.output)?.[1] ?? "";
  const isReady = async (): Promise<boolean> => url() !== "" && (await fetch(`${url()}/ready`)).status === 200;
  const stop = async (): Promise<number> => {
    child.kill("SIGTERM");
    return await child.exited;
  };
  return { said, url, isReady, stop };
}

const spangate = (args: readonly string[]) => runSpangate(args, { env: plainEnv, cwd: root });

test("the admin key is printed once the server can answer, and says what to do to chat; lost, it is reset", async () => {
  const first = serve();
  await until(first.isReady, "the server is ready", 30_000);
  await until(async () => first.said.output.includes("shown this once"), "the key is printed");
  const lines = first.said.output.trim().split("\n");
  expect(lines[0]).toStartWith("spangate is listening on http://127.0.0.1:");
  const lost = /shown this once: (sk-\S+)/.exec(first.said.output)?.[1] ?? "";
  expect(lost).toStartWith("sk-");
  const asAdmin = new HttpClient({ url: first.url(), apiKey: lost });
  const chat = { model: "demo", messages: [{ role: "user", content: "Hello?" }] };
  const refused = asAdmin.json("POST", "/v1/chat/completions", chat);
  await expect(refused).rejects.toThrow(/403.*spangate tenant create NAME.*spangate key create --tenant ID/);
  const running = await spangate(["key", "reset-admin"]);
  expect(running).toMatchObject({ code: 1, output: "" });
  expect(running.errors).toBe(`spangate key: a server runs on ${dataDir}: stop it first, then reset the key\n`);
  expect(await first.stop()).toBe(0);

  const reset = await spangate(["key", "reset-admin"]);
  expect(reset.output).toMatch(/^sk-\S+$/);
  expect(reset.code).toBe(0);
  expect(reset.errors).toContain("the ones before are revoked");
  const second = serve();
  await until(second.isReady, "the server is ready again", 30_000);
  const admin = new HttpClient({ url: second.url(), apiKey: reset.output });
  const audit = await admin.json<{ data: { action: string; actor: object }[] }>("GET", "/admin/v1/audit");
  expect(audit.data[0]).toMatchObject({
    action: "spangate key reset-admin",
    actor: { key_id: "data-folder", tenant_id: null },
  });
  const before = new HttpClient({ url: second.url(), apiKey: lost });
  const refusal = await before.json("GET", "/admin/v1/tenants").catch(String);
  expect(refusal).toContain("401");
  expect(second.said.output).not.toContain("shown this once");

  const { id } = await admin.json<{ id: string }>("POST", "/admin/v1/tenants", { name: "acme" });
  const { key } = await admin.json<{ key: string }>("POST", `/admin/v1/tenants/${id}/keys`, { scopes: ["inference"] });
  const tenant = new HttpClient({ url: second.url(), apiKey: key });
  await tenant.json("POST", "/v1/chat/completions", { ...chat, max_tokens: 2 });
  for await (const _event of tenant.events("POST", "/v1/chat/completions", { ...chat, max_tokens: 2, stream: true }));
  const logged = () =>
    second.said.log
      .split("\n")
      .filter((line) => line.includes("/v1/chat/completions"))
      .map((line) => JSON.parse(line));
  await until(async () => logged().length === 2, "both requests are in the log");
  for (const line of logged()) {
    expect(line).toMatchObject({
      level: "info",
      message: "request",
      requestId: expect.stringMatching(/^req_/),
      method: "POST",
      route: "/v1/chat/completions",
      tenant: id,
      status: 200,
    });
    expect(line.ms).toBeGreaterThanOrEqual(0);
    expect(line.tokens).toBeGreaterThan(2);
  }
  expect(second.said.log).not.toContain("Hello?");
  expect(await second.stop()).toBe(0);
});

test("a wrong --data is told of", async () => {
  const reset = await spangate(["key", "reset-admin", "--data", join(root, "elsewhere")]);
  expect(reset.code).toBe(1);
  expect(reset.errors).toMatch(/elsewhere has no database: name the server's data folder with --data/);
});

test("a snapshot of the hub's cache is served under its name", async () => {
  const demo = join(repositoryRoot, "worker", "model", "demo");
  const folder = join(root, "models--acme--tiny-1B", "snapshots", "9c925d64d72725edaf899c6cb9c377fd0709d9c5");
  mkdirSync(folder, { recursive: true });
  for (const name of readdirSync(demo)) symlinkSync(join(demo, name), join(folder, name));
  const adminKey = "an-admin-key-of-this-test-alone";
  const server = serve({ SPANGATE_MODEL: folder, SPANGATE_ADMIN_KEY: adminKey, SPANGATE_DATA: join(root, "hub") });
  await until(server.isReady, "the server is ready", 30_000);
  const client = new HttpClient({ url: server.url(), apiKey: adminKey });
  const list = await client.json<{ data: { id: string }[] }>("GET", "/v1/models");
  expect(list.data[0]?.id).toBe("acme/tiny-1B");
  expect(await client.json("GET", "/v1/models/acme%2Ftiny-1B")).toMatchObject({ id: "acme/tiny-1B" });
  expect(await client.json("GET", "/v1/models/acme/tiny-1B")).toMatchObject({ id: "acme/tiny-1B" });
  expect(await server.stop()).toBe(0);
});
