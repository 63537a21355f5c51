/**
 * Computes the vectors of visible fragments, in the background: first for new files, in rounds of their tenants, and
 * from each start on for all fragments without a vector. After a change of the embedding model these are all fragments.
 * The database knows which are missing. Until a fragment has its vector it is found by its words only.
 */
import type { CorpusFileRow } from "../../../db/corpus-files.ts";
import type { TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import {
  copyVectors,
  hasVectorIndexes,
  insertVectors,
  lastVisibleSeq,
  listUnembedded,
  listUnembeddedOf,
  repairVectorIndexes,
  type UnembeddedFragment,
  type VectorModel,
  vectorModel,
} from "../../../db/vectors.ts";
import { BackgroundLoop } from "../../background/background-loop.ts";
import { TenantRounds, type TenantWork } from "../../background/tenant-rounds.ts";
import { ApiError, messageOf } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { Pace, yieldToRequests } from "../../base/pace.ts";
import type { Embedder } from "../base/ports.ts";

/** Fragments in one call to the embedder. */
const fragmentsPerPiece = 32;
/** Fragments in one transaction: each takes some tenths of a millisecond, and nothing else runs meanwhile. */
const fragmentsPerTransaction = 8;
/** Rows that one statement scans. */
const rowsPerWindow = 2_048;

export interface QueryVector {
  readonly model: VectorModel;
  readonly vector: Float32Array;
}

/** Tenants whose new files are embedded in rounds. */
const maxOpen = 1_024;

export class Vectorizer {
  readonly #db: Db;
  readonly #embedder: Embedder;
  readonly #log: Log;
  readonly #loop: BackgroundLoop;
  readonly #rounds: TenantRounds;
  #model: VectorModel | undefined;
  /** All fragments up to this `seq` have been looked at. */
  #doneSeq = 0;
  /** The `seq` of new files by tenant, the oldest first. */
  readonly #newFiles = new Map<TenantId, Set<number>>();

  constructor(db: Db, embedder: Embedder, log: Log) {
    this.#db = db;
    this.#embedder = embedder;
    this.#log = log;
    this.#loop = new BackgroundLoop("embedding of fragments", log, (signal) => this.#embedAll(signal));
    this.#rounds = new TenantRounds({
      ...{ name: "embedding of fragments", log, lanes: 1, maxOpen },
      open: (tenantId) => this.#openTenant(tenantId),
    });
  }

  /** Begins with the fragments that have no vector. */
  start(): void {
    if (this.#db.hasVectors) this.#loop.wake();
  }

  /** Call when the fragments of a file have become visible. */
  completed({ tenantId, seq }: Pick<CorpusFileRow, "tenantId" | "seq">): void {
    if (!this.#db.hasVectors) return;
    this.#newFiles.getOrInsertComputed(tenantId, () => new Set()).add(seq);
    this.#rounds.offer(tenantId);
  }

  async idle(): Promise<void> {
    await Promise.all([this.#loop.idle(), this.#rounds.idle()]);
  }

  async stop(): Promise<void> {
    await Promise.all([this.#loop.stop(), this.#rounds.stop()]);
  }

  /** The question's vector; undefined where vectors cannot be searched. @throws ApiError as the embedder does */
  async queryVector(query: string, onTokens?: (count: number) => void): Promise<QueryVector | undefined> {
    if (!this.#db.hasVectors) return undefined;
    const model = await this.#openModel();
    const [vector] = await this.#embedder.embed([query], "query", onTokens);
    return vector === undefined ? undefined : { model, vector };
  }

  async #openModel(): Promise<VectorModel> {
    if (this.#model !== undefined) return this.#model;
    const { modelId, dimensions } = await this.#embedder.card();
    // Two calls may get here at the same time, so the statements may run twice.
    const model = vectorModel(this.#db, modelId, dimensions);
    repairVectorIndexes(this.#db, model);
    this.#model = model;
    return model;
  }

  /** The embedding model; undefined: there never will be one. */
  async #tryModel(): Promise<VectorModel | undefined> {
    try {
      return await this.#openModel();
    } catch (error) {
      if (error instanceof ApiError) throw error;
      const reason = messageOf(error);
      this.#log("error", "fragments get no vectors: the embedding model cannot be opened", { reason });
      return undefined;
    }
  }

  #openTenant(tenantId: TenantId): TenantWork | undefined {
    const files = this.#newFiles.get(tenantId);
    if (files === undefined) return undefined;
    let afterOrdinal = -1;
    const nextPiece = async (): Promise<void> => {
      const model = await this.#tryModel();
      const [seq] = files;
      if (seq === undefined) return;
      const range = { seq, afterOrdinal, limit: fragmentsPerPiece };
      const piece = model === undefined ? [] : listUnembeddedOf(this.#db, model, range);
      if (model !== undefined && piece.length > 0) await this.#embedPiece(model, piece);
      afterOrdinal = piece.at(-1)?.ordinal ?? afterOrdinal;
      if (piece.length === fragmentsPerPiece) return;
      files.delete(seq);
      afterOrdinal = -1;
    };
    return {
      runSlice: async () => {
        await nextPiece();
        if (files.size > 0) return true;
        this.#newFiles.delete(tenantId);
        return false;
      },
    };
  }

  async #embedAll(signal: AbortSignal): Promise<void> {
    const lastSeq = lastVisibleSeq(this.#db);
    // Nothing to embed and nothing to repair: the model's process starts with its first use.
    if (lastSeq === 0 && !hasVectorIndexes(this.#db)) return;
    const model = await this.#tryModel();
    if (model === undefined) return;
    const pace = new Pace(yieldToRequests);
    while (this.#doneSeq < lastSeq && !signal.aborted) {
      const windowEnd = Math.min(this.#doneSeq + rowsPerWindow, lastSeq);
      const range = { afterSeq: this.#doneSeq, lastSeq: windowEnd, limit: fragmentsPerPiece };
      const piece = listUnembedded(this.#db, model, range);
      if (piece.length > 0) await this.#embedPiece(model, piece);
      this.#doneSeq = piece.length < fragmentsPerPiece ? windowEnd : (piece.at(-1)?.seq ?? windowEnd);
      await pace.breathe();
    }
  }

  async #embedPiece(model: VectorModel, found: readonly UnembeddedFragment[]): Promise<void> {
    const pace = new Pace(yieldToRequests);
    const left: UnembeddedFragment[] = [];
    for (const some of parted(found)) {
      left.push(...this.#db.unsynced(() => copyVectors(this.#db, model, some)));
      await pace.breathe();
    }
    if (left.length === 0) return;
    const vectors = await this.#embedder.embed(
      left.map(({ text }) => text),
      "document",
    );
    const rows = left.flatMap(({ seq, corpusSeq }, index) => {
      const vector = vectors[index];
      return vector === undefined ? [] : [{ seq, corpusSeq, vector }];
    });
    for (const some of parted(rows)) {
      this.#db.unsynced(() => insertVectors(this.#db, model, some));
      await pace.breathe();
    }
  }
}

const parted = <Item>(items: readonly Item[]): readonly (readonly Item[])[] =>
  Array.from({ length: Math.ceil(items.length / fragmentsPerTransaction) }, (_, index) =>
    items.slice(index * fragmentsPerTransaction, (index + 1) * fragmentsPerTransaction),
  );
