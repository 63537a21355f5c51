/**
 * Opens the one database. Everything in db/ is synchronous; `transaction` says why. What would hold the event loop reads
 * through a connection of its own, in another thread (`openReader`).
 */
import { Database } from "bun:sqlite";
import { closeSync, openSync, statSync } from "node:fs";
import { getLoadablePath } from "sqlite-vec";
import { migrationsFolder, nativeLibrary } from "../places/places.ts";
import { DbError, sqliteCode, toDbError } from "./errors.ts";
import { migrate, readMigrations } from "./migrate.ts";
import { type Orm, Statements } from "./statements.ts";

/** A transaction's callback must not be async: SQLite would have committed at its first await. */
type Synchronous<T> = T extends PromiseLike<unknown> ? never : T;

export class Db {
  readonly client: Database;
  readonly #statements: Statements;
  /** Why vectors cannot be searched (the extension for it cannot be loaded); undefined: they can. */
  readonly vectorsMissing: string | undefined;
  readonly #busyTimeoutMs: number;

  constructor(client: Database, busyTimeoutMs: number, vectorsMissing?: string) {
    this.client = client;
    this.#statements = new Statements(client);
    this.#busyTimeoutMs = busyTimeoutMs;
    this.vectorsMissing = vectorsMissing;
  }

  get hasVectors(): boolean {
    return this.vectorsMissing === undefined;
  }

