/** Whose KV is whose in a worker: owners without a name, so that one tenant's text cannot push another's out. */

/** Whoever is not told apart. */
export const nobody: KvOwner = Object.freeze({ number: 0 });

export interface KvOwner {
  /** Stands for one tenant while the gateway runs: 0 or more. */
  readonly number: number;
  /** Blocks that it may keep on this worker; absent: what its share allows. */
  readonly quotaBlocks?: number;
}

/** Whose the runs of a plan are: `ofRun[i]` is the index in `owners` of run i's. The last run's is who asks. */
export interface PlanOwners {
  readonly owners: readonly KvOwner[];
  readonly ofRun: Uint16Array;
}

const minuteMs = 60_000;

/** How long blocks can be asked to be retained after they were used last; an index names one. */
export const retentionTimesMs = [0, 5, 30, 60, 12 * 60, 24 * 60].map((minutes) => minutes * minuteMs);

export const retentionOf = { "5m": 1, "30m": 2, "1h": 3, "12h": 4, "24h": 5 } as const;
export type RetentionTime = keyof typeof retentionOf;
