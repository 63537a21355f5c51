/** What is normalized while something runs. */
import { spyOn } from "bun:test";

/** The longest row of combining marks in a text that `work` normalizes; undefined: it normalizes none. */
export async function longestNormalizedRow(work: () => unknown): Promise<number | undefined> {
  using normalized = spyOn(String.prototype, "normalize");
  await work();
  const texts = normalized.mock.contexts.map(String);
  const rows = texts.flatMap((text) => text.split("\u034f").flatMap((part) => part.match(/\p{M}+/gu) ?? [""]));
  return texts.length === 0 ? undefined : Math.max(...rows.map(({ length }) => length));
}

/** Marks in an order that normalization turns round. */
export const manyMarks = (count: number): string => `a${"\u0315".repeat(count / 2)}${"\u0327".repeat(count / 2)}`;
