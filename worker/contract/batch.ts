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
