import { expect, test } from "bun:test";
import { Tokenizer } from "@huggingface/tokenizers";
import { parseConfig } from "../../gateway/config.ts";
import { BytePairs, pairsPerStep } from "../../gateway/text/byte-pairs.ts";
import { LongWords } from "../../gateway/text/long-words.ts";
import { readModelText } from "../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { fc } from "../support/fast-check.ts";
import { yieldsDuring } from "../support/yields.ts";
import { models } from "./models.ts";

const demo = readModelText(parseConfig({}).modelDir);
const mine = "bWluZQ==" as CacheSalt;
const library = () => new Tokenizer(demo.tokenizer, demo.config);
const pairsOf = ({ model }: Tokenizer) => (model as unknown as { merges: [string, string][] }).merges;
const idsOf = (tokenizer: Tokenizer, text: string) => tokenizer.encode(text, { add_special_tokens: false }).ids;

function drained<Result>(steps: Generator<void, Result>): { result: Result; steps: number } {
  for (let count = 0; ; count++) {
    const { done, value } = steps.next();
    if (done) return { result: value, steps: count };
  }
}

/** Letters that no place to cut stands between. */
function letters(count: number, seed: number): string {
  let state = seed;
  return Array.from({ length: count }, () => {
    state = (state * 1_103_515_245 + 12_345) % 2 ** 31;
    return String.fromCharCode(97 + ((state >> 16) % 26));
  }).join("");
}

const letter = fc.constantFrom("a", "e", "h", "i", "n", "r", "s", "t", "th", "the", "ing", "zz", "é", "世", "😀");

test("any word has the library's tokens", () => {
  const own = library();
  const theirs = own.model as unknown as { bpe(word: string): string[] };
  const pairs = new BytePairs(pairsOf(own));
  fc.assert(
    fc.property(fc.string({ unit: letter, maxLength: 120 }), (word) => {
      expect(drained(pairs.split(word)).result).toEqual(theirs.bpe(word));
    }),
    { numRuns: 500 },
  );
});

test.each([
  ["random letters", letters(3_000, 7)],
  ["one letter", "a".repeat(2_001)],
  ["one token", "the".repeat(700)],
  ["beyond the first plane", "😀世".repeat(300)],
])("long words of %s are encoded as the library encodes them, at once and in slices", async (_name, word) => {
  const text = `An ${word} is here. ${word}`;
  const expected = idsOf(library(), text);
  const ours = library();
  const longWords = new LongWords(ours);
  expect(idsOf(ours, text)).toEqual(expected);
  expect(await longWords.inSlices(() => idsOf(ours, text))).toEqual(expected);
});

test("no step of a word does more than its share, whatever the word", () => {
  const pairs = new BytePairs(pairsOf(library()));
  for (const word of [letters(60_000, 3), "a".repeat(60_000)]) {
    expect(drained(pairs.split(word)).steps).toBeGreaterThanOrEqual(Math.floor(60_000 / pairsPerStep));
  }
});

test("letters in a row give way to other work", async () => {
  const tokenizer = new TextTokenizer(demo, { cacheBytes: 1_000_000 });
  const pieces = [{ kind: "content" as const, text: letters(60_000, 5) }];
  expect((await yieldsDuring(() => tokenizer.warm(pieces, true, mine, { chars: 0 }))).yields).toBeGreaterThan(20);
  expect(tokenizer.encode(pieces, true, mine).length).toBeGreaterThan(10_000);
});

test("a tokenizer that cannot be cut gives way within its text too", async () => {
  // Its normalizer makes a whole text one word, as those of Llama 2 and Mistral do.
  const { tokenizer: json } = models.chatml;
  const whole = { ...json, pre_tokenizer: { type: "ByteLevel", add_prefix_space: true, use_regex: false } };
  const tokenizer = new TextTokenizer({ ...models.chatml, tokenizer: whole }, { cacheBytes: 1_000_000 });
  const text = "the thing in the row ".repeat(2_000);
  const pieces = [{ kind: "content" as const, text }];
  expect((await yieldsDuring(() => tokenizer.warm(pieces, true, mine, { chars: 0 }))).yields).toBeGreaterThan(20);
  const expected = new Tokenizer(whole, {}).encode(text, { add_special_tokens: false }).ids;
  expect([...tokenizer.encode(pieces, true, mine)]).toEqual(expected);
});

test("a text on its own is encoded in slices, and no further than asked for", async () => {
  const tokenizer = new TextTokenizer(demo, { cacheBytes: 1_000 });
  const text = `${"Anna Berg works in Oslo as a plumber, and her manager is Tom. ".repeat(1_000)}${letters(20_000, 9)}`;
  const whole = tokenizer.encodeText(text);
  const encoded = tokenizer.encodeInSlices(text);
  expect((await yieldsDuring(() => encoded)).yields).toBeGreaterThan(10);
  expect(await encoded).toEqual(whole);
  const start = tokenizer.encodeInSlices(text, 100);
  expect((await yieldsDuring(() => start)).yields).toBeLessThan(4);
  expect(await start).toEqual(whole.slice(0, 100));
  expect(await tokenizer.encodeInSlices("")).toHaveLength(0);
});
