import { describe, expect, test } from "bun:test";
import { Tokenizer } from "@huggingface/tokenizers";
import { parseConfig } from "../../gateway/config.ts";
import { ByteLevelEncoder } from "../../gateway/text/byte-level.ts";
import { readModelText, type TokenizerJson } from "../../gateway/text/model-text.ts";
import { anyCodePoints } from "../support/code-points.ts";
import { fc } from "../support/fast-check.ts";
import { longestNormalizedRow, manyMarks } from "../support/normalized.ts";
import { yieldsDuring } from "../support/yields.ts";
import { byteLevelTokenizer } from "./models.ts";

const demo = readModelText(parseConfig({}).modelDir);
const bytes = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false };
const ownPattern = { ...bytes, use_regex: true };
const digits = (individual: boolean) => ({ type: "Digits", individual_digits: individual });
const split = (Regex: string) => ({ type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false });
const sequence = (...pretokenizers: object[]) => ({ type: "Sequence", pretokenizers });

/** The demo's vocabulary under the pre-tokenizers and flags of other models. */
const changed = (changes: object, model: object = {}): TokenizerJson => ({
  ...demo.tokenizer,
  added_tokens: [],
  ...changes,
  model: { ...demo.tokenizer.model, ...model },
});
const tokenizers: Readonly<Record<string, TokenizerJson>> = {
  "the demo's": changed({}),
  "few merges, three digits a word": { ...byteLevelTokenizer([]), added_tokens: [] },
  "GPT-2's pattern": changed({ pre_tokenizer: ownPattern }),
  "digits alone, then GPT-2's pattern": changed({ pre_tokenizer: sequence(digits(true), ownPattern) }),
  "several patterns": changed({
    pre_tokenizer: sequence(split("\\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split("\\s?\\p{L}+|\\s+"), bytes),
  }),
  "no pattern": changed({ pre_tokenizer: bytes }),
  "a normalizer": changed({ normalizer: { type: "NFC" } }),
  "merges ignored for whole tokens": changed({}, { ignore_merges: true }),
};

const build = (json: TokenizerJson): Tokenizer => new Tokenizer(json, {});
const encoderOf = (json: TokenizerJson) => ByteLevelEncoder.of(build(json), { tokenizer: json, config: {} });
const libraryIds = (tokenizer: Tokenizer, text: string) => tokenizer.encode(text, { add_special_tokens: false }).ids;

const units = ["the", "Anna's", "'ll", " ", "  ", "\n", "\r\n", "\t", ",", ". ", "’", '"', "1", "2024", "é", "e\u0301"];
const rare = [
  "世界",
  "，",
  "😀",
  "𝒳",
  "_",
  "\ud83d",
  "\ufeff",
  "\u0000",
  "�",
  "İ",
  "ﬁ",
  "abcdefghij".repeat(7),
  " zq".repeat(40),
];
const unit = fc.constantFrom(...units, ...rare);
const text = fc.oneof(fc.string({ unit, maxLength: 60 }), anyCodePoints({ maxLength: 200 }));

describe.each(Object.entries(tokenizers))("%s", (_name, json) => {
  const library = build(json);
  const encoder = encoderOf(json);

  test("of equal pairs the leftmost is merged first", () => {
    const rows = ["a", "e", "o", "s", "t", "l", "0", "-", "=", " ", "\n", "é", "th", "in"];
    for (const row of rows.flatMap((unit) => [3, 5, 7, 9, 11].map((count) => unit.repeat(count)))) {
      expect([...(encoder?.encode(row) ?? [])]).toEqual(libraryIds(library, row));
    }
  });

  test("any text has the library's ids, at once and in slices", async () => {
    if (encoder === undefined) throw new Error("the tokenizer is not taken");
    await fc.assert(
      fc.asyncProperty(text, async (written) => {
        const ids = libraryIds(library, written);
        expect([...encoder.encode(written)]).toEqual(ids);
        expect([...(await encoder.encodeInSlices(written))]).toEqual(ids);
      }),
      { numRuns: 300 },
    );
  });
});

const prefixed = { ...bytes, add_prefix_space: true };
const removed = { ...split("\\s+"), behavior: "Removed" };
test.each([
  ["a space before the text", changed({ pre_tokenizer: prefixed }), {}],
  ["a part that removes something", changed({ pre_tokenizer: sequence(removed, bytes) }), {}],
  ["a part of another kind", changed({ pre_tokenizer: sequence({ type: "Punctuation" }, bytes) }), {}],
  ["no byte level", changed({ pre_tokenizer: split("\\s+") }), {}],
  ["another normalizer", changed({ normalizer: { type: "NFKC" } }), {}],
  ["an end of words", changed({}, { end_of_word_suffix: "</w>" }), {}],
  ["a merge that is no token", changed({}, { merges: [["Ġ", "☃"]] }), {}],
  ["lowered letters", changed({}), { do_lowercase_and_remove_accent: true }],
])("%s stays the library's", (_name, json, config) => {
  const tokenizer = new Tokenizer({ ...json, model: { ...json.model } }, config);
  expect(ByteLevelEncoder.of(tokenizer, { tokenizer: json, config })).toBeUndefined();
});

test("a long word gives way to other work", async () => {
  const encoder = encoderOf(tokenizers["the demo's"] as TokenizerJson);
  const { yields } = await yieldsDuring(async () => void (await encoder?.encodeInSlices("abcdefghij".repeat(6_000))));
  expect(yields).toBeGreaterThan(20);
});

test("a row of marks that no language has is parted before it is put in order", async () => {
  const json = tokenizers["a normalizer"] ?? demo.tokenizer;
  expect(await longestNormalizedRow(() => encoderOf(json)?.encode(manyMarks(2_000)))).toBe(30);
});
