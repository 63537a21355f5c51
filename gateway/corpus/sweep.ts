/**
 * Takes away what was deleted: KV in the workers, index entries, text, bytes, rows. Deleting itself only marks
 * rows, which makes them invisible at once; what is marked and not yet swept is found again after a crash.
 */
import { findCorpusAnyState, removeSweptCorpora } from "../../db/corpora.ts";
import { type CorpusFileRow, nextDeletingFile, removeCorpusFile } from "../../db/corpus-files.ts";
import { listDeletedFileIds, removeFile } from "../../db/files.ts";
import { type FragmentRow, peekFragments, removeFragments, walkFragments } from "../../db/fragments.ts";
import type { CorpusId } from "../../db/ids.ts";
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
const filesPerPiece = 100;
const filesFreedFirst = 1_000;

interface RetiredSalt {
  readonly corpusId: CorpusId;
  readonly salt: CacheSalt;
}

export class Sweeper {
  readonly #db: Db;
  readonly #content: ContentStore;
  readonly #spans: SpanPort;
  readonly #saltOf: CorpusSaltOf;
  readonly #log: Log;
  readonly #loop: BackgroundLoop;
  /** In memory only: a restart loses the workers' KV as well. */
  readonly #retired: RetiredSalt[] = [];

  constructor(db: Db, content: ContentStore, spans: SpanPort, saltOf: CorpusSaltOf, log: Log) {
    this.#db = db;
    this.#content = content;
    this.#spans = spans;
    this.#saltOf = saltOf;
    this.#log = log;
    this.#loop = new BackgroundLoop("the sweep", log, (signal) => this.#sweep(signal));
  }

  wake(): void {
    this.#loop.wake();
  }

  idle(): Promise<void> {
    return this.#loop.idle();
  }

  stop(): Promise<void> {
    return this.#loop.stop();
  }

  /** KV of a corpus under a salt it had before: unreachable, and dropped here to free its memory. */
  retireSalt(corpusId: CorpusId, salt: CacheSalt): void {
    this.#retired.push({ corpusId, salt });
    this.wake();
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
    // Before any row: this alone needs no room, and a full disk has none for the rest.
    for (const id of listDeletedFileIds(this.#db, filesFreedFirst)) await this.#content.remove(id);
    let swept = false;
    for (let file = nextDeletingFile(this.#db); file !== undefined; file = nextDeletingFile(this.#db)) {
      if (!(await this.#sweepCorpusFile(file, signal))) return;
      swept = true;
    }
    removeSweptCorpora(this.#db);
    swept = (await this.#sweepFiles(signal)) || swept;
    removeSweptTenants(this.#db);
    // The log still has what was deleted.
    if (swept) this.#db.truncateLog();
    for (let next = this.#retired.shift(); next !== undefined; next = this.#retired.shift()) {
      await this.#evictCorpus(next, signal);
    }
  }

  /** @returns false when stopped before the end */
  async #sweepCorpusFile(file: CorpusFileRow, signal: AbortSignal): Promise<boolean> {
    const corpus = findCorpusAnyState(this.#db, file.corpusId);
    const pace = new Pace();
    while (corpus !== undefined) {
      const piece = peekFragments(this.#db, file.seq, fragmentsPerPiece);
      if (piece.length === 0) break;
      this.evict(piece, this.#saltOf(corpus.id, corpus.saltEpoch, corpus.tenantId));
      this.#db.unsynced(() => removeFragments(this.#db, corpus.seq, piece));
      await pace.breathe();
      if (signal.aborted) return false;
    }
    removeCorpusFile(this.#db, file.seq);
    return true;
  }

  async #sweepFiles(signal: AbortSignal): Promise<boolean> {
    let swept = false;
    while (!signal.aborted) {
      const ids = listDeletedFileIds(this.#db, filesPerPiece);
      if (ids.length === 0) break;
      for (const id of ids) {
        await this.#content.remove(id);
        removeFile(this.#db, id);
      }
      swept = true;
    }
    return swept;
  }

  async #evictCorpus({ corpusId, salt }: RetiredSalt, signal: AbortSignal): Promise<void> {
    const pace = new Pace();
    for (let afterSeq = 0; !signal.aborted; ) {
      const piece = walkFragments(this.#db, corpusId, afterSeq, fragmentsPerPiece);
      const last = piece.at(-1);
      if (last === undefined) return;
      this.evict(piece, salt);
      afterSeq = last.seq;
      await pace.breathe();
    }
  }
}
