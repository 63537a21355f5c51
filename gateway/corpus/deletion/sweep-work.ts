/**
 * What one tenant deleted, taken away in short pieces: first what is gone soon however many rows there are (bytes,
 * indexes, KV), then the rows. What is deleted meanwhile does not wait for the rows of what was deleted before.
 */
import { sweepResults } from "../../../db/batches.ts";
import {
  type CorpusRow,
  dropDeletedIndexes,
  findCorpusAnyState,
  removeDeletedFiles,
  removeSweptCorpora,
} from "../../../db/corpora.ts";
import { type CorpusFileRow, nextDeletingFile, removeCorpusFile } from "../../../db/corpus-files.ts";
import { deleteFilesOfGoneTenant, listDeletedFiles, listSweptFileIds, removeFiles } from "../../../db/files.ts";
import { type FragmentRow, peekFragments, removeFragments } from "../../../db/fragments.ts";
import type { TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { removeSweptTenants } from "../../../db/tenants.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import type { TenantWork } from "../../background/tenant-rounds.ts";
import { Pace } from "../../base/pace.ts";
import type { CorpusSaltOf, SpanPort } from "../base/ports.ts";
import type { ContentStore } from "../files/content-store.ts";

const fragmentsPerPiece = 8;
/** Of a deleted corpus, whose index is gone. */
const unindexedPerPiece = 128;
/** Characters of fragments that are taken out of an index, or whose keys are made, between two turns of the event loop. */
const charsPerPiece = 4_096;
const filesPerPiece = 100;
const corporaPerPiece = 50;
const filesMarkedAtOnce = 128;
const filesFreedFirst = 1_000;
/** Results of batches. */
const sweptResultBytes = 1024 * 1024;
/** A file with more has all its corpus's KV evicted, which costs no more than that KV has blocks. */
const mostEvictedByKey = 2_048;
/** How long a slice takes, whatever its pieces are. */
const sliceMs = 20;

export interface SweepDeps {
  readonly db: Db;
  readonly content: ContentStore;
  readonly spans: SpanPort;
  readonly saltOf: CorpusSaltOf;
  /** All workers forget these fragments' spans. */
  readonly evict: (fragments: readonly FragmentRow[], salt: CacheSalt) => void;
  /** KV of deleted files is gone, or of a whole corpus for it. */
  readonly onEvicted: () => void;
  /** Zeroes what dropped indexes leave, in pieces. */
  readonly zeroFreeSpace: () => Iterable<void>;
}

export class TenantSweep implements TenantWork {
  readonly #deps: SweepDeps;
  readonly #tenantId: TenantId;
  readonly #onClose: () => void;
  readonly #pace = new Pace();
  /** Files whose KV is evicted and whose rows are left. In memory only: a restart loses the workers' KV as well. */
  readonly #evicted = new Set<number>();
  #urgent: AsyncGenerator<void> | undefined;
  #rows: AsyncGenerator<void> | undefined;
  #isRunning = false;
  #isNew = true;
  #hasSwept = false;

  constructor(deps: SweepDeps, tenantId: TenantId, onClose: () => void) {
    this.#deps = deps;
    this.#tenantId = tenantId;
    this.#onClose = onClose;
  }

  /** Something was deleted since what had to go at once went. */
  lookAgain(): void {
    this.#isNew = true;
  }

  readyAtMs(): number {
    return this.#isRunning ? Number.POSITIVE_INFINITY : 0;
  }

  async runSlice(signal: AbortSignal): Promise<boolean> {
    this.#isRunning = true;
    try {
      const endMs = performance.now() + sliceMs;
      do {
        if (!(await this.#piece())) return this.#isNew;
        await this.#pace.breathe();
      } while (performance.now() < endMs && !signal.aborted);
      return true;
    } finally {
      this.#isRunning = false;
    }
  }

  close(): void {
    this.#onClose();
  }

  /** @returns false: nothing is left */
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
    // The log still has what was deleted.
    if (this.#hasSwept) this.#deps.db.truncateLog();
    return false;
  }

  /** What is gone soon, however many rows there are: bytes, KV, indexes. */
  async *#urgentPieces(): AsyncGenerator<void> {
    const { db, content, onEvicted } = this.#deps;
    while (deleteFilesOfGoneTenant(db, this.#tenantId, Date.now(), filesMarkedAtOnce)) yield;
    // Before any row: this alone needs no room, and a full disk has none for the rest.
    for (let count = 0, afterSeq = 0; count < filesFreedFirst; count += filesPerPiece) {
      const deleted = listDeletedFiles(db, this.#tenantId, afterSeq, filesPerPiece);
      for (const { id } of deleted) await content.remove(id);
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
  }

  /** All rows of what is deleted. */
  async *#rowPieces(): AsyncGenerator<void> {
    const { db, content, zeroFreeSpace } = this.#deps;
    const tenantId = this.#tenantId;
    while (db.unsynced(() => removeDeletedFiles(db, tenantId, unindexedPerPiece))) yield;
    for (let file = nextDeletingFile(db, tenantId); file !== undefined; file = nextDeletingFile(db, tenantId)) {
      // One that was deleted a moment ago keeps its rows until its KV is gone, which is keyed by their texts.
      if (this.#evicted.has(file.seq)) this.#sweepPiece(file);
      else this.#isNew = true;
      yield;
    }
    while (removeSweptCorpora(db, tenantId, corporaPerPiece)) yield;
    while (sweepResults(db, sweptResultBytes)) yield;
    for (let ids = listSweptFileIds(db, tenantId, filesPerPiece); ids.length > 0; ) {
      for (const id of ids) await content.remove(id);
      removeFiles(db, ids);
      yield;
      ids = listSweptFileIds(db, tenantId, filesPerPiece);
    }
    removeSweptTenants(db);
    for (const _ of zeroFreeSpace()) yield;
  }

  /** KV of all files that are deleted, before any row: it is gone soon, however many rows there are. */
  *#evictFiles(): Generator<void> {
    const { db } = this.#deps;
    const next = (afterSeq?: number) => nextDeletingFile(db, this.#tenantId, afterSeq);
    for (let file = next(); file !== undefined; file = next(file.seq)) {
      if (this.#evicted.has(file.seq)) continue;
      const corpus = findCorpusAnyState(db, file.corpusId);
      // With a corpus all its KV was evicted when it was deleted.
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
      count += first.length;
      if (count > mostEvictedByKey) spans.evictCorpora([salt]);
      else evict(first, salt);
      last = first.at(-1)?.ordinal ?? last;
      const isAll = piece.length < fragmentsPerPiece && first.length === piece.length;
      if (isAll || count > mostEvictedByKey) return;
      yield;
    }
  }

  /** Some fragments of a file that left its corpus; then its row. */
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

/** The first fragments that have no more characters together; one at least. */
function firstOf(fragments: readonly FragmentRow[], maxChars: number): readonly FragmentRow[] {
  let chars = 0;
  const over = fragments.findIndex(({ text }, index) => {
    chars += text.length;
    return chars > maxChars && index > 0;
  });
  return over < 0 ? fragments : fragments.slice(0, over);
}
