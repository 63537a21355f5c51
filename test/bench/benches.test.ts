import { expect, test } from "bun:test";
import { posix } from "node:path";
import { filesOf, loadedBy, readText } from "../support/import-graph.ts";
import { benches } from "./benches.ts";

test("every benchmark is found under its own name, and no file of one is left out", async () => {
  const found = await Promise.all(
    Object.entries(benches).map(async ([name, load]) => [name, (await load()).name] as const),
  );
  for (const [name, own] of found) expect(own).toBe(name);
  const exporting = filesOf("bench/*.ts").filter((file) => /^export const \w+: Bench = /m.test(readText(file)));
  expect(exporting.map((file) => posix.basename(file, ".ts"))).toEqual(Object.keys(benches).sort());
});

test("a benchmark that is not named is not loaded", () => {
  const loaded = [...loadedBy("test/bench/main.ts")];
  expect(loaded).toContain("test/bench/benches.ts");
  const own = Object.keys(benches).map((name) => `test/bench/${name}.ts`);
  expect(loaded.filter((file) => own.includes(file))).toEqual([]);
});
