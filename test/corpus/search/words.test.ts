/** Looking for words finds those that `wordsOf` gives, in ASCII and beyond it. */
import { expect, test } from "bun:test";
import { WordSearch, wordsOf } from "../../../gateway/corpus/search/words.ts";
import { fc } from "../../support/fast-check.ts";

const part = fc.constantFrom(
  ..."a b Ab abc ABCDEFGH abcdefxyz abcdef1 1 12 123 1,234 1.5 1'000 007a , . ' - \n".split(" "),
  ...["  ", "é", "ÄPFEL", "東京都", "١٢", "K", "naïve", ""],
);
const text = fc.array(part, { maxLength: 12 }).chain((parts) => {
  return fc.constantFrom("", " ", ".").map((between) => parts.join(between));
});

test("the words of any text, among any that are wanted", () => {
  const property = fc.property(text, fc.array(text, { maxLength: 3 }), fc.boolean(), (held, others, all) => {
    const wanted = new Set([...others.flatMap(wordsOf), ...(all ? wordsOf(held) : [])]);
    const words = new Set(wordsOf(held).filter((word) => wanted.has(word)));
    expect(new WordSearch(wanted).in(held)).toEqual(words);
  });
  fc.assert(property, { numRuns: 2_000 });
});

test("words by their stems, numbers as they are", () => {
  const held = "Mountains: 1,234 of 12.5; x2, an éclair. 東京都";
  expect(wordsOf(held)).toEqual(["mounta", "1234", "12.5", "x2", "éclair", "東京", "京都"]);
  const search = new WordSearch(new Set(["mounta", "1234", "x2", "eclair"]));
  expect([...search.in("The MOUNTAIN, 1234 and X2")]).toEqual(["mounta", "1234", "x2"]);
  expect([...search.in("mount, 123 and x")]).toEqual([]);
});
