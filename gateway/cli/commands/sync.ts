/** `spangate sync`: makes a vector store hold what folders hold, and sends only what has changed. */
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gatherFolder, gatherRemote } from "../../sources/gather.ts";
import { defaultLabel, FetchError, isRemote, isS3 } from "../../sources/source-url.ts";
import { type LocalFile, labelOf, planSync, type StoredFile, type SyncPlan } from "../../sources/sync-plan.ts";
import { countsOf, countsText, type FileFields, isChange, runSync, type StoreFiles } from "../../sources/sync-run.ts";
import { type HttpClient, HttpError } from "../support/client.ts";
import { type Command, CommandError, type CommandInput, serverFlags, UsageError } from "../support/command.ts";
import { connect } from "../support/connect.ts";
import { addFile, listAll, type VectorStore, type VectorStoreFile, waitForFile } from "../support/operations.ts";
import { Progress } from "../support/progress.ts";
import { s3AccessOf, s3Flags } from "../support/s3-keys.ts";
import { listFiles } from "./ingest.ts";

/** Bytes of one web site, and milliseconds for reading it. */
const maxWebBytes = 1024 * 1024 * 1024;
const maxWebMs = 1_800_000;
/** Objects of one bucket, and bytes of them. */
const maxObjects = 100_000;
const maxObjectBytes = 4 * 1024 * 1024 * 1024;

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
    ...s3Flags,
  },
  async run(input) {
    const sources = sourcesOf(input);
    const [existing, name] = [input.text("store"), input.text("new")];
    if ((existing === undefined) === (name === undefined)) throw new UsageError("pass either --store or --new");
    const isDry = input.isSet("dry-run");
    if (isDry && existing === undefined) throw new UsageError("--dry-run needs --store");
    const client = connect(input);
    const stored = await filesOf(client, existing);
    const folder = mkdtempSync(join(tmpdir(), "spangate-sync-"));
    try {
      const { local, failed, partial } = await gatherAll(input, client, sources, stored, folder);
      if (local.length === 0 && !input.isSet("allow-empty")) {
        const where = input.positionals.join(", ");
        throw new CommandError(`there is no file in ${where}; pass --allow-empty if that is meant`);
      }
      const storeId = existing ?? (await client.json<VectorStore>("POST", "/v1/vector_stores", { name })).id;
      if (existing === undefined) console.log(storeId);
      const whole = planSync(local, stored, new Set(sources.keys()), input.isSet("mirror"));
      const plan = { ...whole, gone: whole.gone.filter((file) => !partial.has(labelOf(file) ?? "")) };
      if (isDry) printPlan(plan);
      else {
        const progress = new Progress("sync");
        const onProgress = (done: number, total: number, name?: string) => progress.update(done, total, name);
        await runSync(new RemoteStore(client, storeId), plan, { failed, onProgress });
        progress.finish();
      }
      for (const [path, reason] of failed) console.error(`${path}: ${reason}`);
      for (const label of partial) console.error(`${label} was not read whole, so nothing of it is taken out`);
      printSummary(plan, failed, isDry);
      return failed.size === 0 ? 0 : 1;
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
};

/** Asks the server in any case: that it answers, and knows the key, is better known before anything is read. */
async function filesOf(client: HttpClient, storeId: string | undefined): Promise<readonly VectorStoreFile[]> {
  if (storeId !== undefined) return await listAll<VectorStoreFile>(client, filesPathOf(storeId));
  await client.json("GET", "/v1/vector_stores?limit=1");
  return [];
}

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
  client: HttpClient,
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
  const readStored = async (id: string): Promise<Uint8Array> =>
    await (await client.send({ method: "GET", path: `/v1/files/${id}/content` })).bytes();
  const local: LocalFile[] = [];
  const failed = new Map<string, string>();
  const partial = new Set<string>();
  for (const [label, source] of sources) {
    const progress = new Progress(isRemote(source) ? "read" : "compare");
    const listed = isRemote(source) ? [] : listFiles([source]).map((file) => ({ ...file, label }));
    const onProgress = (done: number, name: string) => progress.update(done, Math.max(listed.length, done + 1), name);
    const own = mkdtempSync(join(folder, "source-"));
    // Whoever names a bucket's server may reach it, private or not; pages lead where their authors want.
    const bounds = isS3(source) ? { ...web, isAllowed: () => true } : web;
    const options = {
      folder: own,
      web: bounds,
      s3: s3AccessOf(input),
      maxObjects,
      maxObjectBytes,
      readStored,
      onProgress,
    };
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

/** A vector store over HTTP. */
class RemoteStore implements StoreFiles {
  readonly #client: HttpClient;
  readonly #storeId: string;
  readonly #filesPath: string;

  constructor(client: HttpClient, storeId: string) {
    this.#client = client;
    this.#storeId = storeId;
    this.#filesPath = filesPathOf(storeId);
  }

  setAttributes(id: string, attributes: StoredFile["attributes"]): Promise<unknown> {
    return this.#client.json("POST", `${this.#filesPath}/${id}`, { attributes });
  }

  add(file: LocalFile, fields: FileFields): Promise<string> {
    return addFile(this.#client, this.#storeId, file.name, Bun.file(file.bytesAt ?? file.path), fields);
  }

  addAgain(id: string, fields: FileFields): Promise<unknown> {
    return this.#client.json("POST", this.#filesPath, { file_id: id, ...fields });
  }

  ingested(id: string): Promise<void> {
    return waitForFile(this.#client, this.#storeId, id);
  }

  async detach(id: string, isOurs: boolean): Promise<void> {
    const path = `${this.#filesPath}/${id}?delete_file=${isOurs ? "unused" : "never"}`;
    await this.#client.send({ method: "DELETE", path }).catch((error: unknown) => {
      // Somebody else was faster.
      if (!(error instanceof HttpError && error.status === 404)) throw error;
    });
  }

  isPassing(error: unknown): boolean {
    return error instanceof HttpError && passingCodes.has(error.code);
  }

  reasonOf(error: unknown): string {
    return error instanceof Error ? error.message : String(error);
  }
}

const filesPathOf = (storeId: string): string => `/v1/vector_stores/${encodeURIComponent(storeId)}/files`;

function printPlan({ work, gone }: SyncPlan): void {
  for (const one of work) console.log(`${isChange(one) ? "change" : "add"} ${one.file.name}`);
  const names = gone.map(({ id, spangate }) => spangate?.filename ?? id);
  for (const name of names.sort()) console.log(`remove ${name}`);
}

function printSummary(plan: SyncPlan, failed: ReadonlyMap<string, string>, isDry: boolean): void {
  const { others } = plan;
  console.log(`${isDry ? "would be: " : ""}${countsText(countsOf(plan, failed))}`);
  if (others.length > 0) {
    console.error(`${others.length} files of the store came there in another way and stay; --mirror takes them out`);
  }
}
