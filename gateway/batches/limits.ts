/** Every bound of batches, named once. The size of a batch's input file is bounded like that of any other upload. */
export const batchLimits = {
  maxLines: 10_000,
  maxCustomIdChars: 512,
  /** At most this many faults of an input file are reported. */
  maxFaults: 100,
  /** Batches of one tenant: how many may be unfinished at a time, and how many ended ones stay readable. */
  maxOpenPerTenant: 32,
  keptPerTenant: 1_000,
  windowMs: 24 * 3_600_000,
  /**
   * Bytes of one line. A line's body may be as large as any endpoint accepts, and its other fields come on top of that.
   */
  maxLineBytes: 8 * 1024 * 1024 + 64 * 1024,
  /** Lines that run at the same time: of all tenants, and of one tenant. */
  linesAtOnce: 16,
  linesPerTenant: 8,
  /**
   * Additional lines, at most one a tenant, for tenants of which no line runs: one tenant's long line does not delay
   * another tenant.
   */
  spareLines: 48,
  /**
   * How many tenants' batches run at the same time, and how many batches of each. When one batch has to wait, the next
   * goes on.
   */
  runningTenants: 1_024,
  runningPerTenant: 4,
  /** The files of this many tenants are checked at the same time; the tenants take slices in rounds. */
  checkedTenants: 4,
  /** Bytes of a batch's results. Once they are reached, the remaining lines are not run. */
  maxOutputBytes: 64 * 1024 * 1024,
  /**
   * How often a line is run that ends with a server error. A line that is refused for now is tried until the batch
   * expires.
   */
  attempts: 3,
  retryMinMs: 250,
  retryMaxMs: 30_000,
} as const;
