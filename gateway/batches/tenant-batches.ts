/**
 * The running batches of one tenant. Each slice goes to the oldest batch that can go on, so a waiting batch does not
 * hold up the others.
 */
import { nextBatch } from "../../db/batches.ts";
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { TenantWork } from "../background/tenant-rounds.ts";
import type { FileService } from "../corpus/files/files.ts";
import { batchLimits } from "./limits.ts";
import { OpenBatch } from "./open-batch.ts";

export interface TenantBatchesDeps {
  readonly db: Db;
  readonly files: FileService;
  readonly nowMs: () => number;
  /** Does one slice of a batch's work. @returns true when the batch has ended */
  readonly run: (batch: OpenBatch) => Promise<boolean>;
  /** Called when a batch that waited can go on. */
  readonly woken: () => void;
  readonly closed: () => void;
}

export class TenantBatches implements TenantWork {
  /** Ordered from the oldest to the newest. */
  readonly batches: OpenBatch[] = [];
  readonly #tenantId: TenantId;
  readonly #deps: TenantBatchesDeps;
  #running = 0;
  #mayBeMore = true;

  constructor(tenantId: TenantId, deps: TenantBatchesDeps) {
    this.#tenantId = tenantId;
    this.#deps = deps;
  }

  /** Call when the tenant may have a batch that is not open yet. */
  lookAgain(): void {
    this.#mayBeMore = true;
  }

  readyAtMs(): number {
    if (this.#running >= batchLimits.linesPerTenant) return Number.POSITIVE_INFINITY;
    const soonestMs = Math.min(...this.batches.map((batch) => batch.readyAtMs()));
    return soonestMs > performance.now() && this.#canOpen ? 0 : soonestMs;
  }

  async runSlice(): Promise<boolean> {
    const nowMs = performance.now();
    const batch = this.batches.find((open) => open.readyAtMs() <= nowMs) ?? this.#openNext();
    if (batch !== undefined) await this.#run(batch);
    return this.batches.length > 0 || this.#mayBeMore;
  }

  close(): void {
    for (const batch of this.batches) batch.interrupt();
    this.#deps.closed();
  }

  async #run(batch: OpenBatch): Promise<void> {
    this.#running += 1;
    try {
      if (!(await this.#deps.run(batch))) return;
      this.batches.splice(this.batches.indexOf(batch), 1);
      this.#mayBeMore = true;
    } finally {
      this.#running -= 1;
    }
  }

  get #canOpen(): boolean {
    return this.#mayBeMore && this.batches.length < batchLimits.runningPerTenant;
  }

  #openNext(): OpenBatch | undefined {
    if (!this.#canOpen) return undefined;
    const { db, nowMs, woken } = this.#deps;
    const known = this.batches.map(({ row }) => row.seq);
    const row = nextBatch(db, this.#tenantId, ["in_progress", "finalizing", "cancelling"], known);
    this.#mayBeMore = row !== undefined;
    if (row === undefined) return undefined;
    const batch = new OpenBatch(row, this.#deps, row.expiresAt - nowMs(), () => {
      batch.interrupt();
      woken();
    });
    if (row.status !== "in_progress") batch.interrupt();
    this.batches.push(batch);
    return batch;
  }
}
