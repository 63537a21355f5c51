/** Loads what a server needs of a model from the hub into its cache: what is there is not loaded again. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ModelCache } from "./cache.ts";
import { downloadBlob } from "./download.ts";
import { lockFile } from "./file-lock.ts";
import { HubClient, type HubPace, type OnRetry } from "./hub-client.ts";
import { HubError, type HubModel, hubModelText, sizeText } from "./hub-model.ts";
import type { HubSettings } from "./hub-settings.ts";
import { filesBesideWeights, type HubFile, type Listing, readListing, weightFiles } from "./listing.ts";

export interface PullOptions {
  /** Bytes that are there, of all that are needed. */
  readonly onProgress?: (done: number, total: number, note: string) => void;
  /** Called before the network or the hub is tried again. */
  readonly onRetry?: OnRetry;
  /** Looks at the folder when all but the weights is there. @throws when they need not be loaded */
  readonly beforeWeights?: (folder: string) => void;
  /** Default: as for a network. */
  readonly pace?: HubPace;
  /** Bytes that are free on the disk; default: as the system says. */
  readonly freeBytes?: () => number;
}

export interface Pulled {
  readonly folder: string;
  readonly commit: string;
  readonly bytes: number;
}

/** Files that are loaded at the same time. */
const filesAtOnce = 4;
/** What a disk keeps free for everybody else. */
const reserveBytes = 64 * 2 ** 20;

/** @returns the folder of a model that is in the cache with all that a server needs; else undefined */
export function cachedModel(model: HubModel, settings: HubSettings): string | undefined {
  return new ModelCache(settings.cacheDir, model).wholeSnapshot(model.revision);
}

/** @throws HubError in one sentence for the operator */
export async function pullModel(model: HubModel, settings: HubSettings, options: PullOptions = {}): Promise<Pulled> {
  if (settings.isOffline) {
    const where = `${hubModelText(model)} is not whole in ${settings.cacheDir}`;
    throw new HubError(`${where}, and HF_HUB_OFFLINE keeps the hub from being asked`);
  }
  // Of several files that are loaded at once, the first that fails ends the others.
  const stop = new AbortController();
  const client = new HubClient(settings, stop.signal, options.pace, options.onRetry);
  const cache = new ModelCache(settings.cacheDir, model);
  const listing = await readListing(client, model);
  const pull = new Pull({ client, cache, model, listing, options, stop });
  const others = filesBesideWeights(listing, model);
  await pull.load(others);
  const folder = cache.snapshotOf(listing.commit);
  const index = others.find(({ path }) => path.endsWith(".index.json"));
  const weights = weightFiles(listing, index && readFileSync(join(folder, index.path), "utf8"), model);
  options.beforeWeights?.(folder);
  await pull.load(weights);
  cache.writeRef(model.revision, listing.commit);
  return { folder, commit: listing.commit, bytes: bytesOf([...others, ...weights]) };
}

const bytesOf = (files: readonly HubFile[]): number => files.reduce((sum, { size }) => sum + size, 0);

interface PullParts {
  readonly client: HubClient;
  readonly cache: ModelCache;
  readonly model: HubModel;
  readonly listing: Listing;
  readonly options: PullOptions;
  readonly stop: AbortController;
}

class Pull {
  readonly #parts: PullParts;

  constructor(parts: PullParts) {
    this.#parts = parts;
  }

  /** Loads the files that are missing, some at a time, and links all of them. */
  async load(files: readonly HubFile[]): Promise<void> {
    this.#assertRoom(files);
    const { cache, options } = this.#parts;
    const total = bytesOf(files);
    const done = new Map<HubFile, number>();
    const note = (file: HubFile, bytes: number, what = file.path): void => {
      done.set(file, bytes);
      options.onProgress?.(
        [...done.values()].reduce((sum, each) => sum + each, 0),
        total,
        what,
      );
    };
    const waiting = [...files];
    const loadNext = async (): Promise<void> => {
      for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) {
        const one = file;
        if (!cache.hasBlob(one)) await this.#loadOne(one, (bytes, what) => note(one, bytes, what));
        note(one, one.size);
        cache.link(this.#parts.listing.commit, one);
      }
    };
    const { stop } = this.#parts;
    const end = (error: unknown): void => stop.abort(error);
    await Promise.all(Array.from({ length: filesAtOnce }, () => loadNext().catch(end)));
    stop.signal.throwIfAborted();
  }

  async #loadOne(file: HubFile, note: (bytes: number, what?: string) => void): Promise<void> {
    const { client, cache, model, listing, stop } = this.#parts;
    const unlock = await lockFile(cache.lockOf(file), stop.signal, () => note(0, `another process loads ${file.path}`));
    try {
      // It may have come while another process had the lock.
      if (cache.hasBlob(file)) return;
      const blob = cache.blobOf(file);
      await downloadBlob({ client, model, commit: listing.commit, file, blob, onBytes: note });
    } finally {
      unlock();
    }
  }

  /** @throws HubError when the disk has no room for what is missing */
  #assertRoom(files: readonly HubFile[]): void {
    const { cache, model, client, options } = this.#parts;
    const missing = files.reduce((sum, file) => sum + cache.missingBytes(file), 0);
    const free = (options.freeBytes ?? (() => cache.freeBytes()))();
    if (missing === 0 || missing + reserveBytes <= free) return;
    const there = `${sizeText(free)} are free on the disk of ${client.settings.cacheDir}`;
    const remedy = "free some, or name a folder on another disk with HF_HUB_CACHE";
    throw new HubError(`${hubModelText(model)} needs ${sizeText(missing)} more, and ${there}: ${remedy}`);
  }
}
