/**
 * Takes away what was deleted: KV in the workers, index entries, text, bytes, rows. Deleting itself only marks
 * rows, which makes them invisible at once; what is marked and not yet swept is found again after a crash.
 */
import {
  type CorpusRow,
  dropDeletedIndexes,
  findCorpusAnyState,
  removeDeletedFiles,
  removeSweptCorpora,
} from "../../db/corpora.ts";
import { type CorpusFileRow, nextDeletingFile, removeCorpusFile } from "../../db/corpus-files.ts";
import { listDeletedFileIds, listSweptFileIds, removeFiles } from "../../db/files.ts";
import { type FragmentRow, peekFragments, removeFragments } from "../../db/fragments.ts";
import { zeroFreeSpace } from "../../db/free-space.ts";
import type { Db } from "../../db/open.ts";
import { removeSweptTenants } from "../../db/tenants.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../errors.ts";
import type { Log } from "../log.ts";
import type { ContentStore } from "./content-store.ts";
import { BackgroundLoop, reasonOf } from "./loop.ts";
import { Pace } from "./pace.ts";
import type { CorpusSaltOf, SpanPort } from "./ports.ts";

const fragmentsPerPiece = 32;
/** Of a deleted corpus, whose index is gone. */
const unindexedPerPiece = 128;
const filesPerPiece = 100;
const filesFreedFirst = 1_000;

/** A file with more has all its corpus's KV evicted, which costs no more than that KV has blocks. */
const mostEvictedByKey = 2_048;

export class Sweeper {
  readonly #db: Db;
  readonly #content: ContentStore;
  readonly #spans: SpanPort;
  readonly #saltOf: CorpusSaltOf;
  readonly #log: Log;
  readonly #loop: BackgroundLoop;
  /** Files whose KV is evicted and whose rows are left. In memory only: a restart loses the workers' KV as well. */
  readonly #evicted = new Set<number>();

  readonly #onEvicted: () => void;
  /** Something was deleted since what had to go at once went. */
  #isNew = false;

  /** @param onEvicted KV of deleted files is gone, or of a whole corpus for it */
  constructor(
    db: Db,
    content: ContentStore,
    spans: SpanPort,
    saltOf: CorpusSaltOf,
    log: Log,
    onEvicted: () => void = () => undefined,
  ) {
    this.#onEvicted = onEvicted;
    this.#db = db;
    this.#content = content;
    this.#spans = spans;
    this.#saltOf = saltOf;
    this.#log = log;
    this.#loop = new BackgroundLoop("the sweep", log, (signal) => this.#sweep(signal));
  }

  wake(): void {
    this.#isNew = true;
    this.#loop.wake();
  }

  idle(): Promise<void> {
    return this.#loop.idle();
  }

  stop(): Promise<void> {
    return this.#loop.stop();
  }

