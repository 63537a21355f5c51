/** What `bun run fuzz` found once does not come back: each kept case runs again from its seed, in a process of its own. */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";
import { seedVariable } from "../support/seed.ts";
import { keepRegression, patternOf, readRegressions, saidBy } from "./regressions.ts";

setDefaultTimeout(120_000);

const folder = mkdtempSync(join(tmpdir(), "spangate-regressions-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function runTest(
  file: string,
  test: string,
  seed: number,
): Promise<{ readonly code: number; readonly output: string }> {
  const child = Bun.spawn([process.execPath, "test", "--timeout", "60000", `./${file}`, "-t", patternOf(test)], {
    cwd: repositoryRoot,
    env: { ...process.env, [seedVariable]: String(seed), NO_COLOR: "1", FORCE_COLOR: "0" },
    stdio: ["ignore", "ignore", "pipe"],
  });
  const [output, code] = await Promise.all([new Response(child.stderr).text(), child.exited]);
  return { code, output };
}

// A name that no test of the file has any more fails as well.
for (const { file, test: name, seed } of readRegressions()) {
  test(`${file}: ${name}, seed ${seed}`, async () => {
    const { code, output } = await runTest(file, name, seed);
    expect([code, output]).toEqual([0, output]);
  });
}

describe("the list", () => {
  const found = { file: "test/a.test.ts", test: "a group > a test", seed: 3, said: "error: no" };

  test("keeps what is new, and a case once", () => {
    const path = join(folder, "regressions.json");
    writeFileSync(path, "[]");
    expect(keepRegression(found, path)).toBe(true);
    expect(keepRegression({ ...found, seed: 4 }, path)).toBe(false);
    expect(keepRegression({ ...found, seed: 5, said: "error: neither" }, path)).toBe(true);
    expect(readRegressions(path).map(({ seed }) => seed)).toEqual([3, 5]);
  });

  test("is read with its shape checked", () => {
    const path = join(folder, "wrong.json");
    writeFileSync(path, JSON.stringify([{ ...found, seed: "3" }]));
    expect(() => readRegressions(path)).toThrow("seed");
  });
});

describe("a test of the list is found by its name", () => {
  const [file, name] = ["test/support/seed.test.ts", "a seed > is the run's (1) [of all]"];

  test("and runs alone, from its seed", async () => {
    const same = await runTest(file, name, 11);
    expect(same.output).toMatch(/^ 1 pass$/m);
    expect(same.code).toBe(0);
  });

  test("which it is given", async () => {
    expect((await runTest(file, name, -1)).code).not.toBe(0);
  });

  test("or the run fails", async () => {
    expect((await runTest(file, "a seed > is the run's (1) [of", 11)).code).not.toBe(0);
  });
});

test("of a failure, the message of its own test is kept", () => {
  const output = [
    "(pass) one [1.00ms]",
    "3 | test(...)",
    "     ^",
    "error: Property failed after 1 tests",
    'Counterexample: ["x"]',
    "      at <anonymous> (a.ts:3:4)",
    "(fail) group > two [2.00ms]",
    "error: other",
    "(fail) three [2.00ms]",
  ].join("\n");
  expect(saidBy("group > two", output)).toBe('error: Property failed after 1 tests\nCounterexample: ["x"]');
  expect(saidBy("three", output)).toBe("error: other");
});
