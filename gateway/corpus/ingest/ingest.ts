/**
 * Ingests attached files, in the order of lanes.ts. The queue is the database: what is in progress there is to be
 * done, so a start after a crash goes on by itself. Fragments are stored in pieces that nobody sees, and the
 * last statement, the file's status, makes them all visible.
 */
import { findCorpusAnyState } from "../../../db/corpora.ts";
import { type CorpusFileRow, completeFile, failFile, isCurrentAttempt } from "../../../db/corpus-files.ts";
import { DbError } from "../../../db/errors.ts";
import { type FileRow, findFile } from "../../../db/files.ts";
import { insertFragments, type NewFragment, peekFragments, removeFragments } from "../../../db/fragments.ts";
import { newId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { isPassing, reasonOf } from "../../background/background-loop.ts";
import { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { Pace } from "../../base/pace.ts";
import { corpusLimits } from "../base/limits.ts";
import type { StoragePort, Tokenizer } from "../base/ports.ts";
import type { ContentStore } from "../files/content-store.ts";
import { chunkText } from "./chunk.ts";
import { checkedText, decodeText, FileError, fileKindOf, OverBounds } from "./decode.ts";
import { type ExtractLimits, Extractor } from "./extractor.ts";
import { IngestLanes, type Lane } from "./lanes.ts";
import { ReaderProgram } from "./reader-program.ts";
import type { TextKind } from "./sentences.ts";

/** What a text takes on the disk with its indexes. */
const diskBytesPerTextByte = 4;
/** Fragments in one transaction, which ends a slice; so do so many turns for others without as many. */
const fragmentsPerPiece = 32;
const turnsPerSlice = 16;
const extractionPollMs = 50;

const largeExtraction: ExtractLimits = {
  maxTextChars: corpusLimits.maxTextChars,
  maxPages: corpusLimits.maxPages,
  maxUnpackedBytes: corpusLimits.maxUnpackedBytes,
  maxParts: corpusLimits.maxParts,
  maxMs: corpusLimits.maxExtractMs,
  maxMemoryBytes: corpusLimits.maxExtractBytes,
};

const quickExtraction: ExtractLimits = {
  ...largeExtraction,
  maxMs: corpusLimits.quickDocumentMs,
  maxMemoryBytes: corpusLimits.quickExtractBytes,
};

/** What a file may take in a lane. */
interface LaneBounds {
  readonly extractor: Extractor;
  readonly maxChars: number;
  readonly maxMs: number;
}

const boundsOf = (program: ReaderProgram): Readonly<Record<Lane, LaneBounds>> => ({
  quick: {
    extractor: new Extractor(quickExtraction, program),
    maxChars: corpusLimits.quickTextChars,
    maxMs: corpusLimits.quickDocumentMs,
  },
  large: {
    extractor: new Extractor(largeExtraction, program),
    maxChars: corpusLimits.maxTextChars,
    maxMs: corpusLimits.maxIngestMs,
  },
});

const unconfined = "this system has no Landlock: a document that breaks its reader may open what the server may open";

export interface IngestorDeps {
  readonly db: Db;
  readonly content: ContentStore;
  readonly tokenizer: Tokenizer;
  readonly storage: StoragePort;
  readonly log: Log;
  /** Called when a file's fragments have become visible. */
  readonly onCompleted: (file: CorpusFileRow) => void;
}

export class Ingestor {
  readonly #db: Db;
  readonly #content: ContentStore;
  readonly #tokenizer: Tokenizer;
  readonly #storage: StoragePort;
  readonly #log: Log;
  readonly #onCompleted: (file: CorpusFileRow) => void;
  readonly #lanes: IngestLanes;
  readonly #bounds: Readonly<Record<Lane, LaneBounds>>;
  /** Files that are being ingested, and what ends that. */
  readonly #underway = new Map<CorpusFileRow, AbortController>();
  #isExtractingLarge = false;

  constructor({ db, content, tokenizer, storage, log, onCompleted }: IngestorDeps) {
    this.#db = db;
    this.#content = content;
    this.#tokenizer = tokenizer;
    this.#storage = storage;
    this.#log = log;
    this.#onCompleted = onCompleted;
    this.#bounds = boundsOf(new ReaderProgram(() => log("warn", unconfined)));
    this.#lanes = new IngestLanes(db, log, (file, lane, signal) => this.#settle(file, lane, signal));
  }

  /** Call when files may be waiting. */
  wake(): void {
    this.#lanes.wake();
  }

  /** Resolves when nothing waits any more. */
  idle(): Promise<void> {
    return this.#lanes.idle();
  }

  /** Ends after the pieces at hand; the rest is resumed by the next start. */
  stop(): Promise<void> {
    return this.#lanes.stop();
  }

  /** Call when files or corpora are gone: what is read of them ends now. */
  recheck(): void {
    for (const [file, ending] of this.#underway) if (!isCurrentAttempt(this.#db, file)) ending.abort();
  }

  async *#settle(file: CorpusFileRow, lane: Lane, stopped: AbortSignal): AsyncGenerator<number | undefined, boolean> {
    const ending = new AbortController();
    const onStop = (): void => ending.abort();
    stopped.addEventListener("abort", onStop, { once: true });
    this.#underway.set(file, ending);
    try {
      yield* this.#ingest(file, lane, ending.signal);
      return true;
    } catch (error) {
      // The server stops: the file stays in progress and is begun anew.
      if (stopped.aborted) return true;
      // The database refuses for now: the file stays in progress and is tried again.
      if (isPassing(error)) throw error;
      await this.#removeAll(file);
      if (lane === "quick" && error instanceof OverBounds) return false;
      const known = error instanceof FileError || ending.signal.aborted;
      if (!known) this.#log("error", "ingestion failed", { fileId: file.fileId, reason: reasonOf(error) });
      const [code, message] =
        error instanceof FileError
          ? [error.code, error.message]
          : (["server_error", "The server had an error while it read the file."] as const);
      // Of one that is gone, or was cancelled, this comes to nothing.
      failFile(this.#db, file, code, message);
      return true;
    } finally {
      stopped.removeEventListener("abort", onStop);
      this.#underway.delete(file);
    }
  }

  async *#ingest(file: CorpusFileRow, lane: Lane, signal: AbortSignal): AsyncGenerator<number | undefined, void> {
    const corpus = findCorpusAnyState(this.#db, file.corpusId);
    const source = findFile(this.#db, file.tenantId, file.fileId);
    // Deleted since it was taken up: the sweep has it, and failing it comes to nothing.
    if (corpus === undefined || source === undefined) throw new FileError("server_error", "The file is gone.");
    // What an attempt before this one left.
    await this.#removeAll(file);
    if (!isCurrentAttempt(this.#db, file)) return;
    const clock = new WorkClock(this.#bounds[lane].maxMs);
    const { text, kind } = yield* this.#textOf(source, lane, signal);
    using _room = this.#roomFor(file, Buffer.byteLength(text));
    const chunking = { maxTokens: file.maxChunkTokens, overlapTokens: file.overlapTokens };
    const pace = new Pace();
    let piece: NewFragment[] = [];
    let ordinal = 0;
    let turns = 0;
    clock.goOn();
    for (const chunk of chunkText(text, kind, chunking, (part) => this.#tokenizer.countTokens(part))) {
      if (chunk !== undefined) piece.push({ id: newId("fragment"), ordinal: ordinal++, ...chunk });
      else turns += 1;
      const isFull = piece.length === fragmentsPerPiece;
      if (isFull) {
        const staged = piece;
        const current = this.#db.unsynced(() => insertFragments(this.#db, corpus.seq, file, staged));
        if (!current) return await this.#removeAll(file);
        piece = [];
      }
      await pace.breathe();
      if (signal.aborted) throw signal.reason;
      clock.check();
      if (!isFull && turns < turnsPerSlice) continue;
      turns = 0;
      clock.rest();
      yield undefined;
      clock.goOn();
    }
    const current = this.#db.transaction("finishFile", () => {
      const inserted = insertFragments(this.#db, corpus.seq, file, piece);
      return inserted && completeFile(this.#db, file, Buffer.byteLength(text));
    });
    if (!current) return await this.#removeAll(file);
    this.#onCompleted(file);
  }

  /**
   * Kept until the text is stored, or is not.
   * @throws FileError where the tenant may not store as much; DbError "full": it is tried again
   */
  #roomFor({ tenantId }: CorpusFileRow, textBytes: number): Disposable {
    try {
      this.#storage.checkDisk(textBytes * diskBytesPerTextByte);
      const release = this.#storage.reserve(tenantId, textBytes);
      return { [Symbol.dispose]: release };
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.code === "quota_exceeded") throw new FileError("server_error", error.message);
      throw new DbError("full", "ingest", "the disk has no room for the file's text");
    }
  }

  /** @throws FileError with the reason why there is none, OverBounds where it is too large for the lane */
  async *#textOf(
    source: FileRow,
    lane: Lane,
    signal: AbortSignal,
  ): AsyncGenerator<number, { readonly text: string; readonly kind: TextKind }> {
    const { extractor, maxChars } = this.#bounds[lane];
    let bytes: Uint8Array | undefined = await this.#content.read(source.id);
    const kind = fileKindOf(source.filename, source.mediaType, bytes);
    if (kind === "plain" || kind === "markdown") return { text: atMost(maxChars, decodeText(bytes)), kind };
    if (lane === "large") {
      // One at a time: it may take a lot of memory. Texts of others go on meanwhile.
      bytes = undefined;
      while (this.#isExtractingLarge && !signal.aborted) yield extractionPollMs;
      bytes = await this.#content.read(source.id);
      this.#isExtractingLarge = true;
    }
    try {
      const text = checkedText(await extractor.extract(kind, bytes, signal));
      return { text: atMost(maxChars, text), kind: kind === "pdf" ? "plain" : "markdown" };
    } finally {
      if (lane === "large") this.#isExtractingLarge = false;
    }
  }

  /** Takes out fragments that were stored and never became visible; of a deleted corpus the sweep does. */
  async #removeAll(file: CorpusFileRow): Promise<void> {
    const pace = new Pace();
    for (;;) {
      const corpus = findCorpusAnyState(this.#db, file.corpusId);
      if (corpus === undefined || corpus.deletedAt !== null) return;
      const left = peekFragments(this.#db, file.seq, fragmentsPerPiece);
      if (left.length === 0) return;
      this.#db.unsynced(() => removeFragments(this.#db, corpus.seq, left));
      await pace.breathe();
    }
  }
}

/** @throws OverBounds */
function atMost(maxChars: number, text: string): string {
  if (text.length > maxChars) throw new OverBounds("It has too much text.");
  return text;
}

/** How long a file's own work took, without the turns of others between its slices. */
class WorkClock {
  readonly #maxMs: number;
  #spentMs = 0;
  #sinceMs = performance.now();

  constructor(maxMs: number) {
    this.#maxMs = maxMs;
  }

  goOn(): void {
    this.#sinceMs = performance.now();
  }

  rest(): void {
    this.#spentMs += performance.now() - this.#sinceMs;
  }

  /** @throws OverBounds */
  check(): void {
    if (this.#spentMs + performance.now() - this.#sinceMs <= this.#maxMs) return;
    throw new OverBounds(`It took longer than ${this.#maxMs / 1000} s to split and to store.`);
  }
}
