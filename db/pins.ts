/** Pinned fragments. */
import { and, asc, eq, gt, ne, sql } from "drizzle-orm";
import type { CorpusId, FragmentId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { corpora, corpusFiles, fragmentPins, fragments } from "./schema.ts";

export interface PinnedFragment {
  readonly seq: number;
  readonly id: FragmentId;
  readonly text: string;
  readonly corpusId: CorpusId;
  readonly tenantId: TenantId;
  readonly saltEpoch: number;
  readonly tier: PinTier;
}

export type PinTier = (typeof fragmentPins.$inferSelect)["tier"];

/** How much a tenant has pinned in a tier. */
export interface PinnedSum {
  readonly fragments: number;
  readonly blocks: number;
}

/** Pins a fragment. The call may be repeated; the last call's number of blocks and tier count. */
export function putPin(db: Db, pin: typeof fragmentPins.$inferSelect): void {
  const { blocks, tier } = pin;
  db.statement("putPin", (orm) =>
    orm
      .insert(fragmentPins)
      .values(pin)
      .onConflictDoUpdate({ target: fragmentPins.fragmentSeq, set: { blocks, tier } })
      .run(),
  );
}

export function removePin(db: Db, fragmentSeq: number): void {
  db.statement("removePin", (orm) => orm.delete(fragmentPins).where(eq(fragmentPins.fragmentSeq, fragmentSeq)).run());
}

/** What a tenant has pinned in a tier, the fragment that `exceptSeq` names left out. */
export function sumPins(db: Db, tenantId: TenantId, tier: PinTier, exceptSeq: number): PinnedSum {
  const blocks = sql<number>`coalesce(sum(${fragmentPins.blocks}), 0)`;
  const others = ne(fragmentPins.fragmentSeq, exceptSeq);
  const row = db.statement("sumPins", (orm) =>
    orm
      .select({ fragments: sql<number>`count(*)`, blocks })
      .from(fragmentPins)
      .where(and(eq(fragmentPins.tenantId, tenantId), eq(fragmentPins.tier, tier), others))
      .get(),
  );
  return row ?? { fragments: 0, blocks: 0 };
}

/**
 * Pinned fragments that are visible, after `afterSeq`, in order. Bounds and order are of the pins: by those of the
 * fragments SQLite would walk through all fragments of all tenants to find the few that are pinned.
 */
export function walkPins(db: Db, afterSeq: number, limit: number): readonly PinnedFragment[] {
  return db.statement("walkPins", (orm) =>
    orm
      .select({
        seq: fragments.seq,
        id: fragments.id,
        text: fragments.text,
        corpusId: corpora.id,
        tenantId: corpora.tenantId,
        saltEpoch: corpora.saltEpoch,
        tier: fragmentPins.tier,
      })
      .from(fragmentPins)
      .innerJoin(fragments, eq(fragments.seq, fragmentPins.fragmentSeq))
      .innerJoin(corpusFiles, and(eq(corpusFiles.seq, fragments.corpusFileSeq), eq(corpusFiles.status, "completed")))
      .innerJoin(corpora, and(eq(corpora.id, corpusFiles.corpusId), sql`${corpora.deletedAt} is null`))
      .where(gt(fragmentPins.fragmentSeq, afterSeq))
      .orderBy(asc(fragmentPins.fragmentSeq))
      .limit(limit)
      .all(),
  );
}
