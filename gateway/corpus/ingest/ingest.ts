/**
 * Ingests attached files, in the order that lanes.ts decides. The queue is the database: every file whose status is in
 * progress has to be ingested, so a start after a crash continues by itself. Fragments are stored invisibly, in pieces.
 * The last statement changes the file's status and so makes them all visible.
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
import { memoryRoom, Pace, yieldToRequests } from "../../base/pace.ts";
import type { DocumentKind, PageStart } from "../../extract/protocol.ts";
import { corpusLimits } from "../base/limits.ts";
import type { StoragePort, Tokenizer } from "../base/ports.ts";
import type { ContentStore } from "../files/content-store.ts";
import { chunkText } from "./chunk.ts";
import { checkedText, decodeText, FileError, inMemory, OverBounds, Utf8Text } from "./decode.ts";
import { type ExtractLimits, Extractor } from "./extractor.ts";
import { type FileKind, fileKindOf, signatureBytes } from "./file-kinds.ts";
import { IngestLanes, type Lane } from "./lanes.ts";
import { pagesWithin } from "./pages.ts";
import { ReaderProgram } from "./reader-program.ts";
import type { LongText, TextKind } from "./sentences.ts";

/** Disk bytes of a text and its indexes, for each byte of the text. */
const diskBytesPerTextByte = 4;
/** Fragments that one transaction stores, which ends a slice. A slice without as many ends after so many yields. */
const fragmentsPerPiece = 8;
const yieldsPerSlice = 16;
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

/** What the text is that a document's reader makes. */
const kindsOfExtracted: Readonly<Record<DocumentKind, TextKind>> = {
  pdf: "plain",
  html: "markdown",
  office: "markdown",
  csv: "lines",
  tsv: "lines",
};

/** What a file may use in a lane. */
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

interface ReadText {
  readonly text: LongText;
  readonly textBytes: number;
  readonly kind: TextKind;
  readonly pages: readonly PageStart[];
}

export interface IngestorDeps {
  readonly db: Db;
  readonly content: ContentStore;
  readonly tokenizer: Tokenizer;
  readonly storage: StoragePort;
  readonly log: Log;
  /** Called when the fragments of a file have become visible. */
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
  /** The files that are being ingested, each with the controller that aborts it. */
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

  /** Resolves when no file waits any more. */
  idle(): Promise<void> {
    return this.#lanes.idle();
  }

  /** Stops after the running slices. The next start ingests the rest. */
  stop(): Promise<void> {
    return this.#lanes.stop();
  }

