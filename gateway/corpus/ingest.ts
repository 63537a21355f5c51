/**
 * Ingests attached files, in the order of lanes.ts. The queue is the database: what is in progress there is to be
 * done, so a start after a crash goes on by itself. Fragments are stored in pieces that nobody sees, and the
 * last statement, the file's status, makes them all visible.
 */
import { findCorpusAnyState } from "../../db/corpora.ts";
import { type CorpusFileRow, completeFile, failFile, isCurrentAttempt } from "../../db/corpus-files.ts";
import { type FileRow, findFile } from "../../db/files.ts";
import { insertFragments, type NewFragment, peekFragments, removeFragments } from "../../db/fragments.ts";
import { newId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Log } from "../log.ts";
import { chunkText } from "./chunk.ts";
import type { ContentStore } from "./content-store.ts";
import { checkedText, decodeText, FileError, fileKindOf, OverBounds } from "./decode.ts";
import { type ExtractLimits, Extractor } from "./extractor.ts";
import { IngestLanes, type Lane } from "./lanes.ts";
import { corpusLimits } from "./limits.ts";
import { isPassing, reasonOf } from "./loop.ts";
import { Pace } from "./pace.ts";
import type { Tokenizer } from "./ports.ts";
import type { TextKind } from "./sentences.ts";

/** Fragments in one transaction. */
const fragmentsPerPiece = 32;

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

const boundsOf: Readonly<Record<Lane, LaneBounds>> = {
  quick: {
    extractor: new Extractor(quickExtraction),
    maxChars: corpusLimits.quickTextChars,
    maxMs: corpusLimits.quickDocumentMs,
  },
  large: {
    extractor: new Extractor(largeExtraction),
    maxChars: corpusLimits.maxTextChars,
    maxMs: Number.POSITIVE_INFINITY,
  },
};

export class Ingestor {
  readonly #db: Db;
  readonly #content: ContentStore;
  readonly #tokenizer: Tokenizer;
  readonly #log: Log;
  readonly #onCompleted: (firstSeq: number) => void;
  readonly #lanes: IngestLanes;

  /** @param onCompleted called when a file's fragments have become visible; the first of them */
  constructor(db: Db, content: ContentStore, tokenizer: Tokenizer, log: Log, onCompleted: (firstSeq: number) => void) {
    this.#db = db;
    this.#content = content;
    this.#tokenizer = tokenizer;
    this.#log = log;
    this.#onCompleted = onCompleted;
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

  async #settle(file: CorpusFileRow, lane: Lane, signal: AbortSignal): Promise<boolean> {
    try {
      await this.#ingest(file, boundsOf[lane], signal);
    } catch (error) {
      // The server stops: the file stays in progress and is begun anew.
      if (signal.aborted) return true;
      // The database refuses for now: the file stays in progress and is tried again.
      if (isPassing(error)) throw error;
      await this.#removeAll(file);
      if (lane === "quick" && error instanceof OverBounds) return false;
      const known = error instanceof FileError;
      if (!known) this.#log("error", "ingestion failed", { fileId: file.fileId, reason: reasonOf(error) });
      const message = known ? error.message : "The server had an error while it read the file.";
      failFile(this.#db, file, known ? error.code : "server_error", message);
    }
    return true;
  }

  async #ingest(file: CorpusFileRow, bounds: LaneBounds, signal: AbortSignal): Promise<void> {
    const endMs = performance.now() + bounds.maxMs;
    const corpus = findCorpusAnyState(this.#db, file.corpusId);
    const source = findFile(this.#db, file.tenantId, file.fileId);
    // Deleted since it was taken up: the sweep has it, and failing it comes to nothing.
    if (corpus === undefined || source === undefined) throw new FileError("server_error", "The file is gone.");
    // What an attempt before this one left.
    await this.#removeAll(file);
    if (!isCurrentAttempt(this.#db, file)) return;
    const { text, kind } = await this.#textOf(source, bounds, signal);
    const chunking = { maxTokens: file.maxChunkTokens, overlapTokens: file.overlapTokens };
    const pace = new Pace();
    let piece: NewFragment[] = [];
    let ordinal = 0;
    for (const chunk of chunkText(text, kind, chunking, (part) => this.#tokenizer.countTokens(part))) {
      piece.push({ id: newId("fragment"), ordinal: ordinal++, ...chunk });
      if (piece.length === fragmentsPerPiece) {
        const staged = piece;
        const current = this.#db.unsynced(() => insertFragments(this.#db, corpus.seq, file, staged));
        if (!current) return await this.#removeAll(file);
        piece = [];
      }
      await pace.breathe();
      if (signal.aborted) return;
      if (performance.now() > endMs) throw new OverBounds("It took too long to store.");
    }
    const current = this.#db.transaction("finishFile", () => {
      const inserted = insertFragments(this.#db, corpus.seq, file, piece);
      return inserted && completeFile(this.#db, file, Buffer.byteLength(text));
    });
    if (!current) return await this.#removeAll(file);
    const [first] = peekFragments(this.#db, file.seq, 1);
    if (first !== undefined) this.#onCompleted(first.seq);
  }

  /** @throws FileError with the reason why there is none, OverBounds where it is too large for the lane */
  async #textOf(
    source: FileRow,
    { extractor, maxChars }: LaneBounds,
    signal: AbortSignal,
  ): Promise<{ readonly text: string; readonly kind: TextKind }> {
    const bytes = await this.#content.read(source.id);
    const kind = fileKindOf(source.filename, source.mediaType, bytes);
    const isText = kind === "plain" || kind === "markdown";
    const text = isText ? decodeText(bytes) : checkedText(await extractor.extract(kind, bytes, signal));
    if (text.length > maxChars) throw new OverBounds("It has too much text.");
    return { text, kind: isText ? kind : kind === "pdf" ? "plain" : "markdown" };
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
