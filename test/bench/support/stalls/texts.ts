/** Long texts, and many of a thing. */

export const mib = 1024 * 1024;

export const times = <Item>(count: number, make: (index: number) => Item): Item[] =>
  Array.from({ length: count }, (_, index) => make(index));

/** Plain sentences of so many characters, none like another. */
export function prose(chars: number, seed = 1): string {
  const words: string[] = [];
  let length = 0;
  for (let at = seed * 7_919; length < chars; at++) {
    const word = vocabulary[(at * 31 + (at >> 3)) % vocabulary.length] ?? "the";
    words.push(at % 11 === 10 ? `${word} ${at % 9_973}.` : word);
    length += (words.at(-1)?.length ?? 0) + 1;
  }
  return words.join(" ").slice(0, chars);
}

const vocabulary =
  "the archive of every river holds a letter that Anna wrote to Tom about seven ships in harbour fog while winter bread and salt were sold by old men under bright lamps near quiet stone houses".split(
    " ",
  );
