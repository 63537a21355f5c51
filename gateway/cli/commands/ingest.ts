import { type Dirent, readdirSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { type Command, CommandError, serverFlags, UsageError } from "../support/command.ts";
import { connect, onlyPositional } from "../support/connect.ts";
import { addFile, prepareStore, type VectorStore, waitForFile } from "../support/operations.ts";
import { Progress } from "../support/progress.ts";

/** Files that are uploaded and ingested at the same time. */
const filesAtOnce = 4;

export const ingestCommand: Command = {
  name: "ingest",
  summary: "Upload files and folders of documents and ingest them into a vector store; prints the store's id.",
  usage: "PATH… (--store ID | --new NAME)",
  flags: {
    ...serverFlags,
    store: { type: "string", short: "s", value: "ID", description: "The vector store to add to." },
    new: { type: "string", value: "NAME", description: "Make a vector store of this name first." },
  },
  async run(input) {
    if (input.positionals.length === 0) throw new UsageError("PATH is missing");
    const [existing, name] = [input.text("store"), input.text("new")];
    if ((existing === undefined) === (name === undefined)) throw new UsageError("pass either --store or --new");
    const files = listFiles(input.positionals);
    if (files.length === 0) throw new CommandError(`there is no file in ${input.positionals.join(", ")}`);
    const client = connect(input);
    const storeId = existing ?? (await client.json<VectorStore>("POST", "/v1/vector_stores", { name })).id;
    // Whatever becomes of the files, who made a store has to learn which.
    console.log(storeId);
    const failed = await ingestAll(files, async ({ path, name: named }) => {
      await waitForFile(client, storeId, await addFile(client, storeId, named, Bun.file(path)));
    });
    for (const [file, reason] of failed) console.error(`${file.path}: ${reason}`);
    if (failed.size > 0) console.error(`${files.length - failed.size} of ${files.length} files were ingested`);
    return failed.size === 0 ? 0 : 1;
  },
};

/** Goes past files that fail. @returns why each of them did */
async function ingestAll(
  files: readonly ListedFile[],
  ingest: (file: ListedFile) => Promise<void>,
): Promise<ReadonlyMap<ListedFile, string>> {
  const failed = new Map<ListedFile, string>();
  const progress = new Progress("ingest");
  const waiting = files.values();
  let done = 0;
  const worker = async (): Promise<void> => {
    for (const file of waiting) {
      progress.update(done, files.length, file.name);
      try {
        await ingest(file);
      } catch (error) {
        failed.set(file, error instanceof Error ? error.message : String(error));
      }
      done += 1;
    }
  };
  await Promise.all(Array.from({ length: filesAtOnce }, worker));
  progress.update(files.length, files.length);
  progress.finish();
  return failed;
}

export interface ListedFile {
  readonly path: string;
  /** What it is called in the store: its name, or its path from the named folder on. */
  readonly name: string;
}

const maxFiles = 100_000;
/** Folders of other people's code, which nobody means by naming a folder of documents. */
const skippedFolders: ReadonlySet<string> = new Set(["node_modules", "__pycache__"]);

/**
 * Files in the order named; of a folder all that are in it at any depth, by path, but for names that begin with a dot,
 * and links, which may lead around in a circle.
 * @throws CommandError for a path that is not there, and for more than 100,000 files
 */
export function listFiles(paths: readonly string[]): ListedFile[] {
  const files: ListedFile[] = [];
  const add = (file: ListedFile): void => {
    if (files.length === maxFiles)
      throw new CommandError(`there are more than ${maxFiles} files; name smaller folders`);
    files.push(file);
  };
  for (const path of paths) {
    const stat = statSync(path, { throwIfNoEntry: false });
    if (stat === undefined) throw new CommandError(`${path} is neither a file nor a folder`);
    if (stat.isDirectory()) walk(path, "", add);
    else add({ path, name: basename(path) });
  }
  return files;
}

function walk(folder: string, within: string, add: (file: ListedFile) => void): void {
  const byName = (a: Dirent, b: Dirent): number => (a.name < b.name ? -1 : 1);
  for (const entry of readdirSync(folder, { withFileTypes: true }).sort(byName)) {
    if (entry.name.startsWith(".") || skippedFolders.has(entry.name)) continue;
    const path = join(folder, entry.name);
    const name = within === "" ? entry.name : `${within}/${entry.name}`;
    if (entry.isDirectory()) walk(path, name, add);
    else if (entry.isFile()) add({ path, name });
  }
}

export const prepareCommand: Command = {
  name: "prepare",
  summary: "Compute and keep the KV of every fragment of a vector store, ahead of its first use.",
  usage: "STORE_ID [--target TIER]",
  flags: {
    ...serverFlags,
    target: { type: "string", value: "TIER", description: "Where it has to be: device, host, disk or s3." },
  },
  async run(input) {
    const storeId = onlyPositional(input, "STORE_ID");
    const target = input.text("target");
    const progress = new Progress("prepare");
    try {
      await prepareStore(connect(input), storeId, (job) => progress.update(job.done, job.total, "fragments"), target);
    } finally {
      progress.finish();
    }
    return 0;
  },
};
