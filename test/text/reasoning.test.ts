/** Marks of thinking found in templates, and thinking cut out of answers that come in any pieces. */
import { describe, expect, test } from "bun:test";
import { AnswerReader } from "../../gateway/generate/answer-reader.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import { Choices } from "../sim/random.ts";
import { models, textSide } from "./models.ts";
import { asksThinking, type ReasoningFamily, reasoningFamilies, reasoningModels, written } from "./reasoning-models.ts";

const sides = Object.fromEntries(
  reasoningFamilies.map((family) => {
    const model = reasoningModels[family];
    const { template, tokenizer } = textSide(model);
    return [family, { template, tokenizer, tokenBytes: new TokenBytes(model.tokenizer, template.signs) }];
  }),
) as Record<ReasoningFamily, ReturnType<typeof textSide> & { readonly tokenBytes: TokenBytes }>;

/** Reads an answer of this family, its control tokens as such, every other byte a token of its own. */
function readerOf(family: ReasoningFamily, stops: readonly string[] = []) {
  const { template, tokenBytes } = sides[family];
  const start = template.thinkingStart(false, asksThinking[family]);
  const { reasoning: syntax } = template;
  if (syntax === undefined) throw new Error("a family that marks its thinking");
  return new AnswerReader(tokenBytes, { stops, reasoning: { syntax, isOpen: start === "open" } });
}

/** Ids of control tokens, and of one byte each for all other text. */
function byteTokens(family: ReasoningFamily, text: string): readonly number[] {
  const { tokenizer, tokenBytes } = sides[family];
  const byteIds = new Map<number, number>();
  for (let id = 0; id < 400; id++) {
    const bytes = tokenBytes.of(id);
    if (bytes.length === 1 && bytes[0] !== undefined && !byteIds.has(bytes[0])) byteIds.set(bytes[0], id);
  }
  const ids = tokenizer.encode([{ kind: "template", text }], false);
  return [...ids].flatMap((id) => {
    const isControl = id < reasoningModels[family].tokenizer.added_tokens.length;
    return isControl ? [id] : [...tokenBytes.of(id)].map((byte) => byteIds.get(byte) ?? -1);
  });
}

const partsOf = (events: readonly { readonly type: string; readonly text?: string }[]) => {
  const of = (type: string) => events.map((event) => (event.type === type ? event.text : "")).join("");
  return { thinking: of("thinking"), text: of("text") };
};

test.each([
  ["qwen3", {}, "free"],
  ["qwen3", { enable_thinking: false }, "closed"],
  ["r1", {}, "open"],
  ["smollm3", {}, "free"],
  ["smollm3", { enable_thinking: false }, "closed"],
  ["granite", {}, "off"],
  ["granite", { thinking: true }, "free"],
  ["gptOss", { reasoning_effort: "high" }, "free"],
] as const)("%s with %p begins its answer with thinking %s", (family, variables, start) => {
  expect(sides[family].template.thinkingStart(false, variables)).toBe(start);
});

test("a template without marks has none, and one that opens thinking for good is refused by the mark's name", () => {
  expect(textSide(models.chatml).template.reasoning).toBeUndefined();
  const endless = `${models.chatml.chatTemplate}{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}`;
  expect(() => textSide({ ...models.chatml, chatTemplate: endless })).toThrow(
    "it opens thinking with <think>, and neither it nor the tokenizer has </think> to end it with",
  );
});

test("gpt-oss is told how much to think", () => {
  const side = sides.gptOss;
  const text = (variables: object) =>
    side.template
      .layout([{ role: "user", content: "x" }], [], false, variables as Record<string, string>)
      .head.concat(
        side.template.layout([{ role: "user", content: "x" }], [], false, variables as Record<string, string>).tail,
      )
      .map((part) => ("text" in part ? part.text : ""))
      .join("");
  expect(text({})).toContain("Reasoning: medium");
  expect(text({ reasoning_effort: "low" })).toContain("Reasoning: low");
});

const thoughts = ["Hm.", "", "a < b, so </thin\n\nnot </ think> yet", "ü — 你好 🙂\n", "it says `<response>`? No: {"];
const answers = ["Oslo.", "🙂 yes", "<b>x</b>", "  indented", '{"a": 1}', "x </respons", "Line\n\nend"];

