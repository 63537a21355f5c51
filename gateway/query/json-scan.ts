/** What every look at JSON text before its parser has in common: its signs, and where a string ends. */
export const jsonSigns = {
  quote: 0x22,
  comma: 0x2c,
  openBracket: 0x5b,
  closeBracket: 0x5d,
  openBrace: 0x7b,
  closeBrace: 0x7d,
} as const;

const backslash = 0x5c;

/**
 * Index of the quote that ends the string; the end of the text when there is none. Skips with indexOf, as most bytes are
 * in strings.
 * @param start index behind the quote that begins it
 */
export function endOfString(text: string, start: number): number {
  let end = text.indexOf('"', start);
  while (end >= 0) {
    let backslashes = 0;
    while (text.charCodeAt(end - 1 - backslashes) === backslash && end - 1 - backslashes >= start) backslashes += 1;
    if (backslashes % 2 === 0) return end;
    end = text.indexOf('"', end + 1);
  }
  return text.length;
}
