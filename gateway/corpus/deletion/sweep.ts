/**
 * Removes what was deleted: KV in the workers, index entries, text, bytes, rows. A deletion itself only marks rows,
 * which makes them invisible at once. What is marked but not yet swept is found again after a crash. Tenants are served
 * in rounds, so no tenant's deletion waits for the end of another's. Files and corpora whose time has come are deleted
 * as if somebody had asked for it.
 */
import { listSweepTenants, nextCorpusEnd } from "../../../db/corpora.ts";
import { DbError } from "../../../db/errors.ts";
import { nextFileEnd } from "../../../db/files.ts";
import { anyVisible, isTextVisible, type TextKeys, textKeysOf, visibleWithHead } from "../../../db/fragment-texts.ts";
import type { FragmentRow } from "../../../db/fragments.ts";
import { zeroFreeSpace } from "../../../db/free-space.ts";
import type { TenantId } from "../../../db/ids.ts";
import { listDeletedTenants } from "../../../db/tenants.ts";
import type { BlockKey, CacheSalt } from "../../../worker/contract/units.ts";
import { reasonOf } from "../../background/background-loop.ts";
import { DueLoop } from "../../background/due-loop.ts";
import { TenantRounds } from "../../background/tenant-rounds.ts";
import { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { yieldToRequests } from "../../base/pace.ts";
import type { CorpusService } from "../base/corpora.ts";
import type { FileService } from "../files/files.ts";
import { type SweepDeps, TenantSweep } from "./sweep-work.ts";

/** Visible fragments that begin as an evicted one does, and are compared with it. */
const alikeFragments = 2;

/** A fragment that is visible no more. */
export type GoneFragment = Pick<FragmentRow, "id" | "text" | "ordinal">;

/** The most tenants whose sweeps are open at the same time. */
const maxOpen = 256;

export interface SweeperDeps extends Omit<SweepDeps, "evict" | "zeroFreeSpace"> {
  readonly log: Log;
}

export class Sweeper {
  readonly #deps: SweeperDeps;
  readonly #rounds: TenantRounds;
  readonly #tenants = new Map<TenantId, TenantSweep>();
  /** The overwriting that is in progress. All open sweeps share it, and each calls its next piece. */
  #zeroing: Iterator<void> | undefined;

  constructor(deps: SweeperDeps) {
    this.#deps = deps;
    this.#rounds = new TenantRounds({
      ...{ name: "the sweep", log: deps.log, lanes: 1, maxOpen },
      open: (tenantId) => this.#open(tenantId),
      onFailure: (error) => deps.db.relieve(error),
    });
  }

  /** Call when the tenant deleted something or was deleted. */
  wake(tenantId: TenantId): void {
    this.#tenants.get(tenantId)?.lookAgain();
    this.#rounds.offer(tenantId);
  }

  /** Takes up what a stopped server left. */
  wakeAll(): void {
    for (const tenantId of listSweepTenants(this.#deps.db)) this.wake(tenantId);
  }

  /** Call when something is gone that the removal of deleted tenants waited for. */
  wakeDeletedTenants(): void {
    for (const tenantId of listDeletedTenants(this.#deps.db)) this.wake(tenantId);
  }

  idle(): Promise<void> {
    return this.#rounds.idle();
  }

  stop(): Promise<void> {
    return this.#rounds.stop();
  }

  /**
   * All workers forget these fragments' spans, but for what visible fragments of the corpus have in common with them: a
   * file's new version keeps the KV of the texts that did not change.
   * @param mayThrow whether a database that takes no change for now is an error
   * @returns how many spans were evicted
   */
  evict(corpusSeq: number, fragments: readonly GoneFragment[], salt: CacheSalt, mayThrow = false): number {
    const { db, log } = this.#deps;
    const gone = fragments
      .map((fragment) => ({ ...fragment, ...textKeysOf(corpusSeq, fragment.text) }))
      .filter((fragment) => !isTextVisible(db, fragment));
    try {
      // What the template puts before every text may fill blocks of its own.
      const any = gone.length === 0 ? undefined : anyVisible(db, corpusSeq);
      const common = any === undefined ? [] : this.#keysOf(any, salt);
      const keys = gone.flatMap((fragment) => this.#ownKeys(fragment, salt, common));
      if (keys.length > 0) this.#deps.spans.evict(keys, salt);
    } catch (error) {
      // If no model was ever ready, KV is in files alone; the keys are not known, so all files of the corpus go.
      if (error instanceof ApiError && error.code === "not_ready") {
        this.#deps.spans.evictCorpora([salt]);
        return 0;
      }
      // A sweep tries again, and keeps the rows from which the keys are computed until then.
      if (mayThrow && error instanceof DbError) throw error;
      log("warn", "fragments' KV could not be evicted", { reason: reasonOf(error) });
    }
    return gone.length;
  }

  /** The span's block keys without those at its beginning that a visible fragment's span begins with too. */
  #ownKeys(fragment: GoneFragment & TextKeys, salt: CacheSalt, common: readonly BlockKey[]): readonly BlockKey[] {
    const alike = visibleWithHead(this.#deps.db, fragment, alikeFragments).flatMap((one) => this.#keysOf(one, salt));
    const shared = new Set([...common, ...alike]);
    return this.#keysOf(fragment, salt).filter((key) => !shared.has(key));
  }

  #keysOf({ id, text }: Pick<FragmentRow, "id" | "text">, salt: CacheSalt): readonly BlockKey[] {
    return this.#deps.spans.lowerSpan({ id, text, salt }).blockKeys;
  }

  #open(tenantId: TenantId): TenantSweep {
    const deps = {
      ...this.#deps,
      evict: (corpusSeq: number, fragments: readonly GoneFragment[], salt: CacheSalt) =>
        this.evict(corpusSeq, fragments, salt, true),
      zeroFreeSpace: () => this.#zeroFreeSpace(),
    };
    const sweep = new TenantSweep(deps, tenantId, () => this.#tenants.delete(tenantId));
    this.#tenants.set(tenantId, sweep);
    return sweep;
  }

  /**
   * Overwrites the free space of all tenants, since nobody knows whose it was. Sweeps that run at the same time share
   * the work.
   */
  *#zeroFreeSpace(): Generator<void> {
    for (;;) {
      this.#zeroing ??= zeroFreeSpace(this.#deps.db)[Symbol.iterator]();
      const { done } = this.#zeroing.next();
      if (done === true) break;
      yield;
    }
    this.#zeroing = undefined;
  }
}

/** Objects that are ended before other work has its turn: each takes a transaction. */
const endedPerPiece = 8;

export interface ExpiryDeps extends Pick<SweeperDeps, "db" | "log"> {
  readonly files: Pick<FileService, "expireDue">;
  readonly corpora: Pick<CorpusService, "expireDue">;
}

/** Deletes files and corpora when their time has come. */
export function openExpiry({ db, files, corpora, log }: ExpiryDeps): DueLoop {
  return new DueLoop({
    name: "expiry",
    ...{ log, db },
    nowMs: () => Date.now(),
    work: async (signal) => {
      while (!signal.aborted && files.expireDue(endedPerPiece) + corpora.expireDue(endedPerPiece) > 0) {
        await yieldToRequests();
      }
      const ends = [nextFileEnd(db), nextCorpusEnd(db)].filter((end) => end !== undefined);
      return ends.length === 0 ? undefined : Math.min(...ends);
    },
  });
}
