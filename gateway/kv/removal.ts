/** Takes KV files away, in pieces between which others work. What comes first is the key: without it no copy opens. */

import { destroyKvScopes, type GoneObject, listKvScopeRoots, removeKeylessKv } from "../../db/kv-objects.ts";
import type { Db } from "../../db/open.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { yieldToRequests } from "../base/pace.ts";
import { type FolderFiles, removeFiles } from "./folder.ts";

/** Rows that one piece removes. */
export const removedAtOnce = 200;
const retryMs = 1_000;

export interface RemovalOptions {
  readonly db: Db;
  readonly folder: string;
  readonly files: FolderFiles;
  readonly log: Log;
  /** Called when rows were removed. */
  readonly onGone: (objects: readonly GoneObject[]) => void;
  /** Called before the keys of all objects of these chains are destroyed: workers forget them. */
  readonly onDestroy: (rootKeys: readonly BlockKey[]) => void;
}

export class KvRemoval {
  readonly #options: RemovalOptions;
  /** Scopes whose keys could not be destroyed yet. */
  readonly #owed = new Set<number>();
  #retry: ReturnType<typeof setTimeout> | undefined;
  /** Resolve when no rows are left to remove, and no files to unlink. */
  #removing: Promise<void> = Promise.resolve();
  #unlinking: Promise<void> = Promise.resolve();

  constructor(options: RemovalOptions) {
    this.#options = options;
  }

  async stop(): Promise<void> {
    clearTimeout(this.#retry);
    await this.#removing;
    await this.#unlinking;
  }

  /** Whether the scope is deleted and its key stands in the database still: nobody may be told of its objects. */
  isOwed(scopeSeq: number): boolean {
    return this.#owed.has(scopeSeq);
  }

  /** Destroys the scopes' keys at once; their rows and files go in pieces. Throws nothing. */
  scopes(seqs: readonly number[]): void {
    for (const seq of seqs) this.#owed.add(seq);
    if (this.#owed.size === 0) return;
    const { db, log, onDestroy } = this.#options;
    const owed = [...this.#owed];
    clearTimeout(this.#retry);
    try {
      // A full database, which destroys no key, can be read: workers forget now. Keys are what it holds of them.
      onDestroy(listKvScopeRoots(db, owed) as readonly BlockKey[]);
      db.removing(() => destroyKvScopes(db, owed));
      this.#owed.clear();
      this.keyless();
    } catch (error) {
      const reason = messageOf(error);
      log("error", "KV files of deleted corpora could not be removed: it is tried again", { reason });
      this.#retry = setTimeout(() => this.scopes([]), retryMs);
    }
  }

  /** Removes what has no key any more. */
  keyless(): void {
    const { db, log } = this.#options;
    const removed = this.all(() => removeKeylessKv(db, removedAtOnce)).catch((error: unknown) => {
      // Nobody can open them; the next start or deletion goes on.
      const reason = messageOf(error);
      log("warn", "KV files without a key could not be removed", { reason });
    });
    this.#removing = Promise.all([this.#removing, removed]).then(() => undefined);
  }

  /** Removes piece after piece, until one is empty. */
  async all(removePiece: () => readonly GoneObject[]): Promise<void> {
    for (;;) {
      const gone = this.#options.db.removing(removePiece);
      this.#options.onGone(gone);
      if (gone.length === 0) return;
      await yieldToRequests();
    }
  }

  /** Removes files that have no row, or whose row says that they are elsewhere. */
  unlink(names: readonly string[]): Promise<void> {
    const { files, folder } = this.#options;
    this.#unlinking = this.#unlinking.then(() => removeFiles(files, folder, names));
    return this.#unlinking;
  }
}