  /** Call when files or corpora are deleted: ingestion of those files is aborted. */
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
      // The server stops: the file stays in progress, and the next start begins it anew.
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
      // This changes nothing if the file was deleted or cancelled.
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
    // The file was deleted after it was taken up. The sweep removes it, and marking it as failed changes nothing.
    if (corpus === undefined || source === undefined) throw new FileError("server_error", "The file is gone.");
    // An earlier attempt may have left fragments.
    await this.#removeAll(file);
    if (!isCurrentAttempt(this.#db, file)) return;
    const clock = new WorkClock(this.#bounds[lane].maxMs);
    await using held = new AsyncDisposableStack();
    const { text, textBytes, kind, pages } = yield* this.#textOf(source, lane, signal, held);
    held.use(this.#roomFor(file, textBytes));
    const chunking = { maxTokens: file.maxChunkTokens, overlapTokens: file.overlapTokens };
    const pace = new Pace(yieldToRequests);
    let piece: NewFragment[] = [];
    let ordinal = 0;
    let yields = 0;
    clock.goOn();
    for (const chunk of chunkText(text, kind, chunking, (part) => this.#tokenizer.countTokens(part))) {
      if (chunk !== undefined) {
        piece.push({ id: newId("fragment"), ordinal: ordinal++, ...chunk, pages: pagesWithin(pages, chunk) });
      } else yields += 1;
      const isFull = piece.length === fragmentsPerPiece;
      if (isFull) {
        const staged = piece;
        const current = this.#db.unsynced(() => insertFragments(this.#db, corpus.seq, file, staged));
        if (!current) return await this.#removeAll(file);
        piece = [];
      }
      await pace.breathe();
      if (lane === "large") await clock.without(() => memoryRoom(signal));
      if (signal.aborted) throw signal.reason;
      clock.check();
      if (!isFull && yields < yieldsPerSlice) continue;
      yields = 0;
      clock.rest();
      yield undefined;
      clock.goOn();
    }
    const finish = (): boolean => {
      const inserted = insertFragments(this.#db, corpus.seq, file, piece);
      return inserted && completeFile(this.#db, file, textBytes);
    };
    // A power cut that takes this back leaves the file in progress, and the next start ingests it again.
    const current = this.#db.unsynced(() => this.#db.transaction("finishFile", finish));
    if (!current) return await this.#removeAll(file);
    this.#onCompleted(file);
  }

  /**
   * Reserves storage until the text is stored or has failed.
   * @throws FileError when the tenant may not store this much; DbError "full", after which the file is tried again
   */
  #roomFor({ tenantId }: CorpusFileRow, textBytes: number): Disposable {
    try {
      this.#storage.checkDisk(textBytes * diskBytesPerTextByte);
      return this.#storage.reserve(tenantId, textBytes);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.code === "quota_exceeded") throw new FileError("server_error", error.message);
      throw new DbError("full", "ingest", "the disk has no room for the file's text");
    }
  }

  /**
   * Reads a file's text.
   * @param held ends when the text is used no more
   * @throws FileError when that is not possible, OverBounds when the file is too large for the lane
   */
  async *#textOf(
    source: FileRow,
    lane: Lane,
    signal: AbortSignal,
    held: AsyncDisposableStack,
  ): AsyncGenerator<number, ReadText> {
    const { extractor, maxChars } = this.#bounds[lane];
    const file = held.adopt(await this.#content.openPieces(source.id), (open) => open.close());
    const kind = fileKindOf(source.filename, source.mediaType, file.read(0, signatureBytes));
    if (kind === "plain" || kind === "markdown" || kind === "lines") {
      const text = atMost(maxChars, await Utf8Text.open(file));
      return { text, textBytes: text.byteLength, kind, pages: [] };
    }
    if (lane === "large") {
      // Only one large document is read at a time, since that may take much memory. Meanwhile the texts of others are
      // ingested.
      while (this.#isExtractingLarge && !signal.aborted) yield extractionPollMs;
      this.#isExtractingLarge = true;
    }
    try {
      const { text, pages } = await extractor.extract(kind, file.fd, signal);
      const checked = atMost(maxChars, checkedText(text));
      return { text: checked, textBytes: Buffer.byteLength(checked), kind: kindsOfExtracted[kind], pages };
    } finally {
      if (lane === "large") this.#isExtractingLarge = false;
    }
  }

  /** Removes fragments that were stored but never became visible. If the corpus is deleted, the sweep removes them. */
  async #removeAll(file: CorpusFileRow): Promise<void> {
    const pace = new Pace(yieldToRequests);
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
function atMost<Text extends LongText>(maxChars: number, text: Text): Text {
  if (text.length > maxChars) throw new OverBounds("It has too much text.");
  return text;
}

/** Measures the time that a file's own work took, without the time of other work between its slices. */
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

  /** Runs what is no work of the file's own. */
  async without(wait: () => Promise<void>): Promise<void> {
    this.rest();
    await wait();
    this.goOn();
  }

  /** @throws OverBounds */
  check(): void {
    if (this.#spentMs + performance.now() - this.#sinceMs <= this.#maxMs) return;
    throw new OverBounds(`It took longer than ${this.#maxMs / 1000} s to split and to store.`);
  }
}

/**
 * The text of a document on the caller's own disk, read as uploads are: by a process of its own, within the same bounds.
 * A file whose name says nothing is text if it can be read as text, since the caller knows what it is.
 * @throws FileError with the reason as a sentence
 */
export async function documentText(filename: string, bytes: Uint8Array): Promise<string> {
  const kind = await kindOrText(filename, bytes);
  if (kind === "plain" || kind === "markdown" || kind === "lines") return await decodeText(inMemory(bytes));
  const extractor = new Extractor(largeExtraction, new ReaderProgram());
  return checkedText((await extractor.extract(kind, bytes, new AbortController().signal)).text);
}

async function kindOrText(filename: string, bytes: Uint8Array): Promise<FileKind> {
  try {
    return fileKindOf(filename, "", bytes);
  } catch (error) {
    try {
      await decodeText(inMemory(bytes));
      return "plain";
    } catch {
      throw error;
    }
  }
}
