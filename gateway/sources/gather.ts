/** Files of folders, web sites and S3 buckets, as a sync compares them with a store. */
import { createReadStream } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type S3Access, S3Store } from "./s3.ts";
import { FetchError, isS3, s3SourceOf } from "./source-url.ts";
import { type LocalFile, labelOf, type StoredFile } from "./sync-plan.ts";
import { crawl, type KnownPage, type WebBounds } from "./web.ts";

export interface Gathered {
  readonly files: readonly LocalFile[];
  /** What could not be had, by path or URL, and why. */
  readonly failed: ReadonlyMap<string, string>;
  /** false: files may be missing that the source still has, so nothing of it may be taken out of the store. */
  readonly isWhole: boolean;
}

/** What files of a web site or a bucket are compared with, and read by. */
export interface RemoteOptions {
  /** An empty folder for what is fetched. */
  readonly folder: string;
  readonly web: WebBounds;
  /** Absent: S3 cannot be read. */
  readonly s3: S3Access | undefined;
  readonly maxObjects: number;
  /** Bytes of objects that one run reads; the next one, which knows what these were, goes on. */
  readonly maxObjectBytes: number;
  /** The bytes of a file that the store has. */
  readonly readStored: (id: string) => Promise<Uint8Array>;
  readonly onProgress: (done: number, name: string) => void;
}

/** What the server takes of one file. */
const maxFileBytes = 32 * 1024 * 1024;
/** Values of attributes are not longer. */
const maxAttributeChars = 512;

/**
 * @param stored the store's files; those of other sources do not count
 * @throws FetchError when the source as a whole cannot be read
 */
export async function gatherRemote(
  label: string,
  source: string,
  stored: readonly StoredFile[],
  options: RemoteOptions,
): Promise<Gathered> {
  const own = stored.filter((file) => labelOf(file) === label);
  const known = new Map(own.flatMap((file) => knownOf(file, options.readStored)));
  const gather = isS3(source) ? gatherS3 : gatherWeb;
  return await gather(label, source, known, options);
}

interface Known extends KnownPage {
  readonly sha256: string;
}

/** By its URL. A file without one, or whose upload is gone, is read anew. */
function knownOf(
  { id, attributes, spangate }: StoredFile,
  read: RemoteOptions["readStored"],
): readonly (readonly [string, Known])[] {
  const { source_url: url, etag, last_modified: lastModified } = attributes;
  if (typeof url !== "string" || spangate === undefined) return [];
  const text = (value: unknown): string | undefined => (typeof value === "string" ? value : undefined);
  const { filename: name, sha256 } = spangate;
  return [[url, { name, sha256, etag: text(etag), lastModified: text(lastModified), read: () => read(id) }]];
}

type KnownFiles = ReadonlyMap<string, Known>;

async function gatherWeb(label: string, source: string, known: KnownFiles, options: RemoteOptions): Promise<Gathered> {
  const files = new Map<string, LocalFile>();
  const failed = new Map<string, string>();
  let isWhole = true;
  let kept = 0;
  if (!URL.canParse(source)) throw new FetchError(`${source} is no URL`);
  for await (const page of crawl(new URL(source), options.web, (url) => known.get(url))) {
    if ("reason" in page) {
      failed.set(page.url, page.reason);
      isWhole &&= !page.isPassing;
      continue;
    }
    const { name, url, etag, lastModified, bytes } = page;
    options.onProgress(files.size, name);
    const attributes = attributesOf({ source_url: url, etag, last_modified: lastModified });
    const file = { label, name, path: url, attributes };
    if (bytes !== undefined) files.set(name, await keep(options.folder, kept++, file, bytes));
    else files.set(name, { ...file, sha256: known.get(url)?.sha256 });
  }
  return { files: [...files.values()], failed, isWhole };
}

async function gatherS3(label: string, source: string, known: KnownFiles, options: RemoteOptions): Promise<Gathered> {
  const place = s3SourceOf(source);
  if (options.s3 === undefined) throw new FetchError("set S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY");
  const store = new S3Store(place, options.s3, options.web);
  const files: LocalFile[] = [];
  const failed = new Map<string, string>();
  const endMs = performance.now() + options.web.maxMs;
  let byteCount = 0;
  for (const object of await store.list(options.maxObjects)) {
    const { key, etag } = object;
    const name = `${place.bucket}/${key}`;
    const url = `s3://${name}`;
    options.onProgress(files.length, name);
    const before = known.get(url);
    const sha256 = etag !== undefined && before?.etag === etag ? before.sha256 : undefined;
    const file = { label, name, path: url, attributes: attributesOf({ source_url: url, etag }) };
    try {
      const isKnown = sha256 !== undefined;
      if (object.bytes > maxFileBytes) throw new FetchError(`it has more than ${maxFileBytes} bytes`);
      byteCount += isKnown ? 0 : object.bytes;
      const isOver = byteCount > options.maxObjectBytes || (!isKnown && performance.now() > endMs);
      if (isOver) throw new FetchError("this run has read as much as one may; run it again");
      files.push(
        isKnown ? { ...file, sha256 } : await keep(options.folder, files.length, file, await store.read(object)),
      );
    } catch (error) {
      if (!(error instanceof FetchError)) throw error;
      failed.set(url, error.message);
      files.push({ ...file, sha256: undefined });
    }
  }
  return { files, failed, isWhole: true };
}

/** Puts what was fetched into the folder, under a number and the name's end, which says its type. */
async function keep(
  folder: string,
  number: number,
  file: Omit<LocalFile, "sha256">,
  bytes: Uint8Array,
): Promise<LocalFile> {
  const end = /\.[a-z0-9]{1,10}$/i.exec(file.name)?.[0] ?? "";
  const bytesAt = join(folder, `${number}${end}`);
  await writeFile(bytesAt, bytes);
  return { ...file, bytesAt, sha256: new Bun.CryptoHasher("sha256").update(bytes).digest("hex") };
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
