/** Why KV of a request was not found, as its answer reports it. */

export type MissReason =
  | "never_computed"
  /** The memory was needed for other KV. */
  | "evicted"
  /** The KV was deleted or purged. */
  | "removed"
  /** The worker that held it has ended. */
  | "worker_lost"
  /** Another worker has it, but the request was cheaper in all on the worker that it was sent to. */
  | "other_worker"
  /** The same text was cached under another salt: the salt was rotated since, or another cache_salt was used. */
  | "salt_changed"
  /** The same text was cached, but behind other text. */
  | "text_before_changed"
  /** The last token of a prompt, and the tokens after its last full block, are always computed. */
  | "below_block"
  /** The request asked for no reuse, or some of its texts were evicted while it waited. */
  | "reuse_off";

/** The report for one span, or for the prompt's own text as a whole. */
export interface MissReport {
  /** undefined: the prompt's own text. */
  readonly id: string | undefined;
  readonly tokens: number;
  readonly cachedTokens: number;
  /** Why the first missing tokens were not found; undefined: all were found. */
  readonly reason: MissReason | undefined;
}