  /** Runs one named statement; a failure is a DbError that carries the name and no parameters. */
  statement<T>(name: string, work: (orm: Orm) => T): T {
    try {
      return work(this.#statements.orm);
    } catch (error) {
      throw toDbError(name, error);
    }
  }

  /**
   * The same of a statement that is built once, with placeholders for its parameters.
   * @param key tells apart all statements that differ in more than parameters
   */
  builtOnce<Built extends object, T>(
    name: string,
    key: string,
    build: (orm: Orm) => Built,
    run: (built: Built) => T,
  ): T {
    return this.statement(name, () => run(this.#statements.once(key, build)));
  }

  /**
   * Runs all statements of `work`, or none. Takes the write lock first, so that a read lock never has to be upgraded.
   */
  transaction<T>(name: string, work: () => Synchronous<T>): T {
    try {
      return this.client
        .transaction(() => {
          const result = work();
          if (typeof (result as { then?: unknown } | undefined)?.then === "function") {
            throw new DbError("internal", name, "a transaction's callback must not be async");
          }
          return result as T;
        })
        .immediate();
    } catch (error) {
      if (sqliteCode(error) === undefined) throw error;
      throw toDbError(name, error);
    }
  }

  /** Runs statements that read, all on the same state of the database. */
  snapshot<T>(name: string, work: () => Synchronous<T>): T {
    try {
      return this.client.transaction(() => work() as T).deferred();
    } catch (error) {
      if (sqliteCode(error) === undefined) throw error;
      throw toDbError(name, error);
    }
  }

  /**
   * Runs transactions that are not synced one by one. A power cut may lose the latest of them, each as a whole, so they
   * hold only what the next start does again. The next ordinary commit also makes them durable.
   */
  unsynced<T>(work: () => Synchronous<T>): T {
    this.client.run("pragma synchronous = normal");
    try {
      return work() as T;
    } finally {
      this.client.run("pragma synchronous = full");
    }
  }

  /** Frees space on a full disk; false: there is none to free. */
  relief: () => boolean = () => false;

  /**
   * Waits until no other thread of this process reads the database, and lets none begin until the hold ends. Nobody else
   * reads unless whoever opened such a thread has put another function here.
   */
  pauseReaders: (mostMs: number) => Promise<Disposable | undefined> = async () => ({
    [Symbol.dispose]: () => undefined,
  });

  /** @returns whether the error was that of a full disk and space was freed, so that the work may be tried again */
  relieve(error: unknown): boolean {
    return error instanceof DbError && (error.code === "full" || error.code === "io") && this.relief();
  }

  /**
   * Runs work that removes something, all or nothing. On a full disk it runs again in the space that is reserved for
   * it.
   */
  removing<T>(work: () => T): T {
    try {
      return work();
    } catch (error) {
      if (!this.relieve(error)) throw error;
      return work();
    }
  }

  /** The number of rows that were inserted, changed or deleted since the database was opened. */
  changeCount(): number {
    const row = this.statement("changeCount", () =>
      this.client.query<{ n: number }, []>("select total_changes() as n").get(),
    );
    return row?.n ?? 0;
  }

  /**
   * Moves the log into the database and empties it, so that deleted text does not stay in the log.
   * @returns false when another process or thread reads the database, for which this does not wait
   */
  truncateLog(): boolean {
    return this.statement("truncateLog", () => {
      this.client.run("pragma busy_timeout = 0");
      try {
        return this.client.query<{ busy: number }, []>("pragma wal_checkpoint(truncate)").get()?.busy === 0;
      } finally {
        this.client.run(`pragma busy_timeout = ${this.#busyTimeoutMs}`);
      }
    });
  }

  /**
   * The same, by whoever copies the log in another thread first so that the event loop need not. Resolves when it was
   * tried.
   */
  emptyLog: () => Promise<void> = async () => void this.truncateLog();

  /** The size of the log's file, in bytes. */
  get logBytes(): number {
    return statSync(`${this.client.filename}-wal`, { throwIfNoEntry: false })?.size ?? 0;
  }

  close(): void {
    this.#statements.close();
    this.client.close();
  }
}

export interface OpenOptions {
  readonly migrationsDir?: string;
  /** Milliseconds that a statement waits for another process's lock. The wait blocks the event loop, so it is short. */
  readonly busyTimeoutMs?: number;
  /** The path of sqlite-vec; the package's own when absent. */
  readonly vectorExtension?: () => string;
}

/**
 * Pages of the log from which on a commit copies them into the database itself, and syncs both files meanwhile, which took
 * 40 to 60 ms for 8,192 of them. A page counts as often as it is written: ingestion writes as many in a third of a second.
 * A thread has copied them long before (`copyLog`).
 */
const longLogPages = 65_536;

/**
 * Of the database's pages, held in memory (SQLite's own default is 2 MiB). What a commit or a merge of the full-text
 * index reads anew holds up the event loop, for as long as a disk takes where the system has no room for files.
 */
const cacheKib = 16 * 1_024;

/**
 * Opens and migrates the database. `path` may be ":memory:". What was acknowledged is durable: WAL with
 * synchronous=FULL syncs the log at every commit. secure_delete overwrites what is deleted with zeros.
 * @throws DbError "open" (not a database, no permission) or "migration" (see migrate.ts)
 */
export function openDb(path: string, options: OpenOptions = {}): Db {
  const migrations = readMigrations(options.migrationsDir ?? migrationsFolder);
  const busyTimeoutMs = Math.trunc(options.busyTimeoutMs ?? 200);
  let client: Database | undefined;
  try {
    // The file holds tenants' texts, so only its owner may read it. SQLite gives its log the same mode.
    if (path !== ":memory:") closeSync(openSync(path, "a", 0o600));
    client = new Database(path, { create: true, strict: true });
    client.run(`pragma busy_timeout = ${busyTimeoutMs}`);
    client.run("pragma journal_mode = wal");
    client.run("pragma synchronous = full");
    client.run(`pragma wal_autocheckpoint = ${longLogPages}`);
    client.run(`pragma cache_size = -${cacheKib}`);
    client.run("pragma foreign_keys = on");
    client.run("pragma secure_delete = on");
    const vectorsMissing = loadVectorExtension(client, options.vectorExtension);
    migrate(client, migrations);
    // What a statement may have to undo is kept in memory: a merge of full text made and filled a file for it each time.
    client.run("pragma temp_store = memory");
    return new Db(client, busyTimeoutMs, vectorsMissing);
  } catch (error) {
    client?.close();
    if (error instanceof DbError) throw error;
    const code = sqliteCode(error) ?? (error instanceof Error ? error.message : "unknown failure");
    throw new DbError("open", "openDb", `cannot open the database ${path}: ${code}`);
  }
}

/** A connection for another thread waits longer for a lock: it holds nobody up. */
const readerBusyTimeoutMs = 2_000;

/** A second connection to a database that this process has opened already; it can change nothing. @throws DbError "open" */
export function openReader(path: string): Db {
  let client: Database | undefined;
  try {
    client = new Database(path, { readonly: true, strict: true });
    client.run(`pragma busy_timeout = ${readerBusyTimeoutMs}`);
    return new Db(client, readerBusyTimeoutMs, loadVectorExtension(client));
  } catch (error) {
    client?.close();
    throw new DbError(
      "open",
      "openReader",
      `cannot read the database ${path}: ${sqliteCode(error) ?? "unknown failure"}`,
    );
  }
}

/**
 * Copies what the log has into the database and syncs both, for another thread than the one that writes, which goes on
 * meanwhile. `truncateLog` then has little left to copy, and where nothing was written since, nothing to sync.
 * @param path of a database that this process has opened already
 * @throws DbError
 */
export function copyLog(path: string): void {
  let client: Database | undefined;
  try {
    client = new Database(path, { readwrite: true, strict: true });
    client.run("pragma wal_checkpoint(passive)");
  } catch (error) {
    throw toDbError("copyLog", error);
  } finally {
    client?.close();
  }
}

const shippedExtension = (): string => nativeLibrary("vec0.so") ?? getLoadablePath();

/** @returns why vectors cannot be searched in this database; undefined: they can */
function loadVectorExtension(client: Database, path: () => string = shippedExtension): string | undefined {
  try {
    client.loadExtension(path());
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.message : "unknown failure";
  }
}
