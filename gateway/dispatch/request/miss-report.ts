/** Why KV of a request was not found, as its answer tells it. */

export type MissReason =
  | "never_computed"
  /** Its memory was needed. */
  | "evicted"
  /** It was deleted or purged. */
  | "removed"
  /** Its worker has ended. */
  | "worker_lost"
  /** Another worker has it, and the request was sent where it costs less all in all. */
  | "other_worker"
  /** The same text was there under another salt: one that was rotated since, or another cache_salt. */
  | "salt_changed"
  /** The same text was there behind other text. */
  | "text_before_changed"
  /** What is left of a prompt behind its last full block, and its last token, is always computed. */
  | "below_block"
  /** The request asked for no reuse, or something of it was removed while it waited. */
  | "reuse_off";

/** A span, or the prompt's own text: all of it together. */
export interface MissReport {
  /** undefined: the prompt's own text. */
  readonly id: string | undefined;
  readonly tokens: number;
  readonly cachedTokens: number;
  /** Of its first tokens that were not found; undefined: all were. */
  readonly reason: MissReason | undefined;
}
