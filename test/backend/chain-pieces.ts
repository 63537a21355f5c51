/** Steps of one chain, for tests of a backend without an engine. */
import type { Batch } from "../../worker/contract/batch.ts";

/**
 * @param tokens of the chain, whose blocks have 16
 * @returns makes a step of the tokens [start, end), which stand in blocks firstBlock, firstBlock + 1, …
 */
export function chainPieces(tokens: Int32Array) {
  return (start: number, end: number, firstBlock: number, logitRows: readonly number[]): Batch => {
    const positions = Int32Array.from({ length: end - start }, (_, i) => start + i);
    return {
      tokenIds: tokens.slice(start, end),
      positions,
      slots: positions.map((position) => firstBlock * 16 + position),
      pieceRows: Int32Array.of(0, end - start),
      pieceSegments: Int32Array.of(0, 1),
      segmentBlockStarts: Int32Array.of(0),
      segmentFirstTokens: Int32Array.of(0),
      segmentTokenCounts: Int32Array.of(end),
      segmentOffsets: Int32Array.of(0),
      blockIds: Int32Array.from({ length: Math.ceil(end / 16) }, (_, i) => firstBlock + i),
      logitRows: Int32Array.from(logitRows),
    };
  };
}
