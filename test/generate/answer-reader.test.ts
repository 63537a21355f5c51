import { expect, test } from "bun:test";
import { AnswerReader } from "../../gateway/generate/answer-reader.ts";
import { generate } from "../../gateway/generate/completion.ts";
import type { AnswerEvent, CompletionEvent } from "../../gateway/generate/events.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import { textSide } from "../text/models.ts";
import { toolModels } from "../text/tool-models.ts";

const model = toolModels.qwen;
const { tokenizer, template } = textSide(model);
const { calls: syntax } = template;
if (syntax === undefined) throw new Error("a template with tools");
const tokenBytes = new TokenBytes(model.tokenizer, syntax.signs);
const calls = { syntax, names: new Set(["clock"]), several: true, callsOnly: false };
const call = '\n{"name": "clock", "arguments": {"a": 1}}\n';
const asTemplate = (text: string) => [...tokenizer.encode([{ kind: "template", text }], false)];
const shown = (events: readonly AnswerEvent[]): string =>
  events.map((event) => (event.type === "call" ? `[${event.name}]` : event.text)).join("");

test("a character that stands for a token inside of us is none when the model writes it", () => {
  const reader = new AnswerReader(tokenBytes, { stops: [], calls });
  const { events } = reader.push([...tokenizer.encodeText(`\uFDD0${call}`)], undefined);
  expect(shown([...events, ...reader.end()])).toBe(`\uFFFD${call}`);
});

test("log-probabilities come with the first event of their tokens, whatever these are a part of", () => {
  const reader = new AnswerReader(tokenBytes, { stops: [], calls });
  const events = asTemplate(`x <tool_call>${call}</tool_call>`).flatMap((tokenId) => [
    ...reader.push([tokenId], [{ tokenId, logprob: -1, top: [] }]).events,
  ]);
  const told = events.flatMap((event) => (event.type === "text" ? event.logprobs : []));
  expect(told.map(({ tokenId }) => tokenId)).toEqual(asTemplate(`x <tool_call>${call}</tool_call>`));
  expect(shown(events)).toBe('x[clock]{"a": 1}');
});

test("an answer that is made again is read from its start", async () => {
  async function* events() {
    yield { type: "tokens", tokenIds: asTemplate(`<tool_call>${call.slice(0, 30)}`) };
    yield { type: "restarted" };
    yield { type: "tokens", tokenIds: asTemplate(`<tool_call>${call}</tool_call>`) };
    yield { type: "finished", reason: "stop", usage: { completionTokens: 9 } };
  }
  const dispatcher = { submit: () => events() } as unknown as Parameters<typeof generate>[0];
  const input = { stops: [], calls, signal: new AbortController().signal } as unknown as Parameters<typeof generate>[2];
  const read: CompletionEvent[] = [];
  for await (const event of generate(dispatcher, tokenBytes, input)) read.push(event);
  const again = read.slice(read.findIndex(({ type }) => type === "restart") + 1);
  const parts = again.filter((event): event is AnswerEvent => event.type !== "end" && event.type !== "restart");
  expect(shown(parts)).toBe('[clock]{"a": 1}');
  expect(again.at(-1)).toMatchObject({ type: "end", reason: "stop" });
});
