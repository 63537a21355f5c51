/** `spangate sync`: makes a vector store hold what folders hold, and sends only what has changed. */
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { defaultLabel, gatherFolder, gatherRemote, isRemote } from "../sources/gather.ts";
import { FetchError } from "../sources/public-fetch.ts";
import { type HttpClient, HttpError } from "../support/client.ts";
import { type Command, CommandError, type CommandInput, serverFlags, UsageError } from "../support/command.ts";
import { connect } from "../support/connect.ts";
import { addFile, listAll, type VectorStore, type VectorStoreFile, waitForFile } from "../support/operations.ts";
import { Progress } from "../support/progress.ts";
import {
  type FileWork,
  type LocalFile,
  labelAttribute,
  labelOf,
  planSync,
  type SyncPlan,
} from "../support/sync-plan.ts";
import { listFiles } from "./ingest.ts";

/** Files that are uploaded and ingested at the same time. */
const filesAtOnce = 4;
/** Bytes of one web site, and milliseconds for reading it. */
const maxWebBytes = 1024 * 1024 * 1024;
const maxWebMs = 1_800_000;
/** Waits between tries of a call that the server refuses for now, in ms. */
const retryDelaysMs = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000];

const passingCodes: ReadonlySet<string> = new Set(["rate_limited", "concurrency_limited", "overloaded", "not_ready"]);

