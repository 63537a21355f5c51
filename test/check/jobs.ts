/**
 * What `bun run check` runs: each job is one process of its own, and belongs to a stage. A job is a tool, one test file,
 * or a folder's test files where those are light: what they import is loaded and made fast once for all of them.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";

export interface Job {
  /** The tool's name, the test file's path from the repository's root, or the folder's whose files share the process. */
  readonly name: string;
  readonly stage: string;
  /** A tool passes or fails as one; a test file counts its tests. */
  readonly kind: "tool" | "tests";
  /** How many test files it runs; none for a tool. */
  readonly fileCount: number;
  /** Arguments for Bun. */
  readonly args: readonly string[];
}

export interface Selection {
  /** Names of stages; none: all. */
  readonly only: readonly string[];
  /** Test files, or folders of them; none: all. */
  readonly paths: readonly string[];
  /** A process for every test file: what one leaves behind, no other file can rest on. */
  readonly alone?: boolean;
  /** The tools and `quickPaths` alone; not together with `only` or `paths`. */
  readonly quick?: boolean;
}

/** What a change anywhere can make red without a word: lists of routes and settings, recorded plans, manifests, paths. */
export const quickPaths: readonly string[] = [
  "test/tidy.test.ts",
  "test/contract",
  "test/docs/markdown.test.ts",
  "test/http/openapi",
  "test/kernels/build.test.ts",
  "test/packages/deploy.test.ts",
  "test/security/limits.test.ts",
  "test/security/roles.test.ts",
  "test/security/salt-sites.test.ts",
  "test/settings",
];

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

/**
 * Folders whose files have a process each: they start servers or browsers, measure their own process's memory, compute
 * for so long that two cores should share their files, or choose what is loaded once for a process.
 */
const aloneFolders =
  /^test\/(?:backend\/cuda|chaos|conformance|console|e2e|fuzz|kernels|native|packages|process|security|sim)\//;

function stageOf(file: string): string {
  const folder = /^test\/([^/]+)\//.exec(file)?.[1] ?? "";
  if (file === "test/tidy.test.ts") return "tidy";
  return ownStages.includes(folder) ? folder : "unit";
}

/** @param files test files of one stage */
export function testJob(name: string, files: readonly string[] = [name]): Job {
  // A run that is ended takes the servers along that its tests have started.
  const args = ["--no-orphans", "test", "--timeout", String(testTimeoutMs), ...files.map((file) => `./${file}`)];
  return { name, stage: stageOf(files[0] ?? name), kind: "tests", fileCount: files.length, args };
}

function testJobs(files: readonly string[], alone: boolean): Job[] {
  const folderOf = (file: string) => file.slice(0, file.lastIndexOf("/"));
  const hasOwn = (file: string) => alone || aloneFolders.test(file) || folderOf(file) === "test";
  const groups = Map.groupBy(files, (file) => (hasOwn(file) ? file : folderOf(file)));
  return [...groups].map(([name, own]) => (own.length === 1 ? testJob(own[0] ?? name) : testJob(name, own)));
}

/**
 * @param testFiles paths from the repository's root
 * @throws CommandError for a stage that does not exist, a path without tests, and a choice that leaves nothing to run
 */
export function selectJobs(
  { only, paths, alone = false, quick = false }: Selection,
  testFiles: readonly string[],
): Job[] {
  const known = `the stages are ${stageNames.join(", ")}`;
  for (const stage of only) {
    if (!stageNames.includes(stage)) throw new CommandError(`there is no stage "${stage}"; ${known}`);
  }
  if (quick && only.length + paths.length > 0) throw new CommandError("--quick has its own choice of stages and paths");
  const wanted = (quick ? quickPaths : paths).map((path) => path.replace(/^\.\//, "").replace(/\/+$/, ""));
  for (const path of wanted) {
    if (!testFiles.some((file) => isWithin(file, path))) {
      throw new CommandError(`there is no test file at "${path}"; ${known}`);
    }
  }
  const toolJobs = paths.length > 0 ? [] : Object.entries(tools).map(([name, args]) => toolJob(name, args));
  const files = testFiles.filter((file) => wanted.length === 0 || wanted.some((path) => isWithin(file, path)));
  const jobs = [...toolJobs, ...testJobs(files, alone)];
  const chosen = jobs.filter(({ stage }) => only.length === 0 || only.includes(stage));
  if (chosen.length === 0)
    throw new CommandError(`nothing of ${only.join(", ")} lies at ${wanted.join(", ")}; ${known}`);
  return chosen;
}

const toolJob = (name: string, args: readonly string[]): Job => ({
  name,
  stage: name,
  kind: "tool",
  fileCount: 0,
  args,
});

function isWithin(file: string, path: string): boolean {
  return path === "" || path === "." || file === path || file.startsWith(`${path}/`);
}
