/** Sets of Unicode code points, as ranges. */

/** The ranges of a set, in rising order and with gaps between them. */
export type CodePoints = readonly (readonly [low: number, high: number])[];

export const lastCodePoint = 0x10ffff;

/** All characters: every code point except the surrogates. */
const any: CodePoints = [
  [0, 0xd7ff],
  [0xe000, lastCodePoint],
];
export const anything = any;

/** A set from pairs of characters, each the first and the last of a range. */
function spans(pairs: string): CodePoints {
  const points = Array.from(pairs, (sign) => sign.codePointAt(0) ?? 0);
  return points.flatMap((low, i): CodePoints => (i % 2 === 0 ? [[low, points[i + 1] ?? low]] : []));
}

export const lineBreaks: CodePoints = spans("\n\n\r\r\u2028\u2029");
export const digits: CodePoints = spans("09");
export const wordSigns: CodePoints = spans("09AZ__az");
/** WhiteSpace and LineTerminator of ECMAScript, which `\s` matches. */
export const spaces: CodePoints = spans(
  "\t\r  \u00a0\u00a0\u1680\u1680\u2000\u200a\u2028\u2029\u202f\u202f\u205f\u205f\u3000\u3000\ufeff\ufeff",
);

/** The set of all characters in these ranges, which may overlap and be in any order. */
export function setOf(ranges: CodePoints): CodePoints {
  if (ranges.length < 2) return ranges;
  const merged: [number, number][] = [];
  for (const [low, high] of ranges.toSorted((a, b) => a[0] - b[0])) {
    const last = merged.at(-1);
    if (last !== undefined && low <= last[1] + 1) last[1] = Math.max(last[1], high);
    else merged.push([low, high]);
  }
  return merged;
}

/** All characters that are not in the set. */
export function without(set: CodePoints): CodePoints {
  const left: [number, number][] = [];
  let from = 0;
  for (const [first, last] of [...set, [lastCodePoint + 1, lastCodePoint + 1] as const]) {
    // Adds the gap before this range, without the surrogates.
    for (const [low, high] of any) {
      const [start, end] = [Math.max(from, low), Math.min(first - 1, high)];
      if (start <= end) left.push([start, end]);
    }
    from = last + 1;
  }
  return left;
}