export const syncCommand: Command = {
  name: "sync",
  summary:
    "Make a vector store hold what folders, web sites or S3 buckets hold: sends what changed, takes out what is gone.",
  usage: "FOLDER|URL… (--store ID | --new NAME)",
  flags: {
    ...serverFlags,
    store: { type: "string", short: "s", value: "ID", description: "The vector store to bring up to date." },
    new: { type: "string", value: "NAME", description: "Make a vector store of this name first." },
    as: { type: "string", value: "LABEL", description: "What the store calls the source (its name); for one source." },
    "dry-run": { type: "boolean", short: "n", description: "Only say what would be done." },
    mirror: { type: "boolean", description: "Also take out files that came into the store in another way." },
    "allow-empty": { type: "boolean", description: "Go on when the sources hold no file at all." },
    "max-pages": { type: "string", value: "N", description: "Pages of a web site that are read (1000)." },
    "max-depth": { type: "string", value: "N", description: "Links from a web site's first page on (8)." },
    "allow-private": {
      type: "boolean",
      description: "Also read web pages at private addresses, such as an intranet's.",
    },
    endpoint: { type: "string", value: "URL", env: "S3_ENDPOINT", description: "S3 server other than Amazon's." },
  },
  async run(input) {
    const sources = sourcesOf(input);
    const [existing, name] = [input.text("store"), input.text("new")];
    if ((existing === undefined) === (name === undefined)) throw new UsageError("pass either --store or --new");
    const isDry = input.isSet("dry-run");
    if (isDry && existing === undefined) throw new UsageError("--dry-run needs --store");
    const client = connect(input);
    const pathOf = (id: string) => `/v1/vector_stores/${encodeURIComponent(id)}/files`;
    const stored = existing === undefined ? [] : await listAll<VectorStoreFile>(client, pathOf(existing));
    const folder = mkdtempSync(join(tmpdir(), "spangate-sync-"));
    try {
      const { local, failed, partial } = await gatherAll(input, sources, stored, folder);
      if (local.length === 0 && !input.isSet("allow-empty")) {
        const where = input.positionals.join(", ");
        throw new CommandError(`there is no file in ${where}; pass --allow-empty if that is meant`);
      }
      const storeId = existing ?? (await client.json<VectorStore>("POST", "/v1/vector_stores", { name })).id;
      if (existing === undefined) console.log(storeId);
      const whole = planSync(local, stored, new Set(sources.keys()), input.isSet("mirror"));
      const plan = { ...whole, gone: whole.gone.filter((file) => !partial.has(labelOf(file) ?? "")) };
      if (isDry) printPlan(plan);
      else await new Sync(client, storeId, failed).run(plan);
      for (const [path, reason] of failed) console.error(`${path}: ${reason}`);
      for (const label of partial) console.error(`${label} was not read whole, so nothing of it is taken out`);
      printSummary(plan, failed, isDry);
      return failed.size === 0 ? 0 : 1;
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
};

/** Folders and URLs by their labels. @throws UsageError, CommandError */
function sourcesOf(input: CommandInput): ReadonlyMap<string, string> {
  const { positionals } = input;
  const asked = input.text("as");
  if (positionals.length === 0) throw new UsageError("FOLDER or URL is missing");
  if (asked !== undefined && positionals.length > 1) throw new UsageError("--as names one source");
  const sources = new Map<string, string>();
  for (const source of positionals) {
    const isThere = isRemote(source) || statSync(source, { throwIfNoEntry: false })?.isDirectory();
    if (!isThere) throw new CommandError(`${source} is no folder`);
    const label = asked ?? defaultLabel(source);
    if (label === "" || label.length > 512) throw new UsageError(`${source} needs a name: pass --as`);
    if (sources.has(label)) {
      throw new UsageError(`two sources are called "${label}": sync one after the other, each with --as`);
    }
    sources.set(label, source);
  }
  return sources;
}

/** What all sources hold. `partial` has the labels of those that could not be read whole. */
async function gatherAll(
  input: CommandInput,
  sources: ReadonlyMap<string, string>,
  stored: readonly VectorStoreFile[],
  folder: string,
) {
  const web = {
    maxPages: input.integer("max-pages", { min: 1, max: 100_000 }) ?? 1_000,
    maxDepth: input.integer("max-depth", { min: 0, max: 100 }) ?? 8,
    ...{ maxTotalBytes: maxWebBytes, maxMs: maxWebMs },
    ...(input.isSet("allow-private") && { isAllowed: () => true }),
  };
  const local: LocalFile[] = [];
  const failed = new Map<string, string>();
  const partial = new Set<string>();
  for (const [label, source] of sources) {
    const progress = new Progress(isRemote(source) ? "read" : "compare");
    const listed = isRemote(source) ? [] : listFiles([source]).map((file) => ({ ...file, label }));
    const onProgress = (done: number, name: string) => progress.update(done, Math.max(listed.length, done + 1), name);
    const own = mkdtempSync(join(folder, "source-"));
    const options = { ...{ folder: own, web, onProgress }, s3Endpoint: input.text("endpoint") };
    const gathered = await (isRemote(source)
      ? gatherRemote(label, source, stored, options).catch(refuse)
      : gatherFolder(listed, onProgress));
    progress.finish();
    local.push(...gathered.files);
    for (const [path, reason] of gathered.failed) failed.set(path, reason);
    if (!gathered.isWhole) partial.add(label);
  }
  return { local, failed, partial };
}

function refuse(error: unknown): never {
  throw error instanceof FetchError ? new CommandError(error.message) : error;
}

/**
 * Does what a plan says, in an order that is safe to cut off at any point: a file's newest version is attached and
 * ingested before its older ones are detached, and files that are gone are detached last, so that a renamed file is
 * never missing.
 */
class Sync {
  readonly #client: HttpClient;
  readonly #filesPath: string;
  readonly #storeId: string;
  /** Why files failed, by their path. */
  readonly #failed: Map<string, string>;

  constructor(client: HttpClient, storeId: string, failed: Map<string, string>) {
    this.#client = client;
    this.#storeId = storeId;
    this.#filesPath = `/v1/vector_stores/${encodeURIComponent(storeId)}/files`;
    this.#failed = failed;
  }

  async run({ work, unlabelled, gone }: SyncPlan): Promise<void> {
    for (const { stored, label } of unlabelled) {
      const attributes = { ...stored.attributes, [labelAttribute]: label };
      await this.#try(stored.spangate?.filename ?? stored.id, () =>
        this.#client.json("POST", `${this.#filesPath}/${stored.id}`, { attributes }),
      );
    }
    const progress = new Progress("sync");
    const waiting = work.values();
    let done = 0;
    const worker = async (): Promise<void> => {
      for (const one of waiting) {
        progress.update(done, work.length, one.file.name);
        await this.#try(one.file.path, () => this.#bring(one));
        done += 1;
      }
    };
    await Promise.all(Array.from({ length: filesAtOnce }, worker));
    for (const stored of gone) {
      await this.#try(stored.spangate?.filename ?? stored.id, () => this.#detach(stored));
    }
    progress.update(work.length, work.length);
    progress.finish();
  }

  /** Brings a file's newest version into the store, then takes the older ones out. */
  async #bring({ file, present, older }: FileWork): Promise<void> {
    if (present?.status !== "completed") {
      const { attributes, chunking_strategy } = present ?? older.at(0) ?? {};
      const fields = {
        attributes: { ...attributes, ...file.attributes, [labelAttribute]: file.label },
        ...(chunking_strategy && { chunking_strategy }),
      };
      const id = await retried(() => this.#attach(file, present, fields));
      await waitForFile(this.#client, this.#storeId, id);
    }
    for (const stored of older) await this.#detach(stored);
  }

  async #attach(file: LocalFile, present: VectorStoreFile | undefined, fields: object): Promise<string> {
    if (present === undefined) {
      return await addFile(this.#client, this.#storeId, file.name, Bun.file(file.path), fields);
    }
    // The server has the bytes. A file whose ingestion failed is tried again, because its reason may have passed.
    await this.#client.json("POST", this.#filesPath, { file_id: present.id, ...fields });
    return present.id;
  }

  /** What a sync uploaded is deleted once no vector store has it; other uploads stay. */
  async #detach(stored: VectorStoreFile): Promise<void> {
    const which = stored.attributes[labelAttribute] === undefined ? "never" : "unused";
    const call = { method: "DELETE", path: `${this.#filesPath}/${stored.id}?delete_file=${which}` };
    await retried(() => this.#client.send(call)).catch((error: unknown) => {
      // Somebody else was faster.
      if (!(error instanceof HttpError && error.status === 404)) throw error;
    });
  }

  async #try(path: string, work: () => Promise<unknown>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.#failed.set(path, error instanceof Error ? error.message : String(error));
    }
  }
}

