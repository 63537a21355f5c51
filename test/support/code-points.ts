/** Texts of any code points, as fast-check's unit "binary" is: that one lists all 1.1 million of them first, for a second. */
import { fc } from "./fast-check.ts";

const surrogates = { first: 0xd800, count: 0x800 };

const toText = (index: number): string =>
  String.fromCodePoint(index < surrogates.first ? index : index + surrogates.count);

function toIndex(text: unknown): number {
  const codePoint = typeof text === "string" ? text.codePointAt(0) : undefined;
  if (codePoint === undefined || String.fromCodePoint(codePoint) !== text) throw new Error("not one code point");
  return codePoint < surrogates.first ? codePoint : codePoint - surrogates.count;
}

const codePoint = fc.integer({ min: 0, max: 0x10ffff - surrogates.count }).map(toText, toIndex);

/** Whole code points, so no half of a surrogate pair. Names that objects have are among the texts. */
export const anyCodePoints = (lengths: { readonly minLength?: number; readonly maxLength?: number } = {}) =>
  fc.string({ ...lengths, unit: codePoint });
