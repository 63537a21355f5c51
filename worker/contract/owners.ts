/** Owners of KV in a worker, known by number, so that one tenant's texts cannot evict another tenant's. */

/** The owner of requests that name no owner. */
export const nobody: KvOwner = Object.freeze({ number: 0 });

export interface KvOwner {
  /** A number of 0 or more that stands for one tenant while the gateway runs. */
  readonly number: number;
  /** How many blocks the owner may keep on this worker; absent: as many as its share allows. */
  readonly quotaBlocks?: number;
}

/**
 * The owners of a plan's runs: `owners[ofRun[i]]` owns run i. The owner of the last run is the one who asks.
 */
export interface PlanOwners {
  readonly owners: readonly KvOwner[];
  readonly ofRun: Uint16Array;
}

const minuteMs = 60_000;

/** Choices of how long blocks are retained after their last use, in milliseconds; messages send an index. */
export const retentionTimesMs = [0, 5, 30, 60, 12 * 60, 24 * 60].map((minutes) => minutes * minuteMs);

export const retentionOf = { "5m": 1, "30m": 2, "1h": 3, "12h": 4, "24h": 5 } as const;
export type RetentionTime = keyof typeof retentionOf;