/** Repeats a call that the server refuses for now: over a limit, or starting. */
async function retried<Answer>(call: () => Promise<Answer>): Promise<Answer> {
  for (const delayMs of retryDelaysMs) {
    try {
      return await call();
    } catch (error) {
      const isPassing = error instanceof HttpError && passingCodes.has(error.code);
      if (!isPassing) throw error;
      await Bun.sleep(delayMs);
    }
  }
  return await call();
}

const isChange = ({ older }: FileWork): boolean => older.length > 0;

function printPlan({ work, gone }: SyncPlan): void {
  for (const one of work) console.log(`${isChange(one) ? "change" : "add"} ${one.file.name}`);
  const names = gone.map(({ id, spangate }) => spangate?.filename ?? id);
  for (const name of names.sort()) console.log(`remove ${name}`);
}

function printSummary(
  { work, gone, unchanged, others }: SyncPlan,
  failed: ReadonlyMap<string, string>,
  isDry: boolean,
): void {
  const done = work.filter(({ file }) => !failed.has(file.path));
  const changed = done.filter(isChange).length;
  const removed = gone.filter(({ id, spangate }) => !failed.has(spangate?.filename ?? id)).length;
  const counts = `${done.length - changed} added, ${changed} changed, ${removed} removed, ${unchanged.length} unchanged`;
  console.log(`${isDry ? "would be: " : ""}${counts}, ${failed.size} failed`);
  if (others.length > 0) {
    console.error(`${others.length} files of the store came there in another way and stay; --mirror takes them out`);
  }
}
