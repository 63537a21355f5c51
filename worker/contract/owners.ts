/** Owners of KV in a worker, known by number, so that one tenant's texts cannot evict another tenant's. */

/** The owner of requests that name none. */
export const nobody: KvOwner = Object.freeze({ number: 0 });

export interface KvOwner {
  /** Stands for one tenant while the gateway runs: 0 or more. */
  readonly number: number;
  /** Blocks that it may keep on this worker; absent: what its share allows. */
  readonly quotaBlocks?: number;
}

/**
 * The owners of a plan's runs: `ofRun[i]` is the index in `owners` of run i's owner. The last run's owner is who asks.
 */
export interface PlanOwners {
  readonly owners: readonly KvOwner[];
  readonly ofRun: Uint16Array;
}

const minuteMs = 60_000;

/** How long blocks can be asked to be retained after they were used last; an index names one. */
export const retentionTimesMs = [0, 5, 30, 60, 12 * 60, 24 * 60].map((minutes) => minutes * minuteMs);

export const retentionOf = { "5m": 1, "30m": 2, "1h": 3, "12h": 4, "24h": 5 } as const;
export type RetentionTime = keyof typeof retentionOf;