  /** All workers forget these fragments' spans. */
  evict(fragments: readonly Pick<FragmentRow, "id" | "text">[], salt: CacheSalt): void {
    try {
      const keys = fragments.flatMap(({ id, text }) => this.#spans.lowerSpan({ id, text, salt }).blockKeys);
      if (keys.length > 0) this.#spans.evict(keys);
    } catch (error) {
      // No model was ever ready: no KV exists.
      if (error instanceof ApiError && error.code === "not_ready") return;
      this.#log("warn", "fragments' KV could not be evicted", { reason: reasonOf(error) });
    }
  }

  async #sweep(signal: AbortSignal): Promise<void> {
    if (!(await this.#removeUrgent(signal))) return;
    const pace = new Pace();
    let swept = false;
    for await (const _ of this.#pieces()) {
      if (!(await this.#goOn(pace, signal))) return;
      swept = true;
    }
    // The log still has what was deleted.
    if (swept) this.#db.truncateLog();
  }

  /** All rows of what is deleted, in short steps. */
  async *#pieces(): AsyncGenerator<void> {
    while (this.#db.unsynced(() => removeDeletedFiles(this.#db, unindexedPerPiece))) yield;
    for (let file = nextDeletingFile(this.#db); file !== undefined; file = nextDeletingFile(this.#db)) {
      // One that was deleted a moment ago keeps its rows until its KV is gone, which is keyed by their texts.
      if (this.#evicted.has(file.seq)) this.#sweepPiece(file);
      else this.#isNew = true;
      yield;
    }
    removeSweptCorpora(this.#db);
    for (let ids = listSweptFileIds(this.#db, filesPerPiece); ids.length > 0; ) {
      for (const id of ids) await this.#content.remove(id);
      removeFiles(this.#db, ids);
      yield;
      ids = listSweptFileIds(this.#db, filesPerPiece);
    }
    removeSweptTenants(this.#db);
    for (const _ of zeroFreeSpace(this.#db)) yield;
  }

  /** What is gone soon, however many rows there are: bytes, KV, indexes. @returns false when stopped before the end */
  async #removeUrgent(signal: AbortSignal): Promise<boolean> {
    this.#isNew = false;
    // Before any row: this alone needs no room, and a full disk has none for the rest.
    for (const id of listDeletedFileIds(this.#db, filesFreedFirst)) await this.#content.remove(id);
    const indexesDropped = dropDeletedIndexes(this.#db);
    if (!(await this.#evictFiles(signal))) return false;
    if (indexesDropped) this.#onEvicted();
    return true;
  }

  /** Between two pieces: others run, and what was deleted meanwhile does not wait. @returns false when stopped */
  async #goOn(pace: Pace, signal: AbortSignal): Promise<boolean> {
    await pace.breathe();
    if (this.#isNew && !(await this.#removeUrgent(signal))) return false;
    return !signal.aborted;
  }

  /** KV of all files that are deleted, before any row: it is gone soon, however many rows there are. */
  async #evictFiles(signal: AbortSignal): Promise<boolean> {
    const pace = new Pace();
    let evicted = false;
    for (let file = nextDeletingFile(this.#db); file !== undefined; file = nextDeletingFile(this.#db, file.seq)) {
      await pace.breathe();
      if (signal.aborted) return false;
      if (this.#evicted.has(file.seq)) continue;
      const corpus = findCorpusAnyState(this.#db, file.corpusId);
      // With a corpus all its KV was evicted when it was deleted.
      const hasKv = corpus !== undefined && corpus.deletedAt === null;
      if (hasKv && !(await this.#evictFile(file, corpus, pace, signal))) return false;
      this.#evicted.add(file.seq);
      evicted = true;
    }
    if (evicted) this.#onEvicted();
    return true;
  }

  async #evictFile(file: CorpusFileRow, corpus: CorpusRow, pace: Pace, signal: AbortSignal): Promise<boolean> {
    const salt = this.#saltOf(corpus.id, corpus.saltEpoch, corpus.tenantId);
    let last = -1;
    for (let count = 0; ; ) {
      const piece = peekFragments(this.#db, file.seq, fragmentsPerPiece, last);
      count += piece.length;
      if (count > mostEvictedByKey) this.#spans.evictCorpus(salt);
      else this.evict(piece, salt);
      last = piece.at(-1)?.ordinal ?? last;
      if (piece.length < fragmentsPerPiece || count > mostEvictedByKey) return true;
      await pace.breathe();
      if (signal.aborted) return false;
    }
  }

  /** Some fragments of a file that left its corpus; then its row. */
  #sweepPiece(file: CorpusFileRow): void {
    const corpus = findCorpusAnyState(this.#db, file.corpusId);
    const piece = peekFragments(this.#db, file.seq, fragmentsPerPiece);
    this.#db.unsynced(() => {
      if (corpus !== undefined) removeFragments(this.#db, corpus.seq, piece);
      if (piece.length < fragmentsPerPiece) removeCorpusFile(this.#db, file.seq);
    });
    if (piece.length < fragmentsPerPiece) this.#evicted.delete(file.seq);
  }
}
