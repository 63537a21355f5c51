/** Which files are meant by the paths that a person names. */
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { listFiles } from "../../../gateway/cli/commands/ingest.ts";
import { CommandError } from "../../../gateway/cli/support/command.ts";

const folder = mkdtempSync(join(tmpdir(), "spangate files "));
for (const path of ["deep/er", ".git", "node_modules/x"]) mkdirSync(join(folder, path), { recursive: true });
for (const path of ["b.md", "a.txt", "deep/c.md", "deep/er/d.md", ".hidden", ".git/config", "node_modules/x/e.md"]) {
  writeFileSync(join(folder, path), "x");
}
symlinkSync(folder, join(folder, "deep", "circle"));

test("a folder's files come by path from it, without hidden ones, other people's code and links", () => {
  expect(listFiles([folder]).map(({ name }) => name)).toEqual(["a.txt", "b.md", "deep/c.md", "deep/er/d.md"]);
  expect(listFiles([folder]).at(-1)?.path).toBe(join(folder, "deep/er/d.md"));
});

test("files come in the order named, even hidden ones, by their own name", () => {
  const named = [join(folder, "b.md"), join(folder, ".hidden"), join(folder, "deep", "c.md")];
  expect(listFiles(named).map(({ name }) => name)).toEqual(["b.md", ".hidden", "c.md"]);
});

test("a path that is not there is an error before anything is sent", () => {
  expect(() => listFiles([folder, join(folder, "nobody")])).toThrow(CommandError);
});