describe.each(reasoningFamilies)("%s: thinking and answer are apart", (family) => {
  test("cut at every token, whatever comes together", () => {
    for (const thinking of thoughts) {
      for (const answer of answers) {
        const ids = byteTokens(family, written[family](thinking, answer));
        const whole = readerOf(family);
        const expected = { thinking: thinking.trim(), text: family === "gptOss" ? answer : answer.trimStart() };
        const read = partsOf([...whole.push(ids, undefined).events, ...whole.end()]);
        expect({ thinking: read.thinking.trim(), text: read.text }).toEqual(expected);
        for (let cut = 0; cut <= ids.length; cut++) {
          const reader = readerOf(family);
          const first = reader.push(ids.slice(0, cut), undefined).events;
          const second = [...reader.push(ids.slice(cut), undefined).events, ...reader.end()];
          expect(partsOf([...first, ...second])).toEqual(read);
        }
        const reader = readerOf(family);
        const each = ids.flatMap((id) => [...reader.push([id], undefined).events]);
        expect(partsOf([...each, ...reader.end()])).toEqual(read);
        expect(reader.reasoningTokens).toBe(whole.reasoningTokens);
        expect(reader.reasoningTokens).toBeGreaterThan(0);
        expect(reader.reasoningTokens).toBeLessThan(ids.length);
      }
    }
  });

  test("cut off anywhere, none of the marks is shown as the answer, and no answer as thinking", () => {
    const ids = byteTokens(family, written[family]("first this", "then that"));
    for (let end = 0; end <= ids.length; end++) {
      const reader = readerOf(family);
      const parts = partsOf([...reader.push(ids.slice(0, end), undefined).events, ...reader.end()]);
      // Granite's marks are words: the beginning of one may be text as well.
      const isWord = family === "granite";
      expect("first this".startsWith(isWord ? parts.thinking.replace(/<.*$/, "") : parts.thinking)).toBe(true);
      expect("then that".startsWith(isWord ? parts.text.replace(/<.*$/, "") : parts.text)).toBe(true);
    }
  });

  test("stops act in the answer alone, and log-probabilities are those of the answer", () => {
    const ids = byteTokens(family, written[family]("we STOP here", "go on STOP never"));
    const reader = readerOf(family, ["STOP"]);
    const told: number[] = [];
    let text = "";
    let stopped: string | undefined;
    for (const tokenId of ids) {
      const { events, stoppedBy } = reader.push([tokenId], [{ tokenId, logprob: -1, top: [] }]);
      for (const event of events) {
        if (event.type !== "text") continue;
        text += event.text;
        told.push(...event.logprobs.map((each) => each.tokenId));
      }
      stopped = stoppedBy;
      if (stopped !== undefined) break;
    }
    expect([text, stopped]).toEqual(["go on ", "STOP"]);
    expect(told).toEqual([...byteTokens(family, "go on STOP")]);
  });
});

test("an answer without thinking is shown as it is, at once", () => {
  for (const family of ["qwen3", "smollm3", "granite"] as const) {
    const reader = readerOf(family);
    const [first, ...rest] = byteTokens(family, "  Oslo.");
    const { events } = reader.push([first ?? -1, ...rest], undefined);
    expect([partsOf(events), reader.reasoningTokens]).toEqual([{ thinking: "", text: "  Oslo." }, 0]);
  }
});

test("words that look like a token's name neither begin nor end thinking", () => {
  const { tokenizer } = sides.qwen3;
  const quoted = [...tokenizer.encodeText("it writes </think> and <think>")];
  const reader = readerOf("qwen3");
  const [open, close] = ["<think>", "</think>"].map((mark) => [
    ...tokenizer.encode([{ kind: "template", text: mark }], false),
  ]);
  const ids = [...(open ?? []), ...quoted, ...(close ?? []), ...quoted];
  expect(partsOf([...reader.push(ids, undefined).events, ...reader.end()])).toEqual({
    thinking: "it writes </think> and <think>",
    text: "it writes </think> and <think>",
  });
});

test("random pieces of random marks: nothing throws, nothing depends on the pieces", () => {
  const random = new Choices(11);
  const bits = ["<think>", "</think>", "<response>", "</response>", " ", "\n", "a", "🙂", "<", "</think", "x</"];
  const signs = [
    "<|channel|>",
    "analysis",
    "final",
    "commentary to=functions.x",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    " to=",
  ];
  for (const family of reasoningFamilies) {
    for (let round = 0; round < 60; round++) {
      const from = family === "gptOss" ? [...signs, "a", " "] : bits;
      const text = Array.from({ length: random.int(0, 12) }, () => random.pick(from)).join("");
      const ids = byteTokens(family, text);
      const whole = readerOf(family);
      const read = partsOf([...whole.push(ids, undefined).events, ...whole.end()]);
      const reader = readerOf(family);
      const each = ids.flatMap((id) => [...reader.push([id], undefined).events]);
      expect([text, partsOf([...each, ...reader.end()])]).toEqual([text, read]);
    }
  }
});
