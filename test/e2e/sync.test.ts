/** `spangate sync` as a person uses it: edit, run, look; cut off and run again. */
import { afterAll, beforeAll, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { VectorStoreFile } from "../../gateway/cli/support/operations.ts";
import { runSpangate, startSpangate } from "../support/command-line.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

setDefaultTimeout(60_000);

let server: TestServer;
let apiKey = "";
let folder = "";

beforeAll(async () => {
  server = await startTestServer();
  apiKey = (await server.tenant("sync")).apiKey;
});
afterAll(async () => await server[Symbol.asyncDispose]());

const write = (name: string, text: string) => writeFileSync(join(folder, name), text);

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "spangate sync "));
  mkdirSync(join(folder, "staff"));
  write("staff/list.md", "The extension of Jon Vale is 3057.");
  write("town.md", "Jon Vale lives in Fairhaven.");
  write("old.txt", "A note that nobody needs any more.");
});

const shell = () => {
  const { SPANGATE_ADMIN_KEY: _admin, ...inherited } = process.env;
  return { env: { ...inherited, SPANGATE_URL: server.url, SPANGATE_API_KEY: apiKey } };
};
const start = (args: readonly string[]) => startSpangate(args, shell());
const spangate = (...args: string[]) => runSpangate(args, shell());

async function get<Answer>(path: string): Promise<Answer> {
  const answer = await fetch(server.url + path, { headers: { authorization: `Bearer ${apiKey}` } });
  return (await answer.json()) as Answer;
}

async function namesIn(store: string): Promise<string[]> {
  const { data } = await get<{ data: VectorStoreFile[] }>(`/v1/vector_stores/${store}/files?limit=100`);
  return data.map(({ spangate, status }) => `${spangate?.filename} ${status}`).sort();
}

const uploads = async () => (await get<{ data: { filename: string }[] }>("/v1/files")).data.map((one) => one.filename);

test("a folder, edited and synced again: what changed is sent, and nothing else", async () => {
  const first = await spangate("sync", folder, "--new", "handbook");
  const [store = "", summary] = first.output.split("\n");
  expect([first.code, summary]).toEqual([0, "3 added, 0 changed, 0 removed, 0 unchanged, 0 failed"]);
  write("staff/list.md", "The extension of Jon Vale is 4411.");
  renameSync(join(folder, "town.md"), join(folder, "home.md"));
  rmSync(join(folder, "old.txt"));
  const dry = await spangate("sync", folder, "--store", store, "--dry-run");
  expect(dry.output.split("\n")).toEqual([
    "add home.md",
    "change staff/list.md",
    "remove old.txt",
    "remove town.md",
    "would be: 1 added, 1 changed, 2 removed, 0 unchanged, 0 failed",
  ]);
  expect(await namesIn(store)).toEqual(["old.txt completed", "staff/list.md completed", "town.md completed"]);
  const second = await spangate("sync", folder, "--store", store);
  expect([second.code, second.output]).toEqual([0, "1 added, 1 changed, 2 removed, 0 unchanged, 0 failed"]);
  expect(await namesIn(store)).toEqual(["home.md completed", "staff/list.md completed"]);
  expect(await uploads()).toEqual(expect.not.arrayContaining(["old.txt", "town.md"]));
  const asked = await spangate("ask", "What is the extension of Jon Vale?", "--store", store);
  expect(asked.output).toContain("4411");
  const third = await spangate("sync", folder, "--store", store);
  expect(third).toMatchObject({ code: 0, output: "0 added, 0 changed, 0 removed, 2 unchanged, 0 failed" });
});

test("after an ingest: unchanged files are known, edited ones are replaced, what came in another way stays", async () => {
  const store = (await spangate("ingest", folder, "--new", "ingested")).output;
  write("staff/list.md", "The extension of Jon Vale is 4411.");
  rmSync(join(folder, "old.txt"));
  const synced = await spangate("sync", folder, "--store", store);
  expect(synced).toMatchObject({ code: 0, output: "0 added, 1 changed, 0 removed, 1 unchanged, 0 failed" });
  expect(synced.errors).toContain("1 files of the store came there in another way and stay; --mirror");
  expect((await namesIn(store)).length).toBe(3);
  expect((await spangate("sync", folder, "--store", store, "--mirror")).output).toContain("1 removed, 2 unchanged");
  expect(await namesIn(store)).toEqual(["staff/list.md completed", "town.md completed"]);
});

test("a file that breaks keeps its last good version, is named with its reason, and is tried again", async () => {
  const store = (await spangate("sync", folder, "--new", "broken")).output.split("\n")[0] ?? "";
  write("town.md", "\0\0");
  for (const _ of [1, 2]) {
    const broken = await spangate("sync", folder, "--store", store);
    expect([broken.code, broken.output]).toEqual([1, "0 added, 0 changed, 0 removed, 2 unchanged, 1 failed"]);
    expect(broken.errors).toContain(`${join(folder, "town.md")}: `);
    expect(broken.errors).toContain("NUL characters");
  }
  expect((await namesIn(store)).filter((name) => name.startsWith("town"))).toEqual([
    "town.md completed",
    "town.md failed",
  ]);
  write("town.md", "Jon Vale lives in Ulm.");
  expect((await spangate("sync", folder, "--store", store)).output).toContain("0 added, 1 changed, 0 removed");
  expect((await namesIn(store)).filter((name) => name.startsWith("town"))).toEqual(["town.md completed"]);
});

test("killed anywhere and run again, the store ends as the folder is", async () => {
  for (let i = 0; i < 30; i++) write(`note ${i}.md`, `Note ${i} says little.`);
  const store = (await spangate("sync", folder, "--new", "killed")).output.split("\n")[0] ?? "";
  for (let round = 1; round <= 4; round++) {
    for (let i = 0; i < 30; i += 2) write(`note ${i}.md`, `Note ${i} says more, for the ${round}. time.`);
    const child = start(["sync", folder, "--store", store]);
    await Bun.sleep(150 + 150 * round);
    child.kill("SIGKILL");
    await child.exited;
    const names = (await namesIn(store)).map((name) => name.replace(/ \w+$/, ""));
    expect(new Set(names).size).toBe(33);
  }
  expect(await spangate("sync", folder, "--store", store)).toMatchObject({ code: 0 });
  expect((await namesIn(store)).length).toBe(33);
  const after = await spangate("sync", folder, "--store", store);
  expect(after.output).toBe("0 added, 0 changed, 0 removed, 33 unchanged, 0 failed");
});

test("an empty folder takes nothing out unless that is meant, and a wrong one is named", async () => {
  const store = (await spangate("sync", folder, "--new", "empty", "--as", "docs")).output.split("\n")[0] ?? "";
  const empty = mkdtempSync(join(tmpdir(), "spangate empty "));
  const refused = await spangate("sync", empty, "--store", store, "--as", "docs");
  expect([refused.code, (await namesIn(store)).length]).toEqual([1, 3]);
  expect(refused.errors).toContain("--allow-empty");
  const meant = await spangate("sync", empty, "--store", store, "--as", "docs", "--allow-empty");
  expect([meant.code, await namesIn(store)]).toEqual([0, []]);
  expect(await spangate("sync", join(folder, "town.md"), "--store", store)).toMatchObject({ code: 1 });
  expect(await spangate("sync", folder, folder, "--store", store)).toMatchObject({ code: 2 });
  expect(await spangate("sync", folder, "--store", store, "--new", "x")).toMatchObject({ code: 2 });
});
