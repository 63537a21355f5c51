/** How much an engine takes on at a time. */
export interface EngineLimits {
  readonly maxRunningRequests: number;
  readonly maxWaitingRequests: number;
  /** Rows of one step, prefill and decode together. */
  readonly stepTokens: number;
  /** Prefill rows of a step that also decodes, at most: they lengthen the time between two tokens of a stream. */
  readonly prefillTokensBesideDecodes: number;
  /**
   * Segments that all prefill rows of a step read, each row its own: what a backend must know of a step grows with them,
   * so a prompt of thousands of fragments goes on in smaller pieces. More than a plan may have runs.
   */
  readonly stepReads: number;
}

export const defaultEngineLimits: EngineLimits = {
  maxRunningRequests: 64,
  maxWaitingRequests: 1_024,
  stepTokens: 512,
  prefillTokensBesideDecodes: 128,
  stepReads: 2 ** 20,
};
