/**
 * The folder of KV files. A file is called by its object's id, and while it is written `w<worker>-<id>.tmp`, or
 * `s3-<id>.tmp`. The file
 * `owner` names the server that the folder belongs to; that server's data folder is locked, so no other has it.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { unlink } from "node:fs/promises";
import { join } from "node:path";

/** What the folder needs of a file system. */
export interface FolderFiles {
  mkdirSync(path: string, options: { readonly recursive: true; readonly mode: number }): unknown;
  readdirSync(path: string): string[];
  existsSync(path: string): boolean;
  readFileSync(path: string, encoding: "utf8"): string;
  writeFileSync(path: string, text: string, options: { readonly mode: number; readonly flag?: "wx" }): void;
  unlink(path: string): Promise<void>;
}

export const systemFolderFiles: FolderFiles = {
  ...{ existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync, unlink },
};

const ownerName = "owner";
const objectPattern = /^[0-9a-f]{32}$/;
const temporaryPattern = /^(?:w\d+|s3)-[0-9a-f]{32}\.tmp$/;

export const temporaryName = (workerId: string, objectId: string): string =>
  `w${workerId.replace("worker-", "")}-${objectId}.tmp`;

/** The same while it comes from the bucket. */
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
    const names = files.readdirSync(folder);
    const path = join(folder, ownerName);
    if (names.length === 0) files.writeFileSync(path, `${owner}\n`, { mode: 0o600, flag: "wx" });
    else if (!names.includes(ownerName)) throw new FolderRefused("it holds files that are not a server's KV");
    else if (files.readFileSync(path, "utf8").trim() !== owner) throw new FolderRefused("it belongs to another server");
    // Whether it can be written to is known now, and not with the first file.
    else files.writeFileSync(path, `${owner}\n`, { mode: 0o600 });
    return names.filter((name) => objectPattern.test(name) || temporaryPattern.test(name));
  } catch (error) {
    if (error instanceof FolderRefused) throw error;
    const code = (error as { code?: unknown }).code;
    throw new FolderRefused(`it cannot be written to (${String(code ?? "unknown failure")})`);
  }
}

/** Removes files that may be gone already. */
export async function removeFiles(files: FolderFiles, folder: string, names: readonly string[]): Promise<void> {
  for (const name of names) await files.unlink(join(folder, name)).catch(() => undefined);
}

/** Whether an earlier start of this server made the folder. */
export function isOwnFolder(files: FolderFiles, folder: string, owner: string): boolean {
  const path = join(folder, ownerName);
  return files.existsSync(path) && files.readFileSync(path, "utf8").trim() === owner;
}
