import { expect, test } from "bun:test";
import type { ModelText } from "../../gateway/text/model-text.ts";
import { openingTokenIds } from "../../gateway/text/tokenizer.ts";

const template = {
  type: "TemplateProcessing",
  single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
  special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } },
};
const added = { id: 7, content: "<bos>", special: true, lstrip: false, rstrip: false };

function opening(postProcessor: unknown, config: object = {}): readonly number[] {
  const tokenizer = { added_tokens: [added], model: { vocab: {} }, post_processor: postProcessor };
  return openingTokenIds({ tokenizer, config } as unknown as Pick<ModelText, "tokenizer" | "config">);
}

test("what a template puts in front of the text, also within a sequence of processors", () => {
  expect(opening(template)).toEqual([1]);
  expect(opening({ type: "Sequence", processors: [{ type: "ByteLevel" }, template] })).toEqual([1]);
});

test("what stands behind the text, or in no template, opens nothing", () => {
  expect(opening({ ...template, single: template.single.toReversed() })).toEqual([]);
  expect(opening({ type: "ByteLevel" })).toEqual([]);
  expect(opening(null)).toEqual([]);
  expect(opening(undefined)).toEqual([]);
});

test("add_bos_token has the last word", () => {
  expect(opening(template, { add_bos_token: false })).toEqual([]);
  expect(opening(null, { add_bos_token: true, bos_token: "<bos>" })).toEqual([7]);
  expect(opening(null, { add_bos_token: true, bos_token: "<other>" })).toEqual([]);
  expect(opening(template, { add_bos_token: true, bos_token: "<bos>" })).toEqual([1]);
});
