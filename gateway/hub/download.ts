/**
 * Loads one file of the hub's into the cache. What came before a cut, a Ctrl-C or a crash is gone on from; a file gets
 * its name only when its hash is the one that the hub lists, however it came.
 */
import { createReadStream, existsSync, mkdirSync, renameSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { dirname } from "node:path";
import { partialOf } from "./cache.ts";
import { type HubAnswer, type HubClient, PassingError } from "./hub-client.ts";
import { HubError, type HubModel, hubModelText } from "./hub-model.ts";
import type { HubFile } from "./listing.ts";

export interface Download {
  readonly client: HubClient;
  readonly model: HubModel;
  readonly commit: string;
  readonly file: HubFile;
  /** Where it goes. */
  readonly blob: string;
  /** Receives how many bytes of the file are there. */
  readonly onBytes: (done: number) => void;
}

/** @throws HubError */
export async function downloadBlob(download: Download): Promise<void> {
  const { blob, file, model } = download;
  const partial = partialOf(blob);
  mkdirSync(dirname(blob), { recursive: true });
  const isResumed = existsSync(partial);
  if (!(await fillPartial(download, partial))) {
    // A partial file may have been damaged by a crash: once it is loaded anew. The hub is blamed for a whole one alone.
    if (!isResumed || !(await fillPartial(download, partial))) {
      throw new HubError(
        `${hubModelText(model)}: ${file.path} came with another hash than the hub lists (${file.blob})`,
      );
    }
  }
  renameSync(partial, blob);
}

/** @returns false: all bytes are there, and their hash is wrong; the file is empty again */
async function fillPartial(download: Download, path: string): Promise<boolean> {
  const { client, file } = download;
  await using handle = await open(path, "a");
  const partial = new PartialFile(handle, path, download);
  await partial.readWhatIsThere();
  await client.retried(
    async () => {
      if (partial.size < file.size || file.size === 0) await fetchRest(download, partial);
    },
    () => partial.size,
  );
  if (!partial.hasHash()) {
    await partial.clear();
    return false;
  }
  await handle.sync();
  return true;
}

/** The part of a file that is on the disk, with its hash so far. */
class PartialFile {
  size = 0;
  readonly #handle: FileHandle;
  readonly #path: string;
  readonly #download: Download;
  #hasher: Bun.CryptoHasher;

  constructor(handle: FileHandle, path: string, download: Download) {
    this.#handle = handle;
    this.#path = path;
    this.#download = download;
    this.#hasher = hasherOf(download.file);
  }

  async readWhatIsThere(): Promise<void> {
    for await (const piece of createReadStream(this.#path, { highWaterMark: 2 ** 20 }) as AsyncIterable<Buffer>) {
      this.#count(piece);
    }
  }

  async append(piece: Uint8Array): Promise<void> {
    for (let at = 0; at < piece.length; ) {
      const { bytesWritten } = await this.#handle.write(piece, at, piece.length - at);
      at += bytesWritten;
    }
    this.#count(piece);
  }

  async clear(): Promise<void> {
    await this.#handle.truncate(0);
    this.size = 0;
    this.#hasher = hasherOf(this.#download.file);
    this.#download.onBytes(0);
  }

  hasHash(): boolean {
    return this.#hasher.copy().digest("hex") === this.#download.file.blob;
  }

  #count(piece: Uint8Array): void {
    this.#hasher.update(piece);
    this.size += piece.length;
    this.#download.onBytes(this.size);
  }
}

/** Git hashes a file behind a line with its length. */
function hasherOf({ hash, size }: HubFile): Bun.CryptoHasher {
  return hash === "sha256" ? new Bun.CryptoHasher("sha256") : new Bun.CryptoHasher("sha1").update(`blob ${size}\0`);
}

/** Asks for what is missing and appends it. @throws PassingError when it breaks off */
async function fetchRest({ client, model, commit, file }: Download, partial: PartialFile): Promise<void> {
  const path = `/${model.id}/resolve/${commit}/${file.path.split("/").map(encodeURIComponent).join("/")}`;
  const headers: Record<string, string> = partial.size === 0 ? {} : { range: `bytes=${partial.size}-` };
  const answer = await client.get(path, model, headers);
  try {
    // A server that knows no ranges sends all of it.
    if (answer.status !== 206 && partial.size > 0) await partial.clear();
    assertAnnounced(answer, partial.size, file, model);
    for await (const piece of answer.pieces()) {
      if (partial.size + piece.length > file.size) throw lies(model, file, "more");
      await partial.append(piece);
    }
  } finally {
    answer.close();
  }
  if (partial.size < file.size) throw new PassingError(`${hubModelText(model)}: ${file.path} broke off`);
}

/** Whether what is announced is what is missing. @throws HubError */
function assertAnnounced({ status, headers }: HubAnswer, from: number, file: HubFile, model: HubModel): void {
  const length = headers.get("content-length");
  if (length !== null && Number(length) !== file.size - from) throw lies(model, file, `${Number(length) + from}`);
  if (status !== 206) return;
  const [, start, total] = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(headers.get("content-range") ?? "") ?? [];
  if (Number(start) !== from)
    throw new HubError(`${hubModelText(model)}: ${file.path} came from another byte on than asked`);
  if (total !== "*" && Number(total) !== file.size) throw lies(model, file, `${total}`);
}

function lies(model: HubModel, file: HubFile, sent: string): HubError {
  return new HubError(`${hubModelText(model)}: the hub lists ${file.path} with ${file.size} bytes, and sends ${sent}`);
}
