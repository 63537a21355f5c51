/**
 * A backup is one SQLite file: the database as it was at one moment, and in a table of its own the secret and the
 * bytes of every uploaded file. It holds all that a data folder holds, so it is to be guarded like one.
 */
import { Database } from "bun:sqlite";
import {
  chmodSync,
  closeSync,
  copyFileSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { parseId } from "./ids.ts";
import { lockFolder } from "./lock.ts";

/** The message is one sentence for the operator. */
export class BackupError extends Error {}

export interface BackupReport {
  readonly files: number;
  readonly bytes: number;
}

const databaseName = "spangate.db";
const secretName = "secret";
const filesName = "files";

interface FileRow {
  readonly id: string;
  readonly sha256: string;
}

/**
 * Backs up a data folder, even while its server runs: the backup holds everything that was acknowledged before the
 * call.
 * @throws BackupError
 */
export function backupFolder(dataDir: string, target: string): BackupReport {
  if (existsSync(target)) throw new BackupError(`${target} exists already`);
  const source = join(dataDir, databaseName);
  if (!existsSync(source)) throw new BackupError(`${dataDir} has no database; is it the data folder of a server?`);
  const aside = `${target}.${process.pid}.tmp`;
  try {
    const live = new Database(source, { readonly: true, strict: true });
    try {
      live.run("pragma busy_timeout = 10000");
      // The file gets the owner's permissions only before anything is in it. SQLite accepts an empty file as a new
      // database.
      writeFileSync(aside, "", { mode: 0o600, flag: "wx" });
      live.query("vacuum into ?").run(aside);
    } finally {
      live.close();
    }
    const report = addFiles(aside, dataDir);
    sync(aside);
    renameSync(aside, target);
    sync(dirname(target));
    return report;
  } catch (error) {
    throw asBackupError(error, `cannot back up ${dataDir}`);
  } finally {
    for (const suffix of ["", "-journal", "-wal", "-shm"]) rmSync(`${aside}${suffix}`, { force: true });
  }
}

/**
 * KV files are not a part of a backup, and their keys would open copies of them. A restored server has another name in
 * buckets, so that it takes nothing away from the one that it was copied from.
 */
const keyTables = ["kv_objects", "kv_scopes", "kv_bucket_removals", "kv_bucket"];

function removeKeys(copy: Database): void {
  copy.run("pragma secure_delete = on");
  const find = copy.query("select 1 from sqlite_master where type = 'table' and name = ?");
  for (const table of keyTables) if (find.get(table) !== null) copy.run(`delete from ${table}`);
}

function addFiles(path: string, dataDir: string): BackupReport {
  const copy = new Database(path, { strict: true });
  try {
    removeKeys(copy);
    copy.run("create table backup_files (name text primary key, bytes blob not null) strict");
    const insert = copy.query("insert into backup_files (name, bytes) values (?, ?)");
    insert.run(secretName, readFileSync(join(dataDir, secretName)));
    let [files, bytes] = [0, 0];
    for (const { id } of liveFiles(copy)) {
      const content = readIfThere(join(dataDir, filesName, id));
      if (content === undefined) {
        // The file was deleted meanwhile. It stays deleted, and the next start sweeps the rest of it.
        copy.query("update files set deleted_at = ? where id = ?").run(Date.now(), id);
        copy.query("update corpus_files set status = 'deleting' where file_id = ?").run(id);
        continue;
      }
      insert.run(id, content);
      files += 1;
      bytes += content.byteLength;
    }
    return { files, bytes };
  } finally {
    copy.close();
  }
}

/**
 * Makes a data folder from a backup. The database is written last, so a folder with a database is complete.
 * @throws BackupError when the folder has a database, when a server uses it, or when the backup is damaged
 */
export function restoreFolder(source: string, dataDir: string): BackupReport {
  if (!existsSync(source)) throw new BackupError(`there is no file ${source}`);
  const database = join(dataDir, databaseName);
  const aside = `${database}.restore`;
  let unlock: (() => void) | undefined;
  try {
    unlock = lockFolder(dataDir);
    for (const name of [databaseName, secretName]) {
      if (existsSync(join(dataDir, name))) throw new BackupError(`${dataDir} has a ${name} already`);
    }
    rmSync(aside, { force: true });
    copyFileSync(source, aside);
    chmodSync(aside, 0o600);
    const report = takeFiles(aside, dataDir);
    sync(aside);
    renameSync(aside, database);
    sync(dataDir);
    return report;
  } catch (error) {
    throw asBackupError(error, `cannot restore ${source}`);
  } finally {
    for (const suffix of ["", "-journal", "-wal", "-shm"]) rmSync(`${aside}${suffix}`, { force: true });
    unlock?.();
  }
}

function takeFiles(path: string, dataDir: string): BackupReport {
  const copy = new Database(path, { strict: true });
  try {
    const check = copy.query<{ integrity_check: string }, []>("pragma integrity_check(1)").get();
    if (check?.integrity_check !== "ok") throw new BackupError("the backup is damaged");
    const find = copy.query<{ bytes: Uint8Array }, [string]>("select bytes from backup_files where name = ?");
    const take = (name: string): Uint8Array => {
      const row = find.get(name);
      if (row === null) throw new BackupError(`the backup lacks ${name}`);
      return row.bytes;
    };
    const folder = join(dataDir, filesName);
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    let [files, bytes] = [0, 0];
    for (const { id, sha256 } of liveFiles(copy)) {
      if (parseId("file", id) === undefined) throw new BackupError("the backup names a file that is none");
      const content = take(id);
      const found = new Bun.CryptoHasher("sha256").update(content).digest("hex");
      if (found !== sha256) throw new BackupError(`the backup's bytes of ${id} are damaged`);
      writeDurably(join(folder, id), content);
      files += 1;
      bytes += content.byteLength;
    }
    sync(folder);
    writeDurably(join(dataDir, secretName), take(secretName));
    copy.run("drop table backup_files");
    copy.run("vacuum");
    return { files, bytes };
  } finally {
    copy.close();
  }
}

const liveFiles = (database: Database): readonly FileRow[] =>
  database.query<FileRow, []>("select id, sha256 from files where deleted_at is null order by seq").all();

function readIfThere(path: string): Uint8Array | undefined {
  try {
    return readFileSync(path);
  } catch (error) {
    if ((error as { code?: unknown }).code === "ENOENT") return undefined;
    throw error;
  }
}

function writeDurably(path: string, bytes: Uint8Array): void {
  writeFileSync(path, bytes, { mode: 0o600 });
  sync(path);
}

/** Syncs a file's bytes, or a folder's names, to the disk. */
function sync(path: string): void {
  const file = openSync(path, "r");
  fsyncSync(file);
  closeSync(file);
}

function asBackupError(error: unknown, what: string): BackupError {
  if (error instanceof BackupError) return new BackupError(`${what}: ${error.message}`);
  const reason = error instanceof Error ? error.message : "unknown failure";
  return new BackupError(`${what}: ${reason}`, { cause: error });
}
