/**
 * Puts a text into Unicode's Stream-Safe Text Format (UAX #15, section 13) before it is normalized: after 30 combining
 * marks in a row stands a combining grapheme joiner. No language needs as many. Normalization sorts each row of marks in a
 * time that grows with the square of its length: a question of 16,000 marks would hold the event loop for a second.
 */

const longRow = /\p{M}{31}/u;
const fullRow = /\p{M}{30}(?=\p{M})/gu;
const joiner = "\u034f";

export const streamSafe = (text: string): string =>
  longRow.test(text) ? text.replace(fullRow, (row) => row + joiner) : text;
