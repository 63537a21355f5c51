/** Files of folders, web sites and S3 buckets, as a sync compares them with a store. */
import { createReadStream } from "node:fs";
import { writeFile } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import type { VectorStoreFile } from "../support/operations.ts";
import { type LocalFile, labelOf } from "../support/sync-plan.ts";
import { FetchError } from "./public-fetch.ts";
import { S3Store, s3SourceOf } from "./s3.ts";
import { crawl, folderOf, type WebBounds } from "./web.ts";

export interface Gathered {
  readonly files: readonly LocalFile[];
  /** What could not be had, by path or URL, and why. */
  readonly failed: ReadonlyMap<string, string>;
  /** false: files may be missing that the source still has, so nothing of it may be taken out of the store. */
  readonly isWhole: boolean;
}

export interface RemoteOptions {
  /** An empty folder for what is fetched. */
  readonly folder: string;
  readonly web: WebBounds;
  readonly s3Endpoint: string | undefined;
  readonly onProgress: (done: number, name: string) => void;
}

/** What a source is called unless a name is given: a folder's name, what a web site's pages are below, a bucket's URL. */
export function defaultLabel(source: string): string {
  if (!isRemote(source)) return basename(resolve(source));
  return /^s3:/i.test(source) || !URL.canParse(source) ? source : folderOf(new URL(source));
}

export const isRemote = (source: string): boolean => /^(?:https?|s3):\/\//i.test(source);

const maxObjects = 100_000;
/** Bytes of objects that one run reads; the next one, which knows what these were, goes on. */
const maxObjectBytes = 4 * 1024 * 1024 * 1024;
/** What the server takes of one file. */
const maxFileBytes = 32 * 1024 * 1024;
/** Values of attributes are not longer. */
const maxAttributeChars = 512;

/** @throws FetchError when the source as a whole cannot be read */
export async function gatherRemote(
  label: string,
  source: string,
  stored: readonly VectorStoreFile[],
  options: RemoteOptions,
): Promise<Gathered> {
  const versions = new Map(
    stored.filter((file) => labelOf(file) === label).map((file) => [file.spangate?.filename ?? "", file]),
  );
  const gather = /^s3:/i.test(source) ? gatherS3 : gatherWeb;
  return await gather(label, source, new Versions(versions), options);
}

/** What the store says of the versions that it has. */
class Versions {
  readonly #byName: ReadonlyMap<string, VectorStoreFile>;

  constructor(byName: ReadonlyMap<string, VectorStoreFile>) {
    this.#byName = byName;
  }

  etag(name: string): string | undefined {
    const etag = this.#byName.get(name)?.attributes.etag;
    return typeof etag === "string" ? etag : undefined;
  }

  sha256(name: string): string | undefined {
    return this.#byName.get(name)?.spangate?.sha256;
  }
}

async function gatherWeb(label: string, source: string, versions: Versions, options: RemoteOptions): Promise<Gathered> {
  const files = new Map<string, LocalFile>();
  const failed = new Map<string, string>();
  let isWhole = true;
  if (!URL.canParse(source)) throw new FetchError(`${source} is no URL`);
  for await (const page of crawl(new URL(source), options.web, (name) => versions.etag(name))) {
    if ("reason" in page) {
      failed.set(page.url, page.reason);
      isWhole &&= !page.isPassing;
      continue;
    }
    const { name, url, etag, bytes } = page;
    options.onProgress(files.size, name);
    const facts = attributesOf({ source_url: url, etag });
    if (bytes !== undefined) files.set(name, await keep(options.folder, files.size, { label, name }, bytes, facts));
    else files.set(name, { ...{ label, name, path: url, sha256: versions.sha256(name) }, attributes: facts });
  }
  return { files: [...files.values()], failed, isWhole };
}

async function gatherS3(label: string, source: string, versions: Versions, options: RemoteOptions): Promise<Gathered> {
  const place = s3SourceOf(source);
  const store = new S3Store(place, options.s3Endpoint);
  const files: LocalFile[] = [];
  const failed = new Map<string, string>();
  let byteCount = 0;
  for (const object of await store.list(maxObjects)) {
    const { key, etag } = object;
    const name = `${place.bucket}/${key}`;
    const url = `s3://${name}`;
    options.onProgress(files.length, name);
    const facts = attributesOf({ source_url: url, etag });
    const sha256 = etag !== undefined && versions.etag(name) === etag ? versions.sha256(name) : undefined;
    const unread: LocalFile = { ...{ label, name, path: url, sha256 }, attributes: facts };
    try {
      const isKnown = sha256 !== undefined;
      if (object.bytes > maxFileBytes) throw new FetchError(`it has more than ${maxFileBytes} bytes`);
      byteCount += isKnown ? 0 : object.bytes;
      if (byteCount > maxObjectBytes) throw new FetchError("this run has read as much as one may; run it again");
      files.push(
        isKnown ? unread : await keep(options.folder, files.length, { label, name }, await store.read(object), facts),
      );
    } catch (error) {
      if (!(error instanceof FetchError)) throw error;
      failed.set(url, error.message);
      files.push(unread);
    }
  }
  return { files, failed, isWhole: true };
}

/** Puts what was fetched into the folder, under a number and the name's end, which says its type. */
async function keep(
  folder: string,
  number: number,
  file: Pick<LocalFile, "label" | "name">,
  bytes: Uint8Array,
  attributes: Readonly<Record<string, string>>,
): Promise<LocalFile> {
  const end = /\.[a-z0-9]{1,10}$/i.exec(file.name)?.[0] ?? "";
  const path = join(folder, `${number}${end}`);
  await writeFile(path, bytes);
  return { ...file, path, sha256: new Bun.CryptoHasher("sha256").update(bytes).digest("hex"), attributes };
}

function attributesOf(facts: Readonly<Record<string, string | undefined>>): Readonly<Record<string, string>> {
  const entries = Object.entries(facts).flatMap(([name, value]) =>
    value === undefined || value.length > maxAttributeChars ? [] : [[name, value] as const],
  );
  return Object.fromEntries(entries);
}

/** Files of a folder with their digests. */
export async function gatherFolder(
  files: readonly Omit<LocalFile, "sha256">[],
  onProgress: (done: number, name: string) => void,
): Promise<Gathered> {
  const hashed: LocalFile[] = [];
  const failed = new Map<string, string>();
  for (const file of files) {
    onProgress(hashed.length, file.name);
    const sha256 = await sha256Of(file.path).catch((error: Error) => void failed.set(file.path, error.message));
    hashed.push({ ...file, sha256: sha256 ?? undefined });
  }
  return { files: hashed, failed, isWhole: true };
}

async function sha256Of(path: string): Promise<string> {
  const hasher = new Bun.CryptoHasher("sha256");
  for await (const piece of createReadStream(path)) hasher.update(piece as Buffer);
  return hasher.digest("hex");
}
