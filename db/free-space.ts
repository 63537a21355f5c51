/**
 * Overwrites with zeros what dropped indexes leave. Dropping a large index with secure_delete would write all its pages
 * at once and block the event loop. So its pages are freed unchanged, and afterwards all free space is overwritten in
 * pieces. While the table `free_space` exists, that is not finished.
 */
import type { Db } from "./open.ts";

const pagesPerPiece = 256;

/**
 * Runs all of `work` or nothing, and frees pages without overwriting them. So it drops tables fast, but their contents
 * stay in the file until `zeroFreeSpace` has ended.
 */
export function freeUnzeroed(db: Db, name: string, work: () => void): void {
  const drop = (): void => {
    db.statement("noteFreeSpace", () => {
      db.client.run("create table if not exists free_space (zeros blob)");
      // A row without zeros says that there is space to overwrite.
      db.client.run("insert into free_space (zeros) values (null)");
    });
    work();
  };
  unzeroed(db, () => db.transaction(name, drop));
}

/** Overwrites lazily, so that the caller decides when to yield to other work. More space may be freed meanwhile. */
export function* zeroFreeSpace(db: Db): Generator<void> {
  const table = "select 1 from sqlite_schema where name = 'free_space'";
  if (db.statement("findFreeSpace", () => db.client.query(table).get()) === null) return;
  for (;;) {
    yield* overwriteFreePages(db);
    // If more space was freed since the overwriting began, another row says so.
    const end = (): boolean => {
      if (db.client.query("select 1 from free_space limit 1").get() !== null) return false;
      db.client.run("drop table free_space");
      return true;
    };
    if (db.transaction("endFreeSpace", end)) return;
  }
}

function* overwriteFreePages(db: Db): Generator<void> {
  db.statement("beginFreeSpace", () => db.client.run("delete from free_space where zeros is null"));
  for (let pages = freePages(db); pages > 0; pages = freePages(db)) {
    const bytes = Math.min(pages, pagesPerPiece) * pageBytes(db);
    db.unsynced(() => db.statement("fillFreeSpace", () => insertZeros(db, bytes)));
    yield;
  }
  const remove = "delete from free_space where rowid = (select max(rowid) from free_space where zeros is not null)";
  const removeOne = () => db.statement("emptyFreeSpace", () => db.client.query(remove).run().changes);
  // These rows hold only zeros, so they need no overwriting themselves.
  while (unzeroed(db, () => db.unsynced(removeOne)) > 0) yield;
}

function insertZeros(db: Db, bytes: number): void {
  // The row is a little smaller than the free pages, which also hold SQLite's own bytes.
  db.client.query("insert into free_space (zeros) values (zeroblob(?))").run(bytes - Math.ceil(bytes / 256));
}

function unzeroed<T>(db: Db, work: () => T): T {
  db.client.run("pragma secure_delete = off");
  try {
    return work();
  } finally {
    db.client.run("pragma secure_delete = on");
  }
}

function freePages(db: Db): number {
  const row = db.statement("freePages", () =>
    db.client.query<{ freelist_count: number }, []>("pragma freelist_count").get(),
  );
  return row?.freelist_count ?? 0;
}

function pageBytes(db: Db): number {
  return db.client.query<{ page_size: number }, []>("pragma page_size").get()?.page_size ?? 4_096;
}
