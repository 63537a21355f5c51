/** A bound on thinking: its end is drawn when the tokens are used up, and nowhere else. */
import { expect, test } from "bun:test";
import type { SubmitMessage, ThinkingLimit } from "../../worker/contract/messages.ts";
import { planFault } from "../../worker/contract/validate.ts";
import { ThinkingConstraint } from "../../worker/sample/thinking-constraint.ts";
import { TokenTrie } from "../../worker/sample/token-trie.ts";

/** Token i is byte i; token 256 is both bytes of the closer, token 257 has none. */
const [open, close] = [0xf8, 0xf9];
const bytes = Uint8Array.from([...Array.from({ length: 256 }, (_, byte) => byte), 0x21, close]);
const ends = Int32Array.from([...Array.from({ length: 256 }, (_, byte) => byte + 1), 258, 258]);
const trie = new TokenTrie({ bytes, ends });
const letters = (text: string): number[] => [...new TextEncoder().encode(text)];

const limit = (more: Partial<ThinkingLimit> = {}): ThinkingLimit => ({
  opener: Uint8Array.of(open),
  closer: Uint8Array.of(close),
  maxTokens: 4,
  endTokenIds: Int32Array.of(10, close, 10),
  ...more,
});

/** Draws what is wanted, or what has to come, and answers with all that was drawn. */
function drawn(given: ThinkingLimit, wanted: readonly number[]): readonly number[] {
  const constraint = new ThinkingConstraint(given, trie, 258, undefined);
  const tokens: number[] = [];
  const left = [...wanted];
  while (left.length > 0) {
    const allowed = [...constraint.mask()].flatMap((word, at) =>
      Array.from({ length: 32 }, (_, bit) => at * 32 + bit).filter((_, bit) => ((word >> bit) & 1) === 1),
    );
    const next = allowed.length === 1 ? allowed[0] : left.shift();
    if (next === undefined) throw new Error("no token");
    constraint.accept(next);
    tokens.push(next);
  }
  return tokens;
}

test("thinking that takes too long is ended once, with all tokens of its end, wherever it began", () => {
  const long = letters("abcdefgh");
  expect(drawn(limit(), [open, ...long])).toEqual([open, ...letters("abc"), 10, close, 10, ...letters("defgh")]);
  const begun = limit({ opener: new Uint8Array(0) });
  expect(drawn(begun, long)).toEqual([...letters("abcd"), 10, close, 10, ...letters("efgh")]);
  expect(drawn({ ...begun, maxTokens: 0 }, long)).toEqual([10, close, 10, ...long]);
  // White space before the opener is no answer.
  expect(drawn(limit(), [10, 32, open, ...long])).toEqual([10, 32, open, 97, 10, close, 10, ...letters("bcdefgh")]);
});

test("thinking that ends in time, and an answer without any, are left alone", () => {
  for (const wanted of [
    [open, 97, close, ...letters("answers go on")],
    [open, 97, 256, ...letters("answers go on")],
    letters("an answer, and no thinking"),
    [97, open, ...letters("too late to begin")],
  ]) {
    expect(drawn(limit(), wanted)).toEqual(wanted);
  }
});

test("a mark of several bytes is met across tokens", () => {
  const words = limit({ opener: Uint8Array.from(letters("<t>")), closer: Uint8Array.from(letters("</t>")) });
  const short = { ...words, maxTokens: 8 };
  expect(drawn(short, letters("<t>a</t>bcdefgh"))).toEqual(letters("<t>a</t>bcdefgh"));
  expect(drawn(short, letters("<t>abcd</efgh"))).toEqual([...letters("<t>abcd<"), 10, close, 10, ...letters("/efgh")]);
  expect(drawn(short, letters("<tabcdefghijk"))).toEqual(letters("<tabcdefghijk"));
});

test("what no worker should be sent is refused by name", () => {
  const shape = { vocabSize: 258, contextTokens: 64, blockTokens: 16 };
  const fault = (thinking: unknown): string | undefined => {
    const sampling = { temperature: 0, topP: 1, topK: 0, minP: 0, presencePenalty: 0, frequencyPenalty: 0 };
    const params = { maxTokens: 4, minTokens: 0, ignoreEos: false, stopTokenIds: [], thinking };
    const more = { repetitionPenalty: 1, seed: 1, logitBias: [], topLogprobs: -1 };
    const tokenIds = Int32Array.of(1);
    const run = { kind: "main", tokenIds, position: 0, sees: [], blockKeys: [], rootKey: "0".repeat(32) };
    const message = { type: "submit", requestId: "r", plan: { runs: [run] }, reuse: true };
    return planFault(
      { ...message, params: { ...params, sampling: { ...sampling, ...more } } } as unknown as SubmitMessage,
      shape,
    );
  };
  expect(fault(limit())).toBeUndefined();
  expect(fault(limit({ closer: new Uint8Array(0) }))).toContain("thinking.closer");
  expect(fault(limit({ closer: new Uint8Array(1_000) }))).toContain("thinking.closer");
  expect(fault({ ...limit(), opener: [1] })).toContain("a mark of thinking");
  expect(fault(limit({ maxTokens: -1 }))).toContain("thinking.maxTokens");
  expect(fault(limit({ endTokenIds: Int32Array.of(258) }))).toContain("thinking.endTokenIds");
  expect(fault(limit({ endTokenIds: new Int32Array(0) }))).toContain("thinking.endTokenIds");
});
