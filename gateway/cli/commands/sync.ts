/** `spangate sync`: makes a vector store hold what folders hold, and sends only what has changed. */
import { createReadStream, statSync } from "node:fs";
import { basename, resolve } from "node:path";
import { type HttpClient, HttpError } from "../support/client.ts";
import { type Command, CommandError, type CommandInput, serverFlags, UsageError } from "../support/command.ts";
import { connect } from "../support/connect.ts";
import { addFile, listAll, type VectorStore, type VectorStoreFile, waitForFile } from "../support/operations.ts";
import { Progress } from "../support/progress.ts";
import { type FileWork, type LocalFile, labelAttribute, planSync, type SyncPlan } from "../support/sync-plan.ts";
import { listFiles } from "./ingest.ts";

/** Files that are uploaded and ingested at the same time. */
const filesAtOnce = 4;
/** Waits between tries of a call that the server refuses for now, in ms. */
const retryDelaysMs = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000];

const passingCodes: ReadonlySet<string> = new Set(["rate_limited", "concurrency_limited", "overloaded", "not_ready"]);

export const syncCommand: Command = {
  name: "sync",
  summary: "Make a vector store hold what folders hold: changed files are sent, those that are gone are taken out.",
  usage: "FOLDER… (--store ID | --new NAME)",
  flags: {
    ...serverFlags,
    store: { type: "string", short: "s", value: "ID", description: "The vector store to bring up to date." },
    new: { type: "string", value: "NAME", description: "Make a vector store of this name first." },
    as: { type: "string", value: "LABEL", description: "What the store calls the folder (its name); for one folder." },
    "dry-run": { type: "boolean", short: "n", description: "Only say what would be done." },
    mirror: { type: "boolean", description: "Also take out files that came into the store in another way." },
    "allow-empty": { type: "boolean", description: "Go on when the folders hold no file at all." },
  },
  async run(input) {
    const folders = foldersOf(input);
    const [existing, name] = [input.text("store"), input.text("new")];
    if ((existing === undefined) === (name === undefined)) throw new UsageError("pass either --store or --new");
    const isDry = input.isSet("dry-run");
    if (isDry && existing === undefined) throw new UsageError("--dry-run needs --store");
    const listed = [...folders].flatMap(([label, folder]) => listFiles([folder]).map((file) => ({ ...file, label })));
    if (listed.length === 0 && !input.isSet("allow-empty")) {
      throw new CommandError(
        `there is no file in ${input.positionals.join(", ")}; pass --allow-empty if that is meant`,
      );
    }
    const failed = new Map<string, string>();
    const local = await hashAll(listed, failed);
    const client = connect(input);
    const storeId = existing ?? (await client.json<VectorStore>("POST", "/v1/vector_stores", { name })).id;
    if (existing === undefined) console.log(storeId);
    const stored = await listAll<VectorStoreFile>(client, `/v1/vector_stores/${encodeURIComponent(storeId)}/files`);
    const plan = planSync(local, stored, new Set(folders.keys()), input.isSet("mirror"));
    if (isDry) printPlan(plan);
    else await new Sync(client, storeId, failed).run(plan);
    for (const [path, reason] of failed) console.error(`${path}: ${reason}`);
    printSummary(plan, failed, isDry);
    return failed.size === 0 ? 0 : 1;
  },
};

/** The folders by their labels. @throws UsageError, CommandError */
function foldersOf(input: CommandInput): ReadonlyMap<string, string> {
  const { positionals } = input;
  const asked = input.text("as");
  if (positionals.length === 0) throw new UsageError("FOLDER is missing");
  if (asked !== undefined && positionals.length > 1) throw new UsageError("--as names one folder");
  const folders = new Map<string, string>();
  for (const folder of positionals) {
    if (!statSync(folder, { throwIfNoEntry: false })?.isDirectory()) throw new CommandError(`${folder} is no folder`);
    const label = asked ?? basename(resolve(folder));
    if (label === "" || label.length > 512) throw new UsageError(`${folder} needs a name: pass --as`);
    if (folders.has(label)) {
      throw new UsageError(`two folders are called "${label}": sync one after the other, each with --as`);
    }
    folders.set(label, folder);
  }
  return folders;
}

async function hashAll(
  files: readonly Omit<LocalFile, "sha256">[],
  failed: Map<string, string>,
): Promise<readonly LocalFile[]> {
  const progress = new Progress("compare");
  const hashed: LocalFile[] = [];
  for (const file of files) {
    progress.update(hashed.length, files.length, file.name);
    const sha256 = await sha256Of(file.path).catch((error: Error) => void failed.set(file.path, error.message));
    hashed.push({ ...file, sha256: sha256 ?? undefined });
  }
  progress.update(files.length, files.length);
  progress.finish();
  return hashed;
}

async function sha256Of(path: string): Promise<string> {
  const hasher = new Bun.CryptoHasher("sha256");
  for await (const piece of createReadStream(path)) hasher.update(piece as Buffer);
  return hasher.digest("hex");
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
        attributes: { ...attributes, [labelAttribute]: file.label },
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
