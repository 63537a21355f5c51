/** The runner of `bun run check`: what is chosen, in which order it runs, what is read out of its output. */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";
import { countsOf, failedTests, sumLine, sumOf } from "./counts.ts";
import { longestFirst, readDurations, writeDurations } from "./durations.ts";
import { type Job, quickPaths, selectJobs, stageNames, testJob } from "./jobs.ts";
import { type Outcome, runJobs } from "./pool.ts";

// Processes start here.
setDefaultTimeout(60_000);

const files = [
  "test/cache/pool.test.ts",
  "test/engine/a.test.ts",
  "test/engine/b.test.ts",
  "test/engines/c.test.ts",
  "test/fuzz/json.test.ts",
  "test/tidy.test.ts",
];
const namesOf = (jobs: readonly Job[]) => jobs.map(({ name }) => name);
const select = (only: readonly string[], paths: readonly string[]) =>
  namesOf(selectJobs({ only, paths, alone: true }, files));

const folder = mkdtempSync(join(tmpdir(), "spangate-runner-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe("what is chosen", () => {
  test("without a word, everything, each file in one stage", () => {
    expect(select([], [])).toEqual(["types", "types-console", "lint", ...files]);
    const stages = selectJobs({ only: [], paths: [], alone: true }, files).map(({ stage }) => stage);
    expect(stages).toEqual(["types", "types-console", "lint", "unit", "unit", "unit", "unit", "fuzz", "tidy"]);
    expect(stages.filter((stage) => !stageNames.includes(stage))).toEqual([]);
  });

  test("stages by name, several of them", () => {
    expect(select(["types"], [])).toEqual(["types"]);
    expect(select(["tidy", "fuzz"], [])).toEqual(["test/fuzz/json.test.ts", "test/tidy.test.ts"]);
  });

  test("files and whole folders, without the tools", () => {
    expect(select([], ["test/engine"])).toEqual(["test/engine/a.test.ts", "test/engine/b.test.ts"]);
    expect(select([], ["./test/engine/", "test/tidy.test.ts"])).toEqual([
      "test/engine/a.test.ts",
      "test/engine/b.test.ts",
      "test/tidy.test.ts",
    ]);
    expect(select(["fuzz"], ["test"])).toEqual(["test/fuzz/json.test.ts"]);
  });

  test("a folder's light files share a process; those of folders that are not light, and one alone, do not", () => {
    const folders = [...files, "test/fuzz/heads.test.ts", "test/engine/deep/d.test.ts", "test/engine/deep/e.test.ts"];
    const shared = selectJobs({ only: [], paths: [] }, folders).filter(({ kind }) => kind === "tests");
    expect(shared.map(({ name, fileCount }) => [name, fileCount])).toEqual([
      ["test/cache/pool.test.ts", 1],
      ["test/engine", 2],
      ["test/engines/c.test.ts", 1],
      ["test/fuzz/json.test.ts", 1],
      ["test/tidy.test.ts", 1],
      ["test/fuzz/heads.test.ts", 1],
      ["test/engine/deep", 2],
    ]);
    const [, engine] = shared;
    expect([engine?.stage, engine?.args.slice(-2)]).toEqual([
      "unit",
      ["./test/engine/a.test.ts", "./test/engine/b.test.ts"],
    ]);
    const chosen = selectJobs({ only: [], paths: ["test/engine/a.test.ts"] }, folders);
    expect(namesOf(chosen)).toEqual(["test/engine/a.test.ts"]);
  });

  test("quickly: the tools, and of each place that the list names a file that exists", () => {
    const all = [...new Bun.Glob("test/**/*.test.ts").scanSync(repositoryRoot)].sort();
    const jobs = selectJobs({ only: [], paths: [], quick: true }, all);
    expect(namesOf(jobs)).toEqual(expect.arrayContaining(["types", "lint", "test/contract", "test/tidy.test.ts"]));
    expect(jobs.length).toBeLessThan(20);
    for (const path of quickPaths)
      expect(all.filter((file) => file === path || file.startsWith(`${path}/`))).not.toEqual([]);
    expect(() => selectJobs({ only: ["types"], paths: [], quick: true }, all)).toThrow("--quick has its own choice");
  });

  test.each([
    [["units"], [], 'there is no stage "units"; the stages are types, types-console, lint, tidy, unit,'],
    [[], ["test/eng"], 'there is no test file at "test/eng"; the stages are types,'],
    [["fuzz"], ["test/engine"], "nothing of fuzz lies at test/engine; the stages are types,"],
    [["types"], ["test/engine"], "nothing of types lies at test/engine; the stages are types,"],
  ])("stages %j at %j are an error that names the stages", (only, paths, message) => {
    expect(() => select(only, paths)).toThrow(message);
  });

  test("errors of the command line end it with 1, before anything runs", () => {
    for (const args of [["--only", "nothing"], ["test/nowhere"], ["--onl"]]) {
      const { exitCode, stderr } = Bun.spawnSync([process.execPath, "test/check.ts", ...args], { cwd: repositoryRoot });
      expect([exitCode, stderr.toString()]).toEqual([
        1,
        expect.stringMatching(/^check: .*\btypes, types-console, lint, tidy/s),
      ]);
    }
  });
});

