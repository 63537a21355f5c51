/** One step as arrays: the format that the engine, the attention planner and the backends share. */

/**
 * One step: T rows (tokens) in P pieces. A piece is `rowCount` consecutive tokens of one run, whose rows stand
 * together, in chain order. The fields are arrays, so that a backend can pass them to native code unchanged.
 */
export interface Batch {
  /**
   * [T] token id, chain position (stored K is rotated by it), and slot = blockId * blockTokens + offset. In `beginStep`
   * a negative token id, -1 - r, stands for the token that the step begun before draws for its r-th logit row.
   */
  readonly tokenIds: Int32Array;
  readonly positions: Int32Array;
  readonly slots: Int32Array;
  /** [P + 1] first row of each piece; the last entry is T. */
  readonly pieceRows: Int32Array;
  /** [P + 1] first segment of each piece in the segment arrays; the last entry is S. */
  readonly pieceSegments: Int32Array;
  /**
   * [S] segments. The last segment of a piece is its own run up to and including the piece's last row and is
   * causal: row r of R sees the first tokenCount - (R - 1 - r) tokens of it. All other segments are seen whole.
   * A segment starts at token `segmentFirstTokens` (0 <= first < blockTokens) of its first block.
   */
  readonly segmentBlockStarts: Int32Array;
  readonly segmentFirstTokens: Int32Array;
  readonly segmentTokenCounts: Int32Array;
  /** [S] Δ, |Δ| < the context: a row at p reads this segment with q rotated to p - Δ, at most twice the context. */
  readonly segmentOffsets: Int32Array;
  /**
   * [S] chain position of the segment's first token, which stands at that plus Δ in the positions of the piece's rows;
   * read where layers slide, and absent where nobody knows of such layers.
   */
  readonly segmentPositions?: Int32Array;
  /** Block ids of all segments, one after the other; segment s begins at segmentBlockStarts[s]. */
  readonly blockIds: Int32Array;
  /** [N] rows whose logits are wanted, rising. */
  readonly logitRows: Int32Array;
  /** Absent: every row reads all it sees. */
  readonly choices?: Choices;
}

/**
 * What pieces of sparse decoding choose from: Q entries, one for each piece that has a seat. Such a piece has the segments
 *
 *   [buffer][tail]    forced tokens in rising order, then chosen ones; and the end of its own run, from a block's first
 *                     token on
 *
 * The buffer is the request's own, of blocks that have no key: a segment from its block's first token on, at offset 0, of
 * forced + min(`tokens`, candidates) tokens. In each layer and KV head the backend chooses before it attends, and copies
 * what it has chosen there: K turned by its segment's Δ, V as it is. A slot holds another token for each KV head.
 *
 * A token's number is its place in the entry's segments, one after the other, forced ones counted. Segments grow at their
 * end alone, so numbers stay as long as the seat is not fresh. Of equal scores the lower number is chosen.
 */
export interface Choices {
  /** [Q] pieces of the batch, rising; all rows of a piece share one choice. */
  readonly pieces: Int32Array;
  /** [Q] what the backend keeps of a request: lists, queries, counters; all different, below `shape.sparse.seats`. */
  readonly seats: Int32Array;
  /** [Q] choiceFlags; indices in choiceModes. */
  readonly flags: Int32Array;
  readonly modes: Int32Array;
  /** [Q] how many are chosen beside forced ones (C); 0 for a piece that is only watched. */
  readonly tokens: Int32Array;
  /** [Q] of what is chosen ahead: every how many steps (R), and the least cosine (τ). */
  readonly refreshSteps: Int32Array;
  readonly leastCosines: Float32Array;
  /** [Q + 1] first of each entry's segments in the arrays below; the last entry is their number. */
  readonly segments: Int32Array;
  /** As in Batch, over `blockIds` of these arrays. All of it was computed before this step; the tail is no part of it. */
  readonly segmentBlockStarts: Int32Array;
  readonly segmentFirstTokens: Int32Array;
  readonly segmentTokenCounts: Int32Array;
  readonly segmentOffsets: Int32Array;
  /** How many of a segment's first tokens are forced: they are no candidates. */
  readonly segmentForced: Int32Array;
  readonly blockIds: Int32Array;
}

/** Tokens whose KV is copied from slot to slot in every layer; each array has one entry a token. */
export interface TokenCopies {
  readonly sourceSlots: Int32Array;
  /**
   * No slot occurs twice, and none is another token's source. Where source and target are one slot, K is rotated in
   * place.
   */
  readonly targetSlots: Int32Array;
  /** By how many positions the token's stored K is rotated: the target stands that much later than the source. */
  readonly deltas: Int32Array;
}
