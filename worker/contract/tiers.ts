/** Where KV lies, the nearest place first: a device's pool, memory beside a GPU, the disk, a bucket. */
export const kvTiers = ["device", "host", "disk", "s3"] as const;
export type KvTier = (typeof kvTiers)[number];

/** The one that is farther away. */
export const fartherTier = (a: KvTier, b: KvTier): KvTier => (kvTiers.indexOf(a) < kvTiers.indexOf(b) ? b : a);