describe("the order", () => {
  const jobs = files.map((file) => testJob(file));

  test("begins with what took longest; what was never measured is guessed by its folder", () => {
    const order = longestFirst(jobs, { "test/engine/b.test.ts": 20_000, "test/cache/pool.test.ts": 5 });
    expect(namesOf(order)).toEqual([
      "test/engine/b.test.ts",
      "test/fuzz/json.test.ts",
      "test/engine/a.test.ts",
      "test/engines/c.test.ts",
      "test/tidy.test.ts",
      "test/cache/pool.test.ts",
    ]);
    const many = testJob("test/many", ["test/many/a.test.ts", "test/many/b.test.ts"]);
    expect(namesOf(longestFirst([testJob("test/one/a.test.ts"), many], {}))).toEqual([
      "test/many",
      "test/one/a.test.ts",
    ]);
  });

  test("of a clone that has never run begins with the usual durations, which name jobs that there are", () => {
    const all = [...new Bun.Glob("test/**/*.test.ts").scanSync(repositoryRoot)].sort();
    const there = selectJobs({ only: [], paths: [] }, all);
    const usual = readDurations(join(import.meta.dir, "durations.json"));
    expect(Object.keys(usual).filter((name) => !namesOf(there).includes(name))).toEqual([]);
    expect(namesOf(longestFirst(there, usual)).slice(0, 3)).toEqual(Object.keys(usual).slice(0, 3));
  });

  test("is kept in a file, of which only what is sound is read", () => {
    const path = join(folder, "made", "durations.json");
    expect(readDurations(path)).toEqual({});
    writeDurations(path, { a: 1, b: 2 });
    expect(readDurations(path)).toEqual({ a: 1, b: 2 });
    writeFileSync(path, '{"a": 1, "b": "2"}');
    expect(readDurations(path)).toEqual({ a: 1 });
    writeFileSync(path, "[");
    expect(readDurations(path)).toEqual({});
  });
});

describe("what `bun test` writes", () => {
  const output =
    "test/a.test.ts:\n(pass) a [1.00ms]\n(fail) group > b (x) [2.50ms]\n(fail) c\n\n 1 pass\n 3 skip\n 2 fail\nRan 6 tests";
  const one = { kind: "tests", fileCount: 1 } as const;
  const passes = (count: number) => `test/a.test.ts:\n(pass) a [1.00ms]\n\n ${count} pass\n 0 fail\n`;

  test("is counted", () => {
    expect(countsOf(one, output, false)).toEqual({ passed: 1, failed: 2, skipped: 3 });
    expect(countsOf(one, passes(4), true)).toEqual({ passed: 4, failed: 0, skipped: 0 });
  });

  test("an error outside of tests, a crash and a file without tests are failures too", () => {
    expect(countsOf(one, `${passes(4)} 1 error\n`, false).failed).toBe(1);
    expect(countsOf(one, "Segmentation fault", false).failed).toBe(1);
    expect(countsOf(one, "test/a.test.ts:\n\n 0 pass\n 0 fail\n", true).failed).toBe(1);
  });

  test("each of a folder's files has to have tests, and to be run", () => {
    const two = { kind: "tests", fileCount: 2 } as const;
    expect(countsOf(two, passes(4), true).failed).toBe(1);
    expect(countsOf(two, `test/b.test.ts:\n\n${passes(4)}`, true).failed).toBe(1);
    const skipped = "::group::test/b.test.ts:\nwords of its own\n(skip) b\n\n::endgroup::\n";
    expect(countsOf(two, skipped + passes(4), true)).toEqual({ passed: 4, failed: 0, skipped: 0 });
  });

  test("a tool counts as one", () => {
    const tool = { kind: "tool", fileCount: 0 } as const;
    expect(countsOf(tool, " 5 fail\n", true)).toEqual({ passed: 1, failed: 0, skipped: 0 });
    expect(countsOf(tool, "", false)).toEqual({ passed: 0, failed: 1, skipped: 0 });
  });

  test("names what failed", () => {
    expect(failedTests(`${output}\n(fail) c [3s]\n`)).toEqual(["group > b (x)", "c"]);
  });

  test("is summed up in a line", () => {
    const one = { passed: 2, failed: 0, skipped: 0 };
    expect(sumLine(sumOf([one, one]))).toBe("4 passed, 0 failed");
    expect(sumLine(sumOf([one, { passed: 0, failed: 1, skipped: 2 }]))).toBe("2 passed, 1 failed, 2 skipped");
  });
});

