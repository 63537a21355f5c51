/** One table makes the environment's names, the flags, the help and the docs. */
import { expect, test } from "bun:test";
import { join } from "node:path";
import { parseConfig } from "../../gateway/config.ts";
import { unknownSettings } from "../../gateway/process/child-environment.ts";
import { flaggedSettings, flagOf, plainText, settings, settingsMarkdown } from "../../gateway/settings/table.ts";
import { repositoryRoot } from "../support/import-graph.ts";

test("the docs' table is the table", async () => {
  const page = await Bun.file(join(repositoryRoot, "docs", "operations.md")).text();
  const [, section = ""] = page.split("\n## Settings\n");
  const [table = ""] = /^\|[\s\S]*?\n(?=\n)/m.exec(section) ?? [];
  expect(table.trim()).toBe(settingsMarkdown());
});

test("every setting is known by its name, and no secret is a flag", () => {
  const named = Object.fromEntries(settings.map(([name]) => [name, "x"]));
  expect(unknownSettings({ ...named, SPANGATE_NO_SUCH: "x" })).toEqual(["SPANGATE_NO_SUCH"]);
  const flags = flaggedSettings.map(([name]) => flagOf(name));
  expect(new Set(flags).size).toBe(flags.length);
  expect(flags).toContain("kv-bytes");
  for (const secret of ["admin-key", "api-key"]) expect(flags).not.toContain(secret);
});

test("what the worker reads is in the table", async () => {
  const source = await Bun.file(join(repositoryRoot, "worker", "config.ts")).text();
  const read = [...source.matchAll(/^ {2}(SPANGATE_\w+):/gm)].map(([, name]) => name ?? "");
  expect(read.length).toBeGreaterThan(10);
  const known = new Set(settings.map(([name]) => name));
  // The gateway names each worker its device, by SPANGATE_DEVICES.
  expect(read.filter((name) => !known.has(name))).toEqual(["SPANGATE_DEVICE"]);
});

test("help has no marks of Markdown", () => {
  expect(plainText("a `model`, of [these](limits.md#models)")).toBe("a model, of these");
});

test.each([
  ["8589934592", 8_589_934_592],
  ["8GB", 8e9],
  ["8gb", 8e9],
  ["8GiB", 2 ** 33],
  ["1.5 GiB", 1.5 * 2 ** 30],
  ["512MiB", 2 ** 29],
  ["2048KB", 2_048_000],
])("SPANGATE_KV_BYTES=%s is a size", (text, bytes) => {
  expect(parseConfig({ SPANGATE_KV_BYTES: text }).kvBytes).toBe(bytes);
  expect(parseConfig({ SPANGATE_TENANT_STORAGE_BYTES: text }).tenantStorageBytes).toBe(bytes);
});

test.each(["8G", "8 gigabytes", "GB", "-8GB", "8GBB", "1e9"])(
  "SPANGATE_KV_BYTES=%s is refused with an example",
  (text) => {
    expect(() => parseConfig({ SPANGATE_KV_BYTES: text })).toThrow(
      "SPANGATE_KV_BYTES must be a size in bytes, as in 8GB, 8GiB or 8589934592",
    );
  },
);
