/** The pages of a file's text, and of the fragments that it is cut into. */
import type { FragmentPage } from "../../../db/schema.ts";
import type { PageStart } from "../../extract/protocol.ts";
import type { Chunk } from "./chunk.ts";

/** The pages that a fragment has a part of; null: its file has none. The first one may begin before the fragment. */
export function pagesWithin(
  pages: readonly PageStart[],
  { firstChar, endChar }: Pick<Chunk, "firstChar" | "endChar">,
): readonly FragmentPage[] | null {
  const first = lastAt(pages, firstChar);
  const last = lastAt(pages, endChar - 1);
  if (last === undefined) return null;
  return pages.slice(first ?? 0, last + 1).map(({ at, ...name }) => ({ at: Math.max(0, at - firstChar), ...name }));
}

/** The page that a character of the fragment stands on. */
export function pageAt(pages: readonly FragmentPage[] | undefined, char: number): FragmentPage | undefined {
  const index = lastAt(pages ?? [], char);
  return index === undefined ? undefined : pages?.[index];
}

/** The index of the last page that begins at the place or before it; found by halving. */
function lastAt(pages: readonly { readonly at: number }[], char: number): number | undefined {
  let [low, high] = [0, pages.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((pages[middle]?.at ?? Number.POSITIVE_INFINITY) <= char) low = middle + 1;
    else high = middle;
  }
  return low === 0 ? undefined : low - 1;
}
