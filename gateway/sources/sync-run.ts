/**
 * Does what a plan says, in an order that is safe to cut off at any point: a file's newest version is attached and
 * ingested before its older ones are detached, and files that are gone are detached last, so that a renamed file is
 * never missing.
 */
import { delay } from "../base/pace.ts";
import { type FileWork, type LocalFile, labelAttribute, type StoredFile, type SyncPlan } from "./sync-plan.ts";

/** What the store is told of a file that is attached. */
export type FileFields = Pick<StoredFile, "attributes" | "chunking_strategy">;

/** A vector store's files, over HTTP or in the server itself. */
export interface StoreFiles {
  setAttributes(id: string, attributes: StoredFile["attributes"]): Promise<unknown>;
  /** Uploads and attaches a file. @returns its id */
  add(file: LocalFile, fields: FileFields): Promise<string>;
  /** Attaches a file again that could not be ingested. */
  addAgain(id: string, fields: FileFields): Promise<unknown>;
  /** Resolves when the file has been ingested. @throws Error with the reason when it could not be */
  ingested(id: string): Promise<void>;
  /**
   * Takes a file out; one that is gone already is fine.
   * @param isOurs whether a sync uploaded it: then it is deleted once no vector store has it
   */
  detach(id: string, isOurs: boolean): Promise<void>;
  /** Whether the store refuses only for now: over a limit, or starting. */
  isPassing(error: unknown): boolean;
  /** Why something failed, as a sentence. */
  reasonOf(error: unknown): string;
}

export interface SyncOptions {
  /** Why files failed, by their path or URL; more are added. */
  readonly failed: Map<string, string>;
  readonly onProgress?: (done: number, total: number, name?: string) => void;
  /** Nothing further is begun once it aborts. */
  readonly signal?: AbortSignal;
}

/** Files that are uploaded and ingested at the same time. */
const filesAtOnce = 4;
/** Waits between tries of a call that the server refuses for now, in ms. */
const retryDelaysMs = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000];

export async function runSync(store: StoreFiles, plan: SyncPlan, options: SyncOptions): Promise<void> {
  await new Sync(store, options).run(plan);
}

const never = new AbortController().signal;

class Sync {
  readonly #store: StoreFiles;
  readonly #options: SyncOptions;

  constructor(store: StoreFiles, options: SyncOptions) {
    this.#store = store;
    this.#options = options;
  }

  async run({ work, relabelled, gone }: SyncPlan): Promise<void> {
    const { onProgress } = this.#options;
    for (const { stored, attributes } of relabelled) {
      await this.#try(stored.spangate?.filename ?? stored.id, () => this.#store.setAttributes(stored.id, attributes));
    }
    const waiting = work.values();
    let done = 0;
    const worker = async (): Promise<void> => {
      for (const one of waiting) {
        onProgress?.(done, work.length, one.file.name);
        await this.#try(one.file.path, () => this.#bring(one));
        done += 1;
      }
    };
    await Promise.all(Array.from({ length: filesAtOnce }, worker));
    for (const stored of gone) {
      await this.#try(stored.spangate?.filename ?? stored.id, () => this.#detach(stored));
    }
    onProgress?.(work.length, work.length);
  }

  /** Brings a file's newest version into the store, then takes the older ones out. */
  async #bring({ file, present, older }: FileWork): Promise<void> {
    if (present?.status !== "completed") {
      const { attributes, chunking_strategy } = present ?? older.at(0) ?? {};
      const fields = {
        attributes: { ...attributes, ...file.attributes, [labelAttribute]: file.label },
        ...(chunking_strategy && { chunking_strategy }),
      };
      const id = await this.#retried(() => this.#attach(file, present, fields));
      await this.#store.ingested(id);
    }
    for (const stored of older) await this.#detach(stored);
  }

  async #attach(file: LocalFile, present: StoredFile | undefined, fields: FileFields): Promise<string> {
    if (present === undefined) return await this.#store.add(file, fields);
    // The server has the bytes. A file whose ingestion failed is tried again, because its reason may have passed.
    await this.#store.addAgain(present.id, fields);
    return present.id;
  }

  #detach(stored: StoredFile): Promise<void> {
    const isOurs = stored.attributes[labelAttribute] !== undefined;
    return this.#retried(() => this.#store.detach(stored.id, isOurs));
  }

  async #try(path: string, work: () => Promise<unknown>): Promise<void> {
    this.#options.signal?.throwIfAborted();
    try {
      await work();
    } catch (error) {
      this.#options.failed.set(path, this.#store.reasonOf(error));
    }
  }

  /** Repeats a call that the server refuses for now. */
  async #retried<Answer>(call: () => Promise<Answer>): Promise<Answer> {
    for (const delayMs of retryDelaysMs) {
      this.#options.signal?.throwIfAborted();
      try {
        return await call();
      } catch (error) {
        if (!this.#store.isPassing(error)) throw error;
        await delay(delayMs, this.#options.signal ?? never);
      }
    }
    return await call();
  }
}

export const isChange = ({ older }: FileWork): boolean => older.length > 0;

export interface SyncCounts {
  readonly added: number;
  readonly changed: number;
  readonly removed: number;
  readonly unchanged: number;
  readonly failed: number;
}

export function countsOf({ work, gone, unchanged }: SyncPlan, failed: ReadonlyMap<string, string>): SyncCounts {
  const done = work.filter(({ file }) => !failed.has(file.path));
  const changed = done.filter(isChange).length;
  const removed = gone.filter(({ id, spangate }) => !failed.has(spangate?.filename ?? id)).length;
  const added = done.length - changed;
  return { added, changed, removed, unchanged: unchanged.length, failed: failed.size };
}

export const countsText = ({ added, changed, removed, unchanged, failed }: SyncCounts): string =>
  `${added} added, ${changed} changed, ${removed} removed, ${unchanged} unchanged, ${failed} failed`;
