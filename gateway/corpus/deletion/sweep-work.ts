/**
 * Removes what one tenant deleted, in short pieces. What can go soon, however many rows there are, goes first (bytes,
 * indexes, KV, texts, vectors), then the rows. Later deletions therefore do not wait for the rows of earlier ones.
 */
import { sweepResults } from "../../../db/batches.ts";
import {
  type CorpusRow,
  dropDeletedIndexes,
  eraseDeletedTexts,
  findCorpusAnyState,
  removeDeletedFiles,
  removeSweptCorpora,
} from "../../../db/corpora.ts";
import { type CorpusFileRow, hasCompletedFile, nextDeletingFile, removeCorpusFile } from "../../../db/corpus-files.ts";
import { deleteFilesOfGoneTenant, listDeletedFiles, listSweptFileIds, removeFiles } from "../../../db/files.ts";
import { type FragmentRow, peekFragments, removeFragments } from "../../../db/fragments.ts";
import type { TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { removeSweptTenants } from "../../../db/tenants.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import type { TenantWork } from "../../background/tenant-rounds.ts";
import { Pace, yieldToRequests } from "../../base/pace.ts";
import type { CorpusSaltOf, SpanPort } from "../base/ports.ts";
import type { ContentStore } from "../files/content-store.ts";

const fragmentsPerPiece = 8;
/** Fragments of a deleted corpus, whose index is already dropped, that one piece removes. */
const unindexedPerPiece = 128;
/** Characters of fragments that are taken out of an index, or whose keys are computed, in one piece. */
const charsPerPiece = 4_096;
const filesPerPiece = 100;
const corporaPerPiece = 50;
const filesMarkedAtOnce = 128;
const filesFreedFirst = 1_000;
/** Bytes of batch results that one piece removes. */
const sweptResultBytes = 1024 * 1024;
/**
 * If more spans than this are evicted of one file, and its corpus has no other file any more, all KV of the corpus is
 * evicted instead, which costs no more than that KV has blocks.
 */
const mostEvictedByKey = 2_048;
/** Milliseconds that a slice takes, whatever its pieces are. */
const sliceMs = 20;
/**
 * The database's log has a copy of every page that a removal changes. To cut off a long one holds up the event loop, a
 * millisecond for each MiB or two: it is emptied when it is as long as this, in bytes.
 */
const longLogBytes = 24 * 2 ** 20;

export interface SweepDeps {
  readonly db: Db;
  readonly content: ContentStore;
  readonly spans: SpanPort;
  readonly saltOf: CorpusSaltOf;
  /** All workers forget these fragments' spans, as Sweeper.evict says. */
  readonly evict: (corpusSeq: number, fragments: readonly FragmentRow[], salt: CacheSalt) => number;
  /** Called when the KV of deleted files, or of their whole corpus, was evicted. */
  readonly onEvicted: () => void;
  /** Overwrites with zeros, in pieces, the space that dropped indexes leave. */
  readonly zeroFreeSpace: () => Iterable<void>;
}

export class TenantSweep implements TenantWork {
  readonly #deps: SweepDeps;
  readonly #tenantId: TenantId;
  readonly #onClose: () => void;
  readonly #pace = new Pace(yieldToRequests);
  /**
   * Files whose KV is evicted but whose rows are left. This is in memory only: after a restart their KV is evicted
   * once more.
   */
  readonly #evicted = new Set<number>();
  /** Files of deleted corpora whose texts are erased. */
  readonly #erased = new Set<number>();
  #urgent: AsyncGenerator<void> | undefined;
  #rows: AsyncGenerator<void> | undefined;
  #isNew = true;
  #hasSwept = false;

  constructor(deps: SweepDeps, tenantId: TenantId, onClose: () => void) {
    this.#deps = deps;
    this.#tenantId = tenantId;
    this.#onClose = onClose;
  }

  /** Call when something was deleted after the urgent pieces ran. */
  lookAgain(): void {
    this.#isNew = true;
  }

  async runSlice(signal: AbortSignal): Promise<boolean> {
    const { db } = this.#deps;
    if (db.logBytes > longLogBytes) await db.emptyLog();
    const endMs = performance.now() + sliceMs;
    do {
      if (!(await this.#piece())) return await this.#end();
      await this.#pace.breathe();
    } while (performance.now() < endMs && !signal.aborted);
    return true;
  }

  close(): void {
    this.#onClose();
  }

  /** Removes one piece. @returns false when nothing is left */
  async #piece(): Promise<boolean> {
    if (this.#isNew) {
      this.#isNew = false;
      this.#urgent = this.#urgentPieces();
    }
    if (this.#urgent !== undefined) {
      if ((await this.#urgent.next()).done === true) this.#urgent = undefined;
      return true;
    }
    this.#rows ??= this.#rowPieces();
    if ((await this.#rows.next()).done !== true) {
      this.#hasSwept = true;
      return true;
    }
    this.#rows = undefined;
    return false;
  }

  /** @returns whether something was deleted meanwhile */
  async #end(): Promise<boolean> {
    // The write-ahead log still holds the deleted data, so it is emptied.
    if (this.#hasSwept) await this.#deps.db.emptyLog();
    return this.#isNew;
  }

  /** Removes what can go soon, however many rows there are: bytes, KV, indexes, texts. */
  async *#urgentPieces(): AsyncGenerator<void> {
    const { db, content, onEvicted, zeroFreeSpace } = this.#deps;
    while (deleteFilesOfGoneTenant(db, this.#tenantId, Date.now(), filesMarkedAtOnce)) yield;
    // Bytes go before any row: removing files needs no free space, and on a full disk the other steps need what that
    // frees.
    for (let count = 0, afterSeq = 0; count < filesFreedFirst; count += filesPerPiece) {
      const deleted = listDeletedFiles(db, this.#tenantId, afterSeq, filesPerPiece);
      await Promise.all(deleted.map(({ id }) => content.remove(id)));
      if (deleted.length < filesPerPiece) break;
      afterSeq = deleted.at(-1)?.seq ?? afterSeq;
      yield;
    }
    let isEvicted = false;
    for (const _ of dropDeletedIndexes(db, this.#tenantId)) {
      isEvicted = true;
      yield;
    }
    for (const _ of this.#evictFiles()) {
      isEvicted = true;
      yield;
    }
    if (isEvicted) onEvicted();
    for (const _ of eraseDeletedTexts(db, this.#tenantId, this.#erased)) yield;
    for (const _ of zeroFreeSpace()) yield;
  }

  /** Removes all rows of deleted objects. */
  async *#rowPieces(): AsyncGenerator<void> {
    const { db, content } = this.#deps;
    const tenantId = this.#tenantId;
    while (db.unsynced(() => removeDeletedFiles(db, tenantId, unindexedPerPiece))) yield;
    for (let file = nextDeletingFile(db, tenantId); file !== undefined; file = nextDeletingFile(db, tenantId)) {
      // The rows of a file that was deleted a moment ago stay until its KV is evicted, because the KV's keys are
      // computed from the rows' texts.
      if (this.#evicted.has(file.seq)) this.#sweepPiece(file);
      else this.#isNew = true;
      yield;
    }
    while (removeSweptCorpora(db, tenantId, corporaPerPiece)) yield;
    while (sweepResults(db, sweptResultBytes)) yield;
    for (let ids = listSweptFileIds(db, tenantId, filesPerPiece); ids.length > 0; ) {
      await Promise.all(ids.map((id) => content.remove(id)));
      removeFiles(db, ids);
      yield;
      ids = listSweptFileIds(db, tenantId, filesPerPiece);
    }
    removeSweptTenants(db);
  }

  /**
   * Evicts the KV of all deleted files before any row is removed, so that it is gone soon, however many rows there are.
   */
  *#evictFiles(): Generator<void> {
    const { db } = this.#deps;
    const next = (afterSeq?: number) => nextDeletingFile(db, this.#tenantId, afterSeq);
    for (let file = next(); file !== undefined; file = next(file.seq)) {
      if (this.#evicted.has(file.seq)) continue;
      const corpus = findCorpusAnyState(db, file.corpusId);
      // When a corpus is deleted, all its KV is evicted at that moment.
      if (corpus !== undefined && corpus.deletedAt === null) yield* this.#evictFile(file, corpus);
      this.#evicted.add(file.seq);
      yield;
    }
  }

  *#evictFile(file: CorpusFileRow, corpus: CorpusRow): Generator<void> {
    const { db, spans, saltOf, evict } = this.#deps;
    const salt = saltOf(corpus.id, corpus.saltEpoch, corpus.tenantId);
    let last = -1;
    for (let count = 0; ; ) {
      const piece = peekFragments(db, file.seq, fragmentsPerPiece, last);
      const first = firstOf(piece, charsPerPiece);
      count += evict(corpus.seq, first, salt);
      last = first.at(-1)?.ordinal ?? last;
      if (piece.length < fragmentsPerPiece && first.length === piece.length) return;
      if (count > mostEvictedByKey && !hasCompletedFile(db, corpus.id)) return spans.evictCorpora([salt]);
      yield;
    }
  }

  /** Removes some fragments of a file that left its corpus, and at last the file's row. */
  #sweepPiece(file: CorpusFileRow): void {
    const { db } = this.#deps;
    const corpus = findCorpusAnyState(db, file.corpusId);
    const piece = peekFragments(db, file.seq, fragmentsPerPiece);
    const first = firstOf(piece, charsPerPiece);
    const isAll = piece.length < fragmentsPerPiece && first.length === piece.length;
    db.unsynced(() => {
      if (corpus !== undefined) removeFragments(db, corpus.seq, first);
      if (isAll) removeCorpusFile(db, file.seq);
    });
    if (isAll) this.#evicted.delete(file.seq);
  }
}

/** The first fragments that have at most `maxChars` characters together; at least one. */
function firstOf(fragments: readonly FragmentRow[], maxChars: number): readonly FragmentRow[] {
  let chars = 0;
  const over = fragments.findIndex(({ text }, index) => {
    chars += text.length;
    return chars > maxChars && index > 0;
  });
  return over < 0 ? fragments : fragments.slice(0, over);
}
