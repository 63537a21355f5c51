/** How the pieces of a document that comes with a query are written, as IBM/spnl writes them. */
import type { Augment, Message } from "./ir.ts";

/** One user's message for each chunk, in the order given: its place in the list is part of its text. */
export function augmentFragments({ doc }: Augment, chunks: readonly string[]): readonly Message[] {
  const baseName = doc.name.split(/[/\\]/).at(-1) ?? "";
  return chunks.map((chunk, index) => ({
    kind: "message",
    role: "user",
    text: `Relevant Document @base-${baseName}-${index}: ${chunk}`,
  }));
}
