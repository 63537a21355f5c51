/** Where KV lies, the nearest place first: a device's pool, memory beside a GPU, the disk, a bucket. */
export const kvTiers = ["device", "host", "disk", "s3"] as const;
export type KvTier = (typeof kvTiers)[number];

/** Those of one worker, which it tells of by KV events; the others are shared by all workers. */
export const workerTiers = ["device", "host"] as const;
export type WorkerTier = (typeof workerTiers)[number];

/** The one that is farther away. */
export const fartherTier = (a: KvTier, b: KvTier): KvTier => (kvTiers.indexOf(a) < kvTiers.indexOf(b) ? b : a);
