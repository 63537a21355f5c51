/**
 * The folder of KV files. A file is called by its object's id, and while it is written `w<worker>-<id>.tmp`, or
 * `s3-<id>.tmp`. The file `owner` names the server that the folder belongs to; that server's data folder is locked, so
 * no other has it.
 */
import * as systemFiles from "node:fs";
import { unlink } from "node:fs/promises";
import { join } from "node:path";
import { chunks } from "../base/chunks.ts";

/** What the folder needs of a file system. */
export interface FolderFiles {
  mkdirSync(path: string, options: { readonly recursive: true; readonly mode: number }): unknown;
  readdirSync(path: string): string[];
  existsSync(path: string): boolean;
  readFileSync(path: string, encoding: "utf8"): string;
  openSync(path: string, flags: "w" | "r", mode?: number): number;
  writeSync(file: number, text: string): number;
  fsyncSync(file: number): void;
  closeSync(file: number): void;
  renameSync(from: string, to: string): void;
  unlink(path: string): Promise<void>;
}

export const systemFolderFiles: FolderFiles = { ...systemFiles, unlink };

const ownerName = "owner";
/** Where the owner's file is written first: a crash or a power cut leaves it whole or not at all. */
const asideName = "owner.tmp";
const objectPattern = /^[0-9a-f]{32}$/;
const temporaryPattern = /^(?:w\d+|s3)-[0-9a-f]{32}\.tmp$/;

export const temporaryName = (workerId: string, objectId: string): string =>
  `w${workerId.replace("worker-", "")}-${objectId}.tmp`;

/** The name that an object's file has while it comes from the bucket. */
export const bucketAside = (objectId: string): string => `s3-${objectId}.tmp`;

/** Why the folder cannot be used, in words that follow its name. */
export class FolderRefused extends Error {}

/**
 * Makes the folder, or takes it over when it is this server's.
 * @param owner names this server
 * @returns the files that are there
 * @throws FolderRefused
 */
export function openKvFolder(files: FolderFiles, folder: string, owner: string): readonly string[] {
  try {
    files.mkdirSync(folder, { recursive: true, mode: 0o700 });
    const names = files.readdirSync(folder).filter((name) => name !== asideName);
    const path = join(folder, ownerName);
    const isMade = names.includes(ownerName);
    if (!isMade && names.length > 0) throw new FolderRefused("it holds files that are not a server's KV");
    if (isMade && files.readFileSync(path, "utf8").trim() !== owner) {
      throw new FolderRefused("it belongs to another server");
    }
    // At each start, so that it is known now and not with the first file whether the folder can be written to.
    const aside = join(folder, asideName);
    syncFile(files, aside, "w", `${owner}\n`);
    files.renameSync(aside, path);
    syncFile(files, folder, "r");
    return names.filter((name) => objectPattern.test(name) || temporaryPattern.test(name));
  } catch (error) {
    if (error instanceof FolderRefused) throw error;
    const code = String((error as { code?: unknown }).code ?? "unknown failure");
    const isFile = code === "EEXIST" || code === "ENOTDIR";
    throw new FolderRefused(isFile ? `it is a file, or below one (${code})` : `it cannot be written to (${code})`);
  }
}

/** Syncs a file or a folder, after it was written to. */
function syncFile(files: FolderFiles, path: string, flags: "w" | "r", text?: string): void {
  const file = files.openSync(path, flags, 0o600);
  try {
    const left = text === undefined ? 0 : text.length - files.writeSync(file, text);
    if (left > 0) throw new FolderRefused("it cannot be written to (ENOSPC)");
    files.fsyncSync(file);
  } finally {
    files.closeSync(file);
  }
}

/**
 * Files that are unlinked at the same time. The end of each is heard of in a later round of the event loop, and beside a
 * deletion's other work a round takes milliseconds: two thousand files one after the other took six seconds.
 */
const unlinkedAtOnce = 64;

/** Removes files that may be gone already. */
export async function removeFiles(files: FolderFiles, folder: string, names: readonly string[]): Promise<void> {
  const remove = (name: string): Promise<void> => files.unlink(join(folder, name)).catch(() => undefined);
  for (const some of chunks(names, unlinkedAtOnce)) await Promise.all(some.map(remove));
}

/** Whether an earlier start of this server made the folder. */
export function isOwnFolder(files: FolderFiles, folder: string, owner: string): boolean {
  const path = join(folder, ownerName);
  return files.existsSync(path) && files.readFileSync(path, "utf8").trim() === owner;
}
