/** Scans JSON text before it is parsed: the characters that matter, and where a string ends. */
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
 * Index of the quote that ends a string; the text's length if there is none. It uses indexOf, which is fast, since most
 * bytes are in strings.
 * @param start index behind the quote that begins the string
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

/** Finds where strings end in a text that comes in pieces. */
export class StringScan {
  /** Whether the last piece ended inside a string. */
  inString = false;
  /** Whether the last piece ended in a backslash, which escapes the next character. */
  #escaped = false;

  /**
   * @param start index behind the quote that begins the string; 0 where the string continues from the last piece
   * @returns index of the quote that ends the string; the piece's length where the string continues in the next one
   */
  end(piece: string, start: number): number {
    if (piece === "") return 0;
    const first = this.#escaped ? start + 1 : start;
    const end = endOfString(piece, first);
    this.inString = end === piece.length;
    let backslashes = 0;
    while (this.inString && end - 1 - backslashes >= first && piece.charCodeAt(end - 1 - backslashes) === backslash) {
      backslashes += 1;
    }
    this.#escaped = backslashes % 2 === 1;
    return end;
  }
}
