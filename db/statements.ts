/**
 * Statements that are compiled once. Building a statement's SQL and having SQLite compile it takes many times as long as
 * running it, and the same few hundred are run for every request.
 */
import type { Database, SQLQueryBindings, Statement } from "bun:sqlite";
import { is, SQL, sql } from "drizzle-orm";
import { type BunSQLiteDatabase, drizzle } from "drizzle-orm/bun-sqlite";
import { LRUCache } from "lru-cache";

export type Orm = BunSQLiteDatabase<Record<string, never>>;

/** Lists of parameters have lengths of their own, so there are more texts of statements than statements. */
const [mostTexts, mostBuilt] = [256, 256];
/** A statement keeps its parameters until it runs again: one with a longer text or blob is compiled anew instead. */
const mostKeptLength = 16_384;

/** What drizzle asks of a statement. */
class Compiled {
  readonly #prepare: () => Statement;
  /** Those that have a statement now. */
  readonly #open: Set<Compiled>;
  #statement: Statement | undefined;

  constructor(prepare: () => Statement, open: Set<Compiled>) {
    this.#prepare = prepare;
    this.#open = open;
    // What is wrong with its text is said here, as `prepare` would.
    this.#opened();
  }

  run(...params: SQLQueryBindings[]) {
    return this.#with(params, (statement) => statement.run(...params));
  }

  all(...params: SQLQueryBindings[]) {
    return this.#with(params, (statement) => statement.all(...params));
  }

  values(...params: SQLQueryBindings[]) {
    return this.#with(params, (statement) => statement.values(...params));
  }

  close(): void {
    this.#statement?.finalize();
    this.#statement = undefined;
    this.#open.delete(this);
  }

  #opened(): Statement {
    this.#statement ??= this.#prepare();
    this.#open.add(this);
    return this.#statement;
  }

  #with<T>(params: readonly SQLQueryBindings[], work: (statement: Statement) => T): T {
    const statement = this.#opened();
    try {
      return work(statement);
    } finally {
      if (params.some(isLong)) this.close();
    }
  }
}

const isLong = (param: SQLQueryBindings): boolean =>
  (typeof param === "string" && param.length > mostKeptLength) ||
  (ArrayBuffer.isView(param) && param.byteLength > mostKeptLength);

export class Statements {
  readonly orm: Orm;
  readonly #byText = new LRUCache<string, Compiled>({ max: mostTexts, dispose: (compiled) => compiled.close() });
  readonly #open = new Set<Compiled>();
  readonly #built = new LRUCache<string, object>({ max: mostBuilt });

  constructor(client: Database) {
    const prepare = (text: string): Compiled => {
      const known = this.#byText.get(text);
      if (known !== undefined) return known;
      const compiled = new Compiled(() => client.prepare(text), this.#open);
      this.#byText.set(text, compiled);
      return compiled;
    };
    // Drizzle asks its client for nothing else: transactions are begun by `Db`.
    this.orm = drizzle({ client: { prepare } as unknown as Database });
  }

  /** What `build` made for this key. @param key has to tell all statements apart that differ in more than parameters */
  once<Built extends object>(key: string, build: (orm: Orm) => Built): Built {
    const known = this.#built.get(key) as Built | undefined;
    if (known !== undefined) return known;
    const built = build(this.orm);
    this.#built.set(key, built);
    return built;
  }

  /** Ends all statements: with one that is open, SQLite would keep the file open behind `close`. */
  close(): void {
    // What was built may have opened one again that the texts had no room for.
    for (const compiled of this.#open) compiled.close();
    this.#byText.clear();
    this.#built.clear();
  }
}

/** Fields whose values are given when the statement runs. */
interface GivenLater {
  /** Names of the fields, and which of them are null: that is part of the statement. */
  readonly shape: string;
  readonly placeholders: Record<string, unknown>;
  readonly values: Readonly<Record<string, unknown>>;
}

/** @returns undefined when one of the values is an expression or is missing, so that the statement is another one */
export function givenLater(fields: Readonly<Record<string, unknown>>, prefix = ""): GivenLater | undefined {
  const placeholders: Record<string, unknown> = {};
  const values: Record<string, unknown> = {};
  let shape = "";
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined || is(value, SQL)) return undefined;
    shape += value === null ? ` ${prefix}${name}=null` : ` ${prefix}${name}`;
    placeholders[name] = value === null ? null : sql.placeholder(prefix + name);
    if (value !== null) values[prefix + name] = value;
  }
  return { shape, placeholders, values };
}
