/**
 * Gives visible fragments their vectors, in the background: those of new files, and after a change of the embedding
 * model all of them. The database knows which are missing, so a start goes on where a stop left off. Until a
 * fragment has its vector it is found by its words.
 */
import type { Db } from "../../db/open.ts";
import {
  insertVectors,
  lastVisibleSeq,
  listUnembedded,
  repairVectorIndexes,
  type VectorModel,
  vectorModel,
} from "../../db/vectors.ts";
import { ApiError } from "../errors.ts";
import type { Log } from "../log.ts";
import { BackgroundLoop } from "./loop.ts";
import { Pace } from "./pace.ts";
import type { Embedder } from "./ports.ts";

/** Fragments of one call to the embedder and of one transaction. */
const fragmentsPerPiece = 32;
/** Rows that one statement looks through. */
const rowsPerWindow = 2_048;

export interface QueryVector {
  readonly model: VectorModel;
  readonly vector: Float32Array;
}

export class Vectorizer {
  readonly #db: Db;
  readonly #embedder: Embedder;
  readonly #log: Log;
  readonly #loop: BackgroundLoop;
  #model: VectorModel | undefined;
  /** All fragments up to here have been looked at. */
  #doneSeq = 0;
  /** The first of those that became visible meanwhile: it may be older than what was looked at. */
  #newSeq = 0;

  constructor(db: Db, embedder: Embedder, log: Log) {
    this.#db = db;
    this.#embedder = embedder;
    this.#log = log;
    this.#loop = new BackgroundLoop("embedding of fragments", log, (signal) => this.#embedAll(signal));
  }

  /** Call when fragments have become visible, those from `firstSeq` on among them. */
  wake(firstSeq = 0): void {
    this.#newSeq = Math.min(this.#newSeq, firstSeq);
    if (this.#db.hasVectors) this.#loop.wake();
  }

  idle(): Promise<void> {
    return this.#loop.idle();
  }

  stop(): Promise<void> {
    return this.#loop.stop();
  }

  /** The question's vector; undefined where vectors cannot be searched. @throws ApiError as the embedder does */
  async queryVector(query: string): Promise<QueryVector | undefined> {
    if (!this.#db.hasVectors) return undefined;
    const model = await this.#openModel();
    const [vector] = await this.#embedder.embed([query], "query");
    return vector === undefined ? undefined : { model, vector };
  }

  async #openModel(): Promise<VectorModel> {
    if (this.#model !== undefined) return this.#model;
    const { modelId, dimensions } = await this.#embedder.card();
    // Two may have come here at once: the statements may run twice.
    const model = vectorModel(this.#db, modelId, dimensions);
    repairVectorIndexes(this.#db, model);
    this.#model = model;
    return model;
  }

  async #embedAll(signal: AbortSignal): Promise<void> {
    let model: VectorModel;
    try {
      model = await this.#openModel();
    } catch (error) {
      if (error instanceof ApiError) throw error;
      const reason = error instanceof Error ? error.message : "unknown failure";
      this.#log("error", "fragments get no vectors: the embedding model cannot be opened", { reason });
      return;
    }
    const pace = new Pace();
    const lastSeq = lastVisibleSeq(this.#db);
    this.#doneSeq = Math.min(this.#doneSeq, this.#newSeq - 1);
    this.#newSeq = Number.POSITIVE_INFINITY;
    while (this.#doneSeq < lastSeq && !signal.aborted) {
      const windowEnd = Math.min(this.#doneSeq + rowsPerWindow, lastSeq);
      const range = { afterSeq: this.#doneSeq, lastSeq: windowEnd, limit: fragmentsPerPiece };
      const piece = listUnembedded(this.#db, model, range);
      if (piece.length > 0) await this.#embedPiece(model, piece);
      this.#doneSeq = piece.length < fragmentsPerPiece ? windowEnd : (piece.at(-1)?.seq ?? windowEnd);
      await pace.breathe();
    }
  }

  async #embedPiece(model: VectorModel, piece: ReturnType<typeof listUnembedded>): Promise<void> {
    const vectors = await this.#embedder.embed(
      piece.map(({ text }) => text),
      "document",
    );
    const rows = piece.flatMap(({ seq, corpusSeq }, index) => {
      const vector = vectors[index];
      return vector === undefined ? [] : [{ seq, corpusSeq, vector }];
    });
    this.#db.unsynced(() => insertVectors(this.#db, model, rows));
  }
}
