import type { Db } from "./open.ts";

/**
 * Rows that were read, for as long as nothing in the database has changed. Reading a row takes and gives back locks of
 * the file, and some rows are read for every request. One server has the data folder (db/lock.ts) and writes through
 * one connection, so the connection's own count of changes tells of every change.
 */
export class Remembered<Value extends object | number> {
  readonly #db: Db;
  readonly #most: number;
  readonly #values = new Map<string, Value>();
  /** The database's count of changes when the values were read. */
  #changes = -1;

  /** @param most so many values are kept; before one more, all are dropped */
  constructor(db: Db, most: number) {
    this.#db = db;
    this.#most = most;
  }

  /** @param read reads the value; undefined, which is not kept: there is no such row */
  get(key: string, read: () => Value | undefined): Value | undefined {
    // What a transaction reads may be rolled back, and nothing counts that as a change.
    if (this.#db.client.inTransaction) return read();
    const changes = this.#db.changeCount();
    if (changes !== this.#changes || this.#values.size >= this.#most) this.#values.clear();
    this.#changes = changes;
    const known = this.#values.get(key);
    if (known !== undefined) return known;
    const value = read();
    if (value !== undefined) this.#values.set(key, value);
    return value;
  }
}
