/** How much an engine takes on at a time. */
export interface EngineLimits {
  readonly maxRunningRequests: number;
  readonly maxWaitingRequests: number;
  /** Rows of one step, prefill and decode together. */
  readonly stepTokens: number;
  /** Prefill rows of a step that also decodes, at most: they lengthen the time between two tokens of a stream. */
  readonly prefillTokensBesideDecodes: number;
  /**
   * Words of what a backend is told of a step beside its rows (list-room.ts), on top of the blocks of a whole context
   * for each running request: rows that read thousands of segments are fewer in a step.
   */
  readonly stepListWords: number;
}

/** Of a CPU; worker/config.ts has a GPU's. */
export const defaultEngineLimits: EngineLimits = {
  maxRunningRequests: 64,
  maxWaitingRequests: 1_024,
  stepTokens: 512,
  prefillTokensBesideDecodes: 128,
  stepListWords: 15 * 2 ** 17,
};
