/** What `bun run check` runs: each job is one process of its own, a tool or one test file, and belongs to a stage. */
import { CommandError } from "../../gateway/cli/support/command.ts";

export interface Job {
  /** The tool's name, or the test file's path from the repository's root. */
  readonly name: string;
  readonly stage: string;
  /** A tool passes or fails as one; a test file counts its tests. */
  readonly kind: "tool" | "tests";
  /** Arguments for Bun. */
  readonly args: readonly string[];
}

export interface Selection {
  /** Names of stages; none: all. */
  readonly only: readonly string[];
  /** Test files, or folders of them; none: all. */
  readonly paths: readonly string[];
}

const typesInfo = ".build/types.tsbuildinfo";

const tools: Readonly<Record<string, readonly string[]>> = {
  // What has not changed since the last time, nor what it imports, is not checked again. On several cores it would be
  // done no sooner, and take tests the time of half as much again: each core checks what the others check as well.
  types: [
    ...["x", "--no-install", "tsc", "--noEmit", "-p", ".", "--singleThreaded"],
    ...["--incremental", "--tsBuildInfoFile", typesInfo],
  ],
  // The console's client runs in browsers: other globals than the server's, and JSX.
  "types-console": ["x", "--no-install", "tsc", "--noEmit", "-p", "gateway/console/client", "--singleThreaded"],
  lint: ["x", "--no-install", "biome", "check", "."],
};

/** Folders of test/ that are stages of their own; what lies in no such folder is the stage "unit". */
const ownStages = ["contract", "e2e", "conformance", "chaos", "fuzz"];
export const stageNames: readonly string[] = [...Object.keys(tools), "tidy", "unit", ...ownStages];

/** Longest time that one test may take: the machine may have other things to do, and nothing waits that long. */
const testTimeoutMs = 60_000;

export function testJob(file: string): Job {
  const folder = /^test\/([^/]+)\//.exec(file)?.[1] ?? "";
  const stage = file === "test/tidy.test.ts" ? "tidy" : ownStages.includes(folder) ? folder : "unit";
  // A run that is ended takes the servers along that its tests have started.
  const args = ["--no-orphans", "test", "--timeout", String(testTimeoutMs), `./${file}`];
  return { name: file, stage, kind: "tests", args };
}

/**
 * @param testFiles paths from the repository's root
 * @throws CommandError for a stage that does not exist, a path without tests, and a choice that leaves nothing to run
 */
export function selectJobs({ only, paths }: Selection, testFiles: readonly string[]): Job[] {
  const known = `the stages are ${stageNames.join(", ")}`;
  for (const stage of only) {
    if (!stageNames.includes(stage)) throw new CommandError(`there is no stage "${stage}"; ${known}`);
  }
  const wanted = paths.map((path) => path.replace(/^\.\//, "").replace(/\/+$/, ""));
  for (const path of wanted) {
    if (!testFiles.some((file) => isWithin(file, path))) {
      throw new CommandError(`there is no test file at "${path}"; ${known}`);
    }
  }
  const toolJobs = wanted.length > 0 ? [] : Object.entries(tools).map(([name, args]) => toolJob(name, args));
  const files = testFiles.filter((file) => wanted.length === 0 || wanted.some((path) => isWithin(file, path)));
  const jobs = [...toolJobs, ...files.map(testJob)];
  const chosen = jobs.filter(({ stage }) => only.length === 0 || only.includes(stage));
  if (chosen.length === 0)
    throw new CommandError(`nothing of ${only.join(", ")} lies at ${wanted.join(", ")}; ${known}`);
  return chosen;
}

const toolJob = (name: string, args: readonly string[]): Job => ({ name, stage: name, kind: "tool", args });

function isWithin(file: string, path: string): boolean {
  return path === "" || path === "." || file === path || file.startsWith(`${path}/`);
}
