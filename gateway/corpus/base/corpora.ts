/** Corpora (the API's vector stores) and the files attached to them. */
import {
  type CorpusAccess,
  type CorpusRow,
  type CorpusUsage,
  corporaOfTenant,
  corpusUsage,
  countCorpora,
  findCorpus,
  findCorpusAnyState,
  insertCorpus,
  listCorpora,
  listDueCorpora,
  markCorpusDeleted,
  raiseCorpusSaltEpoch,
  touchCorpora,
  updateCorpus,
} from "../../../db/corpora.ts";
import { DbError } from "../../../db/errors.ts";
import { type CorpusId, newId, parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { Page, PageRange } from "../../../db/page.ts";
import type { Metadata } from "../../../db/schema.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import { ApiError } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { corpusLimits } from "./limits.ts";
import type { CorpusSaltOf } from "./ports.ts";

const saltsPerTurn = 64;

export interface CorpusWithUsage {
  readonly row: CorpusRow;
  readonly usage: CorpusUsage;
}

export interface CorpusEvents {
  /** A corpus was deleted. Its rows and its open jobs are invisible and can be swept; its KV is under this salt. */
  deleted(corpus: Pick<CorpusRow, "id" | "tenantId">, salt: CacheSalt): void;
  /** A salt was retired. The KV under it is unreachable and can be dropped. */
  saltRetired(salt: CacheSalt): void;
  /** A corpus was given an end. */
  expirySet(): void;
}

/** A use is noted at most so often, since noting is a write. */
const touchMs = 60_000;

const noFiles: CorpusUsage = {
  fileCounts: { in_progress: 0, completed: 0, failed: 0, cancelled: 0, total: 0 },
  usageBytes: 0,
};

export class CorpusService {
  readonly #db: Db;
  readonly #saltOf: CorpusSaltOf;
  readonly #events: CorpusEvents;

  constructor(db: Db, saltOf: CorpusSaltOf, events: CorpusEvents) {
    this.#db = db;
    this.#saltOf = saltOf;
    this.#events = events;
  }

  /**
   * Finds a corpus; every other method finds it through this one. Unknown, deleted and another tenant's corpora all
   * look the same.
   * @param access "own" to change the corpus, "read" for what a grant also allows
   * @throws ApiError not_found; conflict when it has ended by itself
   */
  require(tenantId: TenantId, rawId: string, access: CorpusAccess): CorpusRow {
    const id = parseId("corpus", rawId);
    const row = id === undefined ? undefined : findCorpus(this.#db, tenantId, id, access);
    if (row !== undefined) return row;
    if (id === undefined || findCorpus(this.#db, tenantId, id, access, "shown") === undefined) {
      throw new ApiError("not_found");
    }
    throw new ApiError("conflict", { message: "The vector store has expired: its files are gone." });
  }

  /** As `require`, but finds one that has ended by itself too. @throws ApiError not_found */
  requireShown(tenantId: TenantId, rawId: string, access: CorpusAccess): CorpusRow {
    const id = parseId("corpus", rawId);
    const row = id === undefined ? undefined : findCorpus(this.#db, tenantId, id, access, "shown");
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  /** @throws ApiError quota_exceeded, not_found (the tenant is gone) */
  create(
    tenantId: TenantId,
    fields: {
      readonly name: string;
      readonly description?: string | undefined;
      readonly metadata: Metadata;
      readonly expiresAfterDays?: number | undefined;
    },
  ): CorpusRow {
    if (countCorpora(this.#db, tenantId) >= corpusLimits.maxCorporaPerTenant) {
      const message = `A tenant can have at most ${corpusLimits.maxCorporaPerTenant} vector stores.`;
      throw new ApiError("quota_exceeded", { message });
    }
    const { name, description = null, metadata, expiresAfterDays = null } = fields;
    const id = newId("corpus");
    const times = { createdAt: Date.now(), expiresAfterDays };
    const row = insertCorpus(this.#db, { id, tenantId, name, description, metadata, ...times });
    if (row === undefined) throw new ApiError("not_found");
    if (expiresAfterDays !== null) this.#events.expirySet();
    return row;
  }

  withUsage(row: CorpusRow): CorpusWithUsage {
    if (row.expired) return { row, usage: noFiles };
    return { row, usage: corpusUsage(this.#db, [row.id]).get(row.id) ?? noFiles };
  }

  list(tenantId: TenantId, range: PageRange): Page<CorpusWithUsage> {
    const page = listCorpora(this.#db, tenantId, range);
    const usage = corpusUsage(
      this.#db,
      page.rows.map((row) => row.id),
    );
    return {
      ...page,
      rows: page.rows.map((row) => ({ row, usage: (row.expired ? undefined : usage.get(row.id)) ?? noFiles })),
    };
  }

  /** @throws ApiError not_found */
  update(
    tenantId: TenantId,
    rawId: string,
    change: {
      readonly name?: string | undefined;
      readonly metadata?: Metadata | undefined;
      /** null: it stays. */
      readonly expiresAfterDays?: number | null | undefined;
    },
  ): CorpusRow {
    const { id } = this.require(tenantId, rawId, "own");
    const updated = updateCorpus(this.#db, id, { ...definedOf(change), lastActiveAt: Date.now() });
    if (updated === undefined) throw new ApiError("not_found");
    if (updated.expiresAfterDays !== null) this.#events.expirySet();
    return updated;
  }

  /** Notes that corpora are used, which puts off the end of those that have one. A full disk keeps nobody from searching. */
  touch(rows: readonly CorpusRow[]): void {
    const now = Date.now();
    const due = rows.filter((row) => row.expiresAfterDays !== null && row.lastActiveAt < now - touchMs);
    if (due.length === 0) return;
    const ids = due.map(({ id }) => id);
    try {
      this.#db.unsynced(() => touchCorpora(this.#db, ids, now));
    } catch (error) {
      if (!(error instanceof DbError) || error.code !== "full") throw error;
    }
  }

  /** Ends some corpora whose time has come: as `delete`, but each is told of still. @returns how many */
  expireDue(limit: number): number {
    const due = listDueCorpora(this.#db, Date.now(), limit);
    for (const row of due) {
      markCorpusDeleted(this.#db, row.id, Date.now(), true);
      this.#events.deleted(row, this.saltOf(row));
    }
    return due.length;
  }

  /**
   * Deletes a corpus: it is unknown from here on, and the sweep removes its text, index and KV.
   * @throws ApiError not_found
   */
  delete(tenantId: TenantId, rawId: string): CorpusId {
    const row = this.requireShown(tenantId, rawId, "own");
    markCorpusDeleted(this.#db, row.id, Date.now());
    this.#events.deleted(row, this.saltOf(row));
    return row.id;
  }

  saltOf(row: Pick<CorpusRow, "id" | "saltEpoch" | "tenantId">): CacheSalt {
    return this.#saltOf(row.id, row.saltEpoch, row.tenantId);
  }

  /** The salts of all that a tenant has or had. It may have thousands, each of which is derived: some in each turn. */
  async saltsInTurns(tenantId: TenantId): Promise<readonly CacheSalt[]> {
    const salts: CacheSalt[] = [];
    for (const row of corporaOfTenant(this.#db, tenantId)) {
      if (salts.length > 0 && salts.length % saltsPerTurn === 0) await yieldToOthers();
      salts.push(this.saltOf(row));
    }
    return salts;
  }

  /**
   * Rotates the corpus's salt: its KV is unreachable from here on.
   * @param tenantId the owner of the corpus
   * @returns the new epoch
   * @throws ApiError not_found
   */
  rotateSalt(tenantId: TenantId, rawId: string): number {
    const row = this.require(tenantId, rawId, "own");
    const epoch = raiseCorpusSaltEpoch(this.#db, row.id);
    if (epoch === undefined) throw new ApiError("not_found");
    this.#events.saltRetired(this.saltOf(row));
    return epoch;
  }

  /** The owner of any corpus, for the platform's operators. @throws ApiError not_found */
  ownerOf(rawId: string): TenantId {
    const id = parseId("corpus", rawId);
    const row = id === undefined ? undefined : findCorpusAnyState(this.#db, id);
    if (row === undefined) throw new ApiError("not_found");
    return row.tenantId;
  }
}

function definedOf<T extends object>(change: T): Partial<T> {
  return Object.fromEntries(Object.entries(change).filter(([, value]) => value !== undefined)) as Partial<T>;
}
