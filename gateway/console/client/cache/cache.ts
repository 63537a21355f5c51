/** Whose KV there is, as `GET /admin/v1/cache` says, and what becomes of it, as `/cache/events` does. */
import { tierWord } from "../kit/format.ts";

export interface WorkerPart {
  readonly worker: string;
  readonly blocks: number;
  readonly fragment_blocks: number;
  readonly pinned_blocks: number;
  readonly tokens: number;
  readonly bytes: number;
}

export interface TenantCache extends Omit<WorkerPart, "worker"> {
  readonly tenant_id: string;
  readonly workers: readonly WorkerPart[];
  readonly tiers: readonly {
    readonly tier: string;
    readonly blocks: number;
    readonly bytes: number;
    readonly quota_bytes: number | null;
  }[];
}

export interface Tier {
  readonly tier: string;
  /** null: all workers share it. */
  readonly worker: string | null;
  readonly blocks: number;
  readonly bytes: number;
  readonly pinned_bytes: number;
  readonly quota_bytes: number | null;
}

export interface Cache {
  readonly data: readonly TenantCache[];
  /** Empty for a tenant's administrator. */
  readonly tiers: readonly Tier[];
}

export interface Change {
  /** Unix time in seconds. */
  readonly at: number;
  readonly blocks: readonly {
    readonly tenant_id: string;
    /** null: all workers share the tier. */
    readonly worker: string | null;
    readonly tier: string;
    readonly stored: number;
    readonly removed: number;
    /** Brought from there: files to a pool, objects of the bucket to files. */
    readonly loaded: number;
    readonly held: number;
  }[];
  readonly pins: readonly {
    readonly tenant_id: string;
    readonly tier: string;
    readonly pinned: number;
    readonly unpinned: number;
  }[];
  readonly others?: { readonly stored: number; readonly removed: number; readonly loaded: number };
}

/** A line of what happened: to whom, where, and what. */
export interface Happening {
  readonly key: string;
  readonly at: number;
  readonly tenantId: string;
  readonly place: string;
  readonly text: string;
}

const counted = (count: number, what: string): string[] => (count > 0 ? [`${count} ${what}`] : []);

/** @param id of the event, which no other has */
export function happeningsOf(id: string, { at, blocks, pins, others }: Change): readonly Happening[] {
  const moved = blocks.map(({ tenant_id: tenantId, worker, tier, stored, removed, loaded, held }, index) => {
    const parts = [...counted(removed, "removed"), ...counted(stored, "stored"), ...counted(loaded, "loaded")];
    const text = `${parts.join(", ")}; ${held} held`;
    const place = worker === null ? tierWord(tier) : `${worker}, ${tierWord(tier)}`;
    return { key: `${id}-${index}`, at, tenantId, place, text };
  });
  const pinned = pins.map(({ tenant_id: tenantId, tier, pinned, unpinned }, index) => {
    const text = [...counted(pinned, "pinned"), ...counted(unpinned, "no longer pinned")].join(", ");
    return { key: `${id}-p${index}`, at, tenantId, place: tierWord(tier), text };
  });
  const rest =
    others === undefined
      ? []
      : [
          {
            key: `${id}-o`,
            at,
            tenantId: "others",
            place: "",
            text: `${others.removed} removed, ${others.stored} stored, ${others.loaded} loaded`,
          },
        ];
  return [...moved, ...pinned, ...rest];
}
