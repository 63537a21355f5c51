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
  /** Of one line: no endpoint takes a body that is larger than this less the line's other fields. */
  maxLineBytes: 8 * 1024 * 1024 + 64 * 1024,
  /** Lines that run at the same time, and those of one tenant among them. */
  linesAtOnce: 16,
  linesPerTenant: 8,
  /** Lines more, one each for tenants that would have none: a long line of one does not keep another waiting. */
  spareLines: 48,
  /** Tenants whose batches run at the same time, and batches of each: one that has to wait lets the next go on. */
  runningTenants: 1_024,
  runningPerTenant: 4,
  /** Tenants whose files are checked at the same time, in turns. */
  checkedTenants: 4,
  /** Bytes of a batch's results; lines beyond it are not run. */
  maxOutputBytes: 64 * 1024 * 1024,
  /** Runs of a line that the server failed; one that is refused for now is tried until the batch expires. */
  attempts: 3,
  retryMinMs: 250,
  retryMaxMs: 30_000,
} as const;
