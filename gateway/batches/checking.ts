/** Checks the input files of one tenant's new batches, one file after the other, in slices. */
import { type BatchRow, nextBatch, readBatch, updateBatch } from "../../db/batches.ts";
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { BatchFault } from "../../db/schema.ts";
import type { TenantWork } from "../background/tenant-rounds.ts";
import { ApiError } from "../base/errors.ts";
import type { OpenFile } from "../corpus/files/content-store.ts";
import type { FileService } from "../corpus/files/files.ts";
import { type CheckedLines, checkLines } from "./line-checks.ts";

export const inputGone: BatchFault = {
  code: "input_file_deleted",
  message: "The batch's file was deleted.",
  line: null,
  param: "input_file_id",
};

interface CheckDeps {
  readonly db: Db;
  readonly files: FileService;
  readonly nowMs: () => number;
}

interface Check {
  readonly batch: BatchRow;
  readonly file: OpenFile;
  readonly slices: AsyncGenerator<undefined, CheckedLines>;
}

export class TenantChecks implements TenantWork {
  readonly #deps: CheckDeps;
  readonly #tenantId: TenantId;
  readonly #onChecked: () => void;
  #check: Check | undefined;

  constructor(deps: CheckDeps, tenantId: TenantId, onChecked: () => void) {
    this.#deps = deps;
    this.#tenantId = tenantId;
    this.#onChecked = onChecked;
  }

  async runSlice(): Promise<boolean> {
    this.#check ??= await this.#next();
    if (this.#check === undefined) return false;
    const { batch, slices } = this.#check;
    // The batch was cancelled, or it was deleted with its tenant.
    if (readBatch(this.#deps.db, batch.seq)?.status !== "validating") await this.#end();
    else {
      const slice = await slices.next();
      if (slice.done === true) await this.#end(slice.value);
    }
    return true;
  }

  close(): void {
    void this.#check?.file.close();
    this.#check = undefined;
  }

  async #next(): Promise<Check | undefined> {
    const { db, files } = this.#deps;
    for (;;) {
      const batch = nextBatch(db, this.#tenantId, ["validating"]);
      if (batch === undefined) return undefined;
      try {
        const file = await files.open(this.#tenantId, batch.inputFileId);
        return { batch, file, slices: checkLines(file, batch.endpoint) };
      } catch (error) {
        if (!(error instanceof ApiError) || error.code !== "not_found") throw error;
        this.#settle(batch, { faults: [inputGone], total: 0 });
      }
    }
  }

  async #end(checked?: CheckedLines): Promise<void> {
    const check = this.#check;
    this.#check = undefined;
    if (check === undefined) return;
    if (checked !== undefined) this.#settle(check.batch, checked);
    await check.file.close();
  }

  #settle({ seq }: BatchRow, { faults, total }: CheckedLines): void {
    const { db, nowMs } = this.#deps;
    const change =
      faults.length > 0
        ? { status: "failed" as const, errors: faults, failedAt: nowMs() }
        : { status: "in_progress" as const, total, inProgressAt: nowMs() };
    updateBatch(db, seq, ["validating"], change);
    this.#onChecked();
  }
}
