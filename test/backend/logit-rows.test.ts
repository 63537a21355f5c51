/** What is left of a batch for its last layer. */
import { expect, test } from "bun:test";
import { reduceToLogitRows } from "../../worker/backend/cpu/logit-rows.ts";
import { beside, chainPieces } from "./chain-pieces.ts";

test("a row whose logits are wanted stays a prompt's or a generated one", () => {
  const piece = chainPieces(Int32Array.from({ length: 40 }, (_, i) => i));
  const [prompt, answer] = [piece(0, 5, 0, [4]), piece(20, 21, 4, [0])];
  const both = { ...beside(prompt, answer, Int32Array.of(4, 5)), pieceGenerated: Int32Array.of(0, 1) };
  expect([...(reduceToLogitRows(both).pieceGenerated ?? [])]).toEqual([0, 1]);
  expect([...(reduceToLogitRows({ ...both, logitRows: Int32Array.of(5) }).pieceGenerated ?? [])]).toEqual([1]);
  expect(reduceToLogitRows(prompt).pieceGenerated).toBeUndefined();
});
