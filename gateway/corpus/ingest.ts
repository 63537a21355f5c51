/**
 * Ingests attached files one after the other. The queue is the database: what is in progress there is to be
 * done, so a start after a crash goes on by itself. Fragments are stored in pieces that nobody sees, and the
 * last statement, the file's status, makes them all visible.
 */
import { findCorpusAnyState } from "../../db/corpora.ts";
import { type CorpusFileRow, completeFile, failFile, nextPendingFile } from "../../db/corpus-files.ts";
import { type FileRow, findFile } from "../../db/files.ts";
import { insertFragments, type NewFragment, peekFragments, removeFragments } from "../../db/fragments.ts";
import { newId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Log } from "../log.ts";
import { chunkText } from "./chunk.ts";
import type { ContentStore } from "./content-store.ts";
import { checkedText, decodeText, FileError, fileKindOf } from "./decode.ts";
import { Extractor } from "./extractor.ts";
import { corpusLimits } from "./limits.ts";
import { BackgroundLoop, isPassing, reasonOf } from "./loop.ts";
import { Pace } from "./pace.ts";
import type { Tokenizer } from "./ports.ts";
import type { TextKind } from "./sentences.ts";

/** Fragments in one transaction. */
const fragmentsPerPiece = 32;

const extractLimits = {
  maxTextChars: corpusLimits.maxTextChars,
  maxPages: corpusLimits.maxPages,
  maxUnpackedBytes: corpusLimits.maxUnpackedBytes,
  maxParts: corpusLimits.maxParts,
  maxMs: corpusLimits.maxExtractMs,
  maxMemoryBytes: corpusLimits.maxExtractBytes,
};

export class Ingestor {
  readonly #db: Db;
  readonly #content: ContentStore;
  readonly #tokenizer: Tokenizer;
  readonly #log: Log;
  readonly #onCompleted: () => void;
  readonly #extractor = new Extractor(extractLimits);
  readonly #loop: BackgroundLoop;

  /** @param onCompleted called when a file's fragments have become visible */
  constructor(db: Db, content: ContentStore, tokenizer: Tokenizer, log: Log, onCompleted: () => void) {
    this.#db = db;
    this.#content = content;
    this.#tokenizer = tokenizer;
    this.#log = log;
    this.#onCompleted = onCompleted;
    this.#loop = new BackgroundLoop("ingestion", log, (signal) => this.#ingestAll(signal));
  }

  /** Call when files may be waiting. */
  wake(): void {
    this.#loop.wake();
  }

  /** Resolves when nothing waits any more. */
  idle(): Promise<void> {
    return this.#loop.idle();
  }

  /** Ends after the piece at hand; the rest is resumed by the next start. */
  stop(): Promise<void> {
    return this.#loop.stop();
  }

  async #ingestAll(signal: AbortSignal): Promise<void> {
    for (let lastTenantId = ""; !signal.aborted; ) {
      const file = nextPendingFile(this.#db, lastTenantId);
      if (file === undefined) return;
      lastTenantId = file.tenantId;
      await this.#settle(file, signal);
    }
  }

  async #settle(file: CorpusFileRow, signal: AbortSignal): Promise<void> {
    try {
      await this.#ingest(file, signal);
    } catch (error) {
      // The server stops: the file stays in progress and is begun anew.
      if (signal.aborted) return;
      // The database refuses for now: the file stays in progress and is tried again.
      if (isPassing(error)) throw error;
      const known = error instanceof FileError;
      if (!known) this.#log("error", "ingestion failed", { fileId: file.fileId, reason: reasonOf(error) });
      const message = known ? error.message : "The server had an error while it read the file.";
      await this.#removeAll(file);
      failFile(this.#db, file, known ? error.code : "server_error", message);
    }
  }

  async #ingest(file: CorpusFileRow, signal: AbortSignal): Promise<void> {
    const corpus = findCorpusAnyState(this.#db, file.corpusId);
    const source = findFile(this.#db, file.tenantId, file.fileId);
    // Deleted since it was taken up: the sweep has it, and failing it comes to nothing.
    if (corpus === undefined || source === undefined) throw new FileError("server_error", "The file is gone.");
    // What an attempt before this one left.
    await this.#removeAll(file);
    const { text, kind } = await this.#textOf(source, signal);
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
    }
    const current = this.#db.transaction("finishFile", () => {
      const inserted = insertFragments(this.#db, corpus.seq, file, piece);
      return inserted && completeFile(this.#db, file, Buffer.byteLength(text));
    });
    if (current) this.#onCompleted();
    else await this.#removeAll(file);
  }

  /** @throws FileError with the reason why there is none */
  async #textOf(source: FileRow, signal: AbortSignal): Promise<{ readonly text: string; readonly kind: TextKind }> {
    const bytes = await this.#content.read(source.id);
    const kind = fileKindOf(source.filename, source.mediaType, bytes);
    if (kind === "plain" || kind === "markdown") return { text: decodeText(bytes), kind };
    const text = checkedText(await this.#extractor.extract(kind, bytes, signal));
    return { text, kind: kind === "pdf" ? "plain" : "markdown" };
  }

  /** Takes out fragments that were stored and never became visible. */
  async #removeAll(file: CorpusFileRow): Promise<void> {
    const corpus = findCorpusAnyState(this.#db, file.corpusId);
    if (corpus === undefined) return;
    const pace = new Pace();
    for (;;) {
      const left = peekFragments(this.#db, file.seq, fragmentsPerPiece);
      if (left.length === 0) return;
      this.#db.unsynced(() => removeFragments(this.#db, corpus.seq, left));
      await pace.breathe();
    }
  }
}
