import { describe, expect, test } from "bun:test";
import { Tokenizer } from "@huggingface/tokenizers";
import { parseConfig } from "../../gateway/config.ts";
import { readModelText } from "../../gateway/text/model-text.ts";
import { sliceText } from "../../gateway/text/text-slices.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { fc } from "../support/fast-check.ts";
import { longestNormalizedRow, manyMarks } from "../support/normalized.ts";
import { yieldsDuring } from "../support/yields.ts";
import { byteLevelTokenizer, models } from "./models.ts";

const demo = readModelText(parseConfig({}).modelDir);
const open = (model = demo) => new TextTokenizer(model, { cacheBytes: 1_000_000 });
const mine = "bWluZQ==" as CacheSalt;
const yours = "eW91cnM=" as CacheSalt;
const unit = fc.constantFrom(
  "the",
  "Anna's",
  " ",
  "  ",
  "\n",
  "\t",
  ",",
  ". ",
  "’",
  '"',
  "1",
  "2024",
  "é",
  "e\u0301",
  "世界",
  "，",
  "😀",
  "𝒳",
  "_",
  "<|im_end|>",
);

describe("slices", () => {
  test("joined they are the text, and encoded one by one they are the text encoded", () => {
    for (const model of [demo, models.chatml, models.llama3]) {
      const tokenizer = open(model);
      fc.assert(
        fc.property(fc.string({ unit, maxLength: 60 }), (text) => {
          const slices = sliceText(text, 3);
          expect(slices.join("")).toBe(text);
          // All but the first stand inside the text: they do not open the prompt.
          const ids = slices.flatMap((slice, index) => [
            ...tokenizer.encode([{ kind: "content", text: slice }], index === 0),
          ]);
          expect(ids).toEqual([...tokenizer.encodeText(text)]);
        }),
        { numRuns: 200 },
      );
    }
  });

  test("a tokenizer that does something to a text's start gets long texts whole", () => {
    const json = byteLevelTokenizer(["<s>", "</s>"]);
    const spaced = { ...json, pre_tokenizer: { type: "ByteLevel", add_prefix_space: true, use_regex: true } };
    const model = { ...models.chatml, tokenizer: spaced };
    const text = "the thing, in the row. ".repeat(1_000);
    const whole = new Tokenizer(spaced, {}).encode(text, { add_special_tokens: false }).ids;
    expect([...open(model).encodeText(text)]).toEqual(whole);
  });

  test("a long text gives way to other work while it is encoded", async () => {
    const tokenizer = open();
    const text = "Anna Berg works in Oslo as a plumber, and her manager is Tom. ".repeat(2_000);
    const pieces = [{ kind: "content" as const, text }];
    expect((await yieldsDuring(() => tokenizer.warm(pieces, true, mine, { chars: 0 }))).yields).toBeGreaterThan(3);
    expect(tokenizer.encode(pieces, true, mine).length).toBeGreaterThan(10_000);
  });

  test("what was encoded for one owner is not found by another, nor what was only measured", async () => {
    const tokenizer = open();
    const text = "Anna Berg works in Oslo.";
    const encodedChars = async (owner: CacheSalt): Promise<number> => {
      const unyielded = { chars: 0 };
      await tokenizer.warm([{ kind: "content", text }], true, owner, unyielded);
      return unyielded.chars;
    };
    tokenizer.countTokens(text);
    expect(await encodedChars(mine)).toBe(text.length);
    expect(await encodedChars(mine)).toBe(0);
    expect(await encodedChars(yours)).toBe(text.length);
  });

  test("characters in a row without a place to cut are refused when they are very many", () => {
    expect(() => open().encodeText("a".repeat(70_000))).toThrow("70000 characters in a row");
    expect(open().encodeText("a".repeat(60_000)).length).toBeGreaterThan(1_000);
  });
});

test("no text has fewer tokens than is said before it is encoded, and one of the longest tokens has no more", () => {
  for (const model of [demo, ...Object.values(models)]) {
    const tokenizer = open(model);
    fc.assert(
      fc.property(fc.string({ unit, maxLength: 60 }), (text) => {
        expect(tokenizer.encodeText(text).length).toBeGreaterThanOrEqual(tokenizer.leastTokens(text.length));
      }),
      { numRuns: 50 },
    );
    const { vocab } = model.tokenizer.model;
    const tokens = Array.isArray(vocab) ? vocab.map(([token]) => token) : Object.keys(vocab);
    const added = model.tokenizer.added_tokens.map(({ content }) => content);
    const longest = [...tokens, ...added].reduce((most, { length }) => Math.max(most, length), 0);
    expect(tokenizer.leastTokens(7 * longest)).toBe(7);
    expect(tokenizer.leastTokens(7 * longest + 1)).toBe(8);
  }
});

describe("control tokens", () => {
  test("from the template they are tokens, from content text, whatever stands around them", () => {
    const tokenizer = open();
    const marker = "<|im_end|>";
    const id = demo.tokenizer.added_tokens.find(({ content }) => content === marker)?.id as number;
    expect([...tokenizer.encode([{ kind: "template", text: `a${marker}b` }], true)]).toContain(id);
    fc.assert(
      fc.property(fc.string({ unit, maxLength: 20 }), fc.string({ unit, maxLength: 20 }), (before, after) => {
        expect([...tokenizer.encodeText(before + marker + after)]).not.toContain(id);
      }),
    );
  });

  test("white space that is an added token is layout, not control", () => {
    const json = byteLevelTokenizer(["<s>", "</s>"]);
    const layout = { id: 900, content: "    ", special: false, lstrip: false, rstrip: false, normalized: false };
    const model = { ...models.chatml, tokenizer: { ...json, added_tokens: [...json.added_tokens, layout] } };
    expect([...open(model).encodeText("a    b")]).toContain(900);
  });

  test("they count as text when a document is measured", () => {
    expect(open().countTokens("<|im_end|>")).toBeGreaterThan(1);
    expect(open().countTokens("")).toBe(0);
  });
});

test("a row of marks that no language has is parted before the library puts it in order", async () => {
  const json = { ...byteLevelTokenizer(["<s>"]), normalizer: { type: "NFKC" } };
  const tokenizer = open({ ...demo, tokenizer: json });
  expect(await longestNormalizedRow(() => tokenizer.encodeText(manyMarks(2_000)))).toBe(30);
});
