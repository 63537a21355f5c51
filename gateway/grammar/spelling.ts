/** Spells characters as they stand in a JSON string, in ranges of bytes. */
import { byteRange, type GrammarSymbol } from "../../worker/contract/grammar.ts";
import { type Alternative, type GrammarBuilder, literal } from "./builder.ts";
import type { CodePoints } from "./code-points.ts";

const shortEscapes: Readonly<Record<number, string>> = {
  8: "\\b",
  9: "\\t",
  10: "\\n",
  12: "\\f",
  13: "\\r",
  34: '\\"',
  92: "\\\\",
};

/** One character of the set. Each has exactly one spelling: UTF-8, or an escape where JSON requires one. */
export function character(it: GrammarBuilder, set: CodePoints): GrammarSymbol {
  it.budget.spend("looks", set.length);
  return it.shared(`characters ${set.join(" ")}`, () =>
    byFirstByte(
      it,
      set.flatMap(([low, high]) => spelled(low, high)),
    ),
  );
}

/** Groups spellings by their first byte. The first bytes of any two spellings are the same range, or do not overlap. */
function byFirstByte(it: GrammarBuilder, spellings: readonly Alternative[]): readonly Alternative[] {
  it.budget.spend("looks", spellings.length);
  return Array.from(
    Map.groupBy(spellings, ([first]) => first),
    ([first, same]): Alternative => {
      const [only = []] = same;
      if (same.length === 1 || first === undefined) return only;
      return [
        first,
        it.rule(
          byFirstByte(
            it,
            same.map((spelling) => spelling.slice(1)),
          ),
        ),
      ];
    },
  );
}

function spelled(low: number, high: number): readonly Alternative[] {
  const alternatives: Alternative[] = [];
  let from = low;
  for (let codePoint = low; codePoint <= Math.min(high, 0x5c); codePoint++) {
    if (codePoint >= 0x20 && shortEscapes[codePoint] === undefined) continue;
    if (codePoint > from) alternatives.push(...utf8(from, codePoint - 1));
    alternatives.push(literal(shortEscapes[codePoint] ?? `\\u00${codePoint.toString(16).padStart(2, "0")}`));
    from = codePoint + 1;
  }
  return from <= high ? [...alternatives, ...utf8(from, high)] : alternatives;
}

/** The greatest code points whose UTF-8 has one, two and three bytes. */
const lengthEnds = [0x7f, 0x7ff, 0xffff];

/** Sequences of byte ranges that spell exactly these code points. */
function utf8(low: number, high: number): readonly Alternative[] {
  const longer = lengthEnds.find((end) => low <= end && high > end);
  if (longer !== undefined) return [...utf8(low, longer), ...utf8(longer + 1, high)];
  const [lowBytes, highBytes] = [bytesOf(low), bytesOf(high)];
  for (let tail = 1; tail < lowBytes.length; tail++) {
    const mask = 2 ** (6 * tail) - 1;
    if ((low & ~mask) === (high & ~mask)) continue;
    if ((low & mask) !== 0) return [...utf8(low, low | mask), ...utf8((low | mask) + 1, high)];
    if ((high & mask) !== mask) return [...utf8(low, (high & ~mask) - 1), ...utf8(high & ~mask, high)];
  }
  return [lowBytes.map((byte, i) => byteRange(byte, highBytes[i] ?? byte))];
}

function bytesOf(codePoint: number): readonly number[] {
  const tail = (shift: number): number => 0x80 | ((codePoint >> shift) & 0x3f);
  if (codePoint <= 0x7f) return [codePoint];
  if (codePoint <= 0x7ff) return [0xc0 | (codePoint >> 6), tail(0)];
  if (codePoint <= 0xffff) return [0xe0 | (codePoint >> 12), tail(6), tail(0)];
  return [0xf0 | (codePoint >> 18), tail(12), tail(6), tail(0)];
}