describe("the pool", () => {
  const script = (name: string, text: string): Job => ({
    ...{ name, stage: "types", kind: "tool", fileCount: 0 },
    args: ["-e", text],
  });

  async function run(jobs: readonly Job[], options: { mayStart?: () => boolean; longestMs?: number } = {}) {
    const scratch = mkdtempSync(join(folder, "scratch-"));
    const told: Outcome[] = [];
    const env = { ...process.env, HERE: "yes" };
    const pool = { root: repositoryRoot, processCount: 2, scratch, env, onOutcome: (each: Outcome) => told.push(each) };
    const outcomes = await runJobs(jobs, { ...pool, ...options });
    expect(told).toEqual(outcomes);
    return new Map(outcomes.map((outcome) => [outcome.job.name, outcome]));
  }

  test("runs every job once and keeps all that each wrote, in order", async () => {
    const text = "for (let i = 0; i < 3; i++) { console.log('out', i); console.error('err', i, process.env.HERE); }";
    const jobs = [
      script("a", text),
      script("b", "process.exit(3)"),
      script("c", ""),
      script("d", "throw new Error('d')"),
    ];
    const outcomes = await run(jobs);
    expect([...outcomes.keys()].sort()).toEqual(["a", "b", "c", "d"]);
    expect(outcomes.get("a")?.output).toBe("out 0\nerr 0 yes\nout 1\nerr 1 yes\nout 2\nerr 2 yes\n");
    expect(["a", "b", "c", "d"].map((name) => outcomes.get(name)?.failed)).toEqual([0, 1, 0, 1]);
    expect(outcomes.get("d")?.output).toContain("error: d");
  });

  test("gives each job a folder of its own for temporary files", async () => {
    const jobs = ["a", "b"].map((name) => script(name, "console.log(require('os').tmpdir())"));
    const folders = [...(await run(jobs)).values()].map(({ output }) => output);
    expect(new Set(folders).size).toBe(2);
  });

  test("ends what takes too long, and says so", async () => {
    const outcomes = await run([script("slow", "await Bun.sleep(60_000)"), script("quick", "")], { longestMs: 5_000 });
    expect([outcomes.get("slow")?.failed, outcomes.get("quick")?.failed]).toEqual([1, 0]);
    expect(outcomes.get("slow")?.output).toContain("ended by SIGKILL");
  });

  test("starts nothing more once it may not", async () => {
    let left = 3;
    const jobs = Array.from({ length: 10 }, (_, index) => script(String(index), ""));
    expect((await run(jobs, { mayStart: () => left-- > 0 })).size).toBe(3);
  });

  test("runs at most as many at a time as it is told to", async () => {
    const marks = join(folder, "marks");
    mkdirSync(marks);
    // Each leaves a mark while it runs and counts those that are there.
    const text = `const fs = require("fs"); const own = ${JSON.stringify(marks)} + "/" + process.pid;
      fs.writeFileSync(own, ""); await Bun.sleep(30);
      console.log(fs.readdirSync(${JSON.stringify(marks)}).length); fs.rmSync(own);`;
    const outcomes = await run(Array.from({ length: 6 }, (_, index) => script(String(index), text)));
    const most = Math.max(...[...outcomes.values()].map(({ output }) => Number(output)));
    expect(most).toBeWithin(1, 3);
  });
});
