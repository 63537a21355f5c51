/** What tests draw is the run's: the same without the variable, another with it. */
import { describe, expect, test } from "bun:test";
import { fc } from "./fast-check.ts";
import { filesOf, imports, readText } from "./import-graph.ts";
import { seedVariable, testSeed } from "./seed.ts";

function withSeed<Result>(seed: string | undefined, run: () => Result): Result {
  const before = process.env[seedVariable];
  const set = (value: string | undefined) => {
    if (value === undefined) delete process.env[seedVariable];
    else process.env[seedVariable] = value;
  };
  set(seed);
  try {
    return run();
  } finally {
    set(before);
  }
}

describe("a seed", () => {
  test("is the run's (1) [of all]", () => {
    expect(fc.readConfigureGlobal()?.seed).toBe(testSeed());
    expect(fc.sample(fc.nat(), 5)).toEqual(fc.sample(fc.nat(), { seed: testSeed(), numRuns: 5 }));
  });

  test("is fixed unless the variable says another", () => {
    expect(withSeed(undefined, testSeed)).toBe(withSeed(undefined, testSeed));
    expect(withSeed("17", testSeed)).toBe(17);
  });

  test.each(["", "-1", "1.5", "x", String(2 ** 31)])("%j is none", (text) => {
    expect(() => withSeed(text, testSeed)).toThrow(seedVariable);
  });
});

test("no test draws without a seed", () => {
  const own = "test/support/seed.test.ts";
  // Benchmarks and device programs draw anew and print their seed; `bun run fuzz` is there to draw new seeds.
  // The simulation of KV in files puts draws by seed in the place of the system's.
  const isFree = (file: string) =>
    file === own || /^test\/(?:bench|gpu)\/|^test\/(?:fuzz\/main|sim\/tiers\.test)\.ts$/.test(file);
  const tests = filesOf("**/*.ts").filter((file) => file.startsWith("test/") && !isFree(file));
  const draws = /\bMath\.random\b|\bgetRandomValues\b|\brandom(?:Bytes|Int|FillSync)\b/;
  expect(tests.length).toBeGreaterThan(300);
  expect(tests.filter((file) => draws.test(readText(file)))).toEqual([]);
});

test("fast-check comes from where it is given the seed", () => {
  const importing = imports.filter(({ specifier }) => specifier === "fast-check").map(({ from }) => from);
  expect(importing).toEqual(["test/support/fast-check.ts"]);
});

test("a property that fails says how to run it again", () => {
  const fails = fc.property(fc.nat(), () => false);
  expect(() => fc.assert(fails)).toThrow(
    `To repeat it: ${seedVariable}=${testSeed()} bun test test/support/seed.test.ts`,
  );
});
