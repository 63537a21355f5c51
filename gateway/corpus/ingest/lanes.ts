/**
 * The order in which files are ingested. Tenants are served in rounds, each with its oldest file. A file that turns out
 * to be large makes way: it waits for the lanes of large files, where tenants are served one slice each in rounds.
 * Until it is taken up there, its tenant is left out of the quick lane. So each large file costs the quick lane only
 * one short try, however many large files wait.
 * The database says which files are to be ingested. Which of them are large is known only here; after a restart that is
 * found out again.
 */
import { type CorpusFileRow, nextPendingFile } from "../../../db/corpus-files.ts";
import type { TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { BackgroundLoop } from "../../background/background-loop.ts";
import { TenantRounds, type TenantWork } from "../../background/tenant-rounds.ts";
import { onAbort } from "../../base/hold.ts";
import type { Log } from "../../base/log.ts";

export type Lane = "quick" | "large";

/**
 * Ingests a file in slices. Each slice ends with a `yield`, which gives the milliseconds to wait before the next slice,
 * if any. Returns false when the file is too large for the quick lane.
 */
export type IngestFile = (
  file: CorpusFileRow,
  lane: Lane,
  signal: AbortSignal,
) => AsyncGenerator<number | undefined, boolean>;

/** The lanes serve different tenants: while one waits for its document's process, the others' texts are ingested. */
const largeLanes = 2;
/** Tenants whose large texts are in memory at the same time. */
const maxOpenLarge = 4;

export class IngestLanes {
  readonly #db: Db;
  readonly #ingest: IngestFile;
  readonly #quick: BackgroundLoop;
  readonly #large: TenantRounds;
  /** Files that wait for the lanes of large files, at most one a tenant. */
  readonly #waiting = new Map<TenantId, CorpusFileRow>();
  /** The `seq` of each file that is in the lanes of large files. */
  readonly #openSeqs = new Set<number>();

  constructor(db: Db, log: Log, ingest: IngestFile) {
    this.#db = db;
    this.#ingest = ingest;
    this.#quick = new BackgroundLoop("ingestion", log, (signal) => this.#ingestQuick(signal));
    this.#large = new TenantRounds({
      ...{ name: "ingestion of large files", log, lanes: largeLanes, maxOpen: maxOpenLarge },
      open: (tenantId) => this.#openLarge(tenantId),
    });
  }

  /** Call when files may be waiting. */
  wake(): void {
    this.#quick.wake();
  }

  /** Resolves when no file waits any more. */
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
      if (await this.#tryQuick(file, signal)) continue;
      this.#waiting.set(file.tenantId, file);
      this.#large.offer(file.tenantId);
    }
  }

  async #tryQuick(file: CorpusFileRow, signal: AbortSignal): Promise<boolean> {
    const slices = this.#ingest(file, "quick", signal);
    for (;;) {
      const slice = await slices.next();
      if (slice.done === true) return slice.value;
    }
  }

  #nextAfter(tenantId: string): CorpusFileRow | undefined {
    const open = [...this.#openSeqs];
    let file = nextPendingFile(this.#db, tenantId, open);
    while (file !== undefined && this.#waiting.has(file.tenantId)) {
      file = nextPendingFile(this.#db, file.tenantId, open);
    }
    return file;
  }

  #openLarge(tenantId: TenantId): TenantWork | undefined {
    const file = this.#waiting.get(tenantId);
    if (file === undefined) return undefined;
    this.#waiting.delete(tenantId);
    this.#openSeqs.add(file.seq);
    // The quick lane serves this tenant again.
    this.#quick.wake();
    const stop = new AbortController();
    const slices = this.#ingest(file, "large", stop.signal);
    let readyAtMs = 0;
    return {
      readyAtMs: () => readyAtMs,
      runSlice: async (stopped) => {
        readyAtMs = Number.POSITIVE_INFINITY;
        const onStop = (): void => stop.abort(stopped.reason);
        if (stopped.aborted) onStop();
        using _listener = onAbort(stopped, onStop);
        const { done, value } = await slices.next();
        readyAtMs = typeof value === "number" ? performance.now() + value : 0;
        return done !== true;
      },
      close: () => {
        void slices.return(true);
        this.#openSeqs.delete(file.seq);
        // The database refused for now, or the file was attached anew: the quick lane finds it again.
        this.#quick.wake();
      },
    };
  }
}
