/**
 * What the engine knows of hardware. One backend owns the KV memory, the weights and the streams of one
 * device; the engine owns which block holds what.
 */

/**
 * One step: T rows (tokens) in P pieces. A piece is `rowCount` consecutive tokens of one run, all in the
 * same step. Struct of arrays, so that a backend passes it to native code as it is. Rows of a piece stand
 * together, in chain order.
 */
export interface Batch {
  /** [T] token id, chain position (K is stored rotated by it), and slot = blockId * blockTokens + offset. */
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
  /** [S] Δ, below the context in size: a row at p reads this segment with q rotated to p - Δ, at most twice the context. */
  readonly segmentOffsets: Int32Array;
  /** Block ids of all segments, one after the other; segment s begins at segmentBlockStarts[s]. */
  readonly blockIds: Int32Array;
  /** [N] rows whose logits are wanted, rising. */
  readonly logitRows: Int32Array;
}

export interface BackendShape {
  readonly vocabSize: number;
  readonly contextTokens: number;
  readonly blockTokens: number;
  readonly blockCount: number;
  readonly kvBytesPerBlock: number;
}

export interface Backend {
  readonly name: string;
  readonly shape: BackendShape;
  /**
   * Runs one step: in each layer writes K and V of every row into its slot and only then attends, so that a
   * piece may see a run that the same step completes. Answers the logits of `logitRows` as float32 [N, vocabSize]. The array is the backend's own and valid until the next call.
   */
  forward(batch: Batch): Promise<Float32Array>;
  /** Frees device memory; the backend is not used afterwards. */
  dispose(): Promise<void>;
}
