/** Every bound of batches, named once. A file's bytes are bounded as every upload's are. */
export const batchLimits = {
  maxLines: 10_000,
  maxCustomIdChars: 512,
  /** Faults of a file that are told. */
  maxFaults: 100,
  /** Of one tenant: those that have not ended, and those that can still be looked at. */
  maxOpenPerTenant: 32,
  keptPerTenant: 1_000,
  windowMs: 24 * 3_600_000,
  /** Batches that run at the same time, of different tenants, and lines of each. */
  runningBatches: 2,
  linesAtOnce: 8,
  /** Bytes of a batch's results; lines beyond it are not run. */
  maxOutputBytes: 64 * 1024 * 1024,
  /** Runs of a line that the server failed; one that is refused for now is tried until the batch expires. */
  attempts: 3,
  retryMinMs: 250,
  retryMaxMs: 30_000,
} as const;
