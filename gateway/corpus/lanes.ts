/**
 * The order in which files are ingested. Tenants take turns, each with its oldest file. A file that turns out to be
 * large makes way for the others: it waits for the lane of large files, where tenants take turns too, and until it
 * is taken up there its tenant has no turn in the quick lane. So the quick lane loses one short try to each file of
 * the other lane, however many large files wait.
 *
 * What is to be done is in the database; who waits here is forgotten with the process, and found out again.
 */
import { type CorpusFileRow, nextPendingFile } from "../../db/corpus-files.ts";
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Log } from "../log.ts";
import { BackgroundLoop } from "./loop.ts";

export type Lane = "quick" | "large";

/** @returns false: the file is too large for the quick lane */
export type IngestFile = (file: CorpusFileRow, lane: Lane, signal: AbortSignal) => Promise<boolean>;

export class IngestLanes {
  readonly #db: Db;
  readonly #ingest: IngestFile;
  readonly #quick: BackgroundLoop;
  readonly #large: BackgroundLoop;
  /** Files that wait for the lane of large ones, the next first; one a tenant. */
  readonly #waiting = new Map<TenantId, CorpusFileRow>();
  #largeSeq: number | undefined;

  constructor(db: Db, log: Log, ingest: IngestFile) {
    this.#db = db;
    this.#ingest = ingest;
    this.#quick = new BackgroundLoop("ingestion", log, (signal) => this.#ingestQuick(signal));
    this.#large = new BackgroundLoop("ingestion of large files", log, (signal) => this.#ingestLarge(signal));
  }

  /** Call when files may be waiting. */
  wake(): void {
    this.#quick.wake();
  }

  /** Resolves when nothing waits any more. */
  async idle(): Promise<void> {
    while (!this.#quick.isIdle || !this.#large.isIdle) await Promise.all([this.#quick.idle(), this.#large.idle()]);
  }

  async stop(): Promise<void> {
    await Promise.all([this.#quick.stop(), this.#large.stop()]);
  }

  async #ingestQuick(signal: AbortSignal): Promise<void> {
    for (let lastTenantId = ""; !signal.aborted; ) {
      const file = this.#nextAfter(lastTenantId) ?? this.#nextAfter("");
      if (file === undefined) return;
      lastTenantId = file.tenantId;
      if (await this.#ingest(file, "quick", signal)) continue;
      this.#waiting.set(file.tenantId, file);
      this.#large.wake();
    }
  }

  #nextAfter(tenantId: string): CorpusFileRow | undefined {
    let file = nextPendingFile(this.#db, tenantId, this.#largeSeq);
    while (file !== undefined && this.#waiting.has(file.tenantId)) {
      file = nextPendingFile(this.#db, file.tenantId, this.#largeSeq);
    }
    return file;
  }

  async #ingestLarge(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const [file] = this.#waiting.values();
      if (file === undefined) return;
      this.#waiting.delete(file.tenantId);
      this.#largeSeq = file.seq;
      // Its tenant has turns again.
      this.#quick.wake();
      try {
        await this.#ingest(file, "large", signal);
      } finally {
        this.#largeSeq = undefined;
        // Put off by the database, or attached anew meanwhile: it is found by the quick lane.
        this.#quick.wake();
      }
    }
  }
}
