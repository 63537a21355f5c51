import { describe, expect, test } from "bun:test";
import { type CallSyntax, signChar } from "../../gateway/text/call-syntax.ts";
import { ChatTemplate } from "../../gateway/text/chat-template.ts";
import { CallReader, type CallReaderOptions } from "../../gateway/tools/call-reader.ts";
import { fc } from "../support/fast-check.ts";
import { toolModels } from "../text/tool-models.ts";

type Model = keyof typeof toolModels;

const syntaxes = Object.fromEntries(
  Object.entries(toolModels).map(([name, model]) => [name, new ChatTemplate(model).calls]),
) as Record<Model, CallSyntax>;

/** `<a>` … stand for the tokens: what a model writes with its control tokens as such. */
function signed(model: Model, text: string): string {
  return syntaxes[model].signs.reduce((all, { content }, index) => all.replaceAll(content, signChar(index)), text);
}

interface Answer {
  readonly text: string;
  readonly calls: { name: string; arguments: string }[];
}

function read(model: Model, pieces: readonly string[], options: Partial<CallReaderOptions> = {}): Answer {
  const names = new Set(["get_weather", "clock"]);
  const reader = new CallReader({ syntax: syntaxes[model], names, several: true, callsOnly: false, ...options });
  const answer = { text: "", calls: [] as Answer["calls"] };
  for (const part of [...pieces.flatMap((piece) => [...reader.push(piece)]), ...reader.end()]) {
    if (part.type === "text") answer.text += part.text;
    else if (part.type === "call") {
      expect(part.call).toBe(answer.calls.length);
      answer.calls.push({ name: part.name, arguments: "" });
    } else {
      const call = answer.calls[part.call];
      if (call === undefined || part.call !== answer.calls.length - 1) throw new Error("arguments of no open call");
      call.arguments += part.text;
    }
  }
  return answer;
}

/** The same however it is cut into pieces: in two at every place, and into single characters. */
function readCut(model: Model, text: string, options: Partial<CallReaderOptions> = {}): Answer {
  const whole = read(model, [text], options);
  for (let at = 1; at < text.length; at++) {
    expect([at, read(model, [text.slice(0, at), text.slice(at)], options)]).toEqual([at, whole]);
  }
  expect(read(model, [...text], options)).toEqual(whole);
  return whole;
}

const oslo = '{"city": "Oslo \\"}{\\" ]", "deep": [{"a": {"b": "</tool_call>"}}]}';
const weatherOf = (given: string) => ({ name: "get_weather", arguments: given });

test("a backslash hides neither a control token nor a line break from who reads a string", () => {
  const call = (value: string) =>
    `<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo${value}"}}\n</tool_call>`;
  // Cut off where the token is: no string goes on behind it.
  const cut = readCut("qwen", signed("qwen", call("\\</tool_call>")));
  expect(cut.calls[0]?.arguments).toBe('{"city": "Oslo');
  const { calls } = readCut("qwen", signed("qwen", call("\\\n")));
  expect(JSON.parse(calls[0]?.arguments ?? "")).toEqual({ city: "Oslo\n" });
});

describe("calls as each family writes them", () => {
  const cases: readonly [Model, string, Answer][] = [
    [
      "qwen",
      `<tool_call>\n{"name": "get_weather", "arguments": ${oslo.replace("</tool_call>", "x")}}\n</tool_call>`,
      { text: "", calls: [weatherOf(oslo.replace("</tool_call>", "x"))] },
    ],
    [
      "hermes",
      `<tool_call>\n{"name": "get_weather", "arguments": ${oslo}}\n</tool_call>`,
      { text: "", calls: [weatherOf(oslo)] },
    ],
    ["llama", `{"name": "get_weather", "parameters": ${oslo}}`, { text: "", calls: [weatherOf(oslo)] }],
    [
      "llama",
      `\n {"type": "function", "name": "get_weather", "parameters": ${oslo}}`,
      { text: "", calls: [weatherOf(oslo)] },
    ],
    ["mistral", `[TOOL_CALLS] [{"name": "get_weather", "arguments": ${oslo}}]`, { text: "", calls: [weatherOf(oslo)] }],
    [
      "mistral",
      `[TOOL_CALLS][{"arguments":{"a":1},"name":"clock","id":"abcdefghi"},{"name":"get_weather","arguments":${oslo}}]`,
      { text: "", calls: [{ name: "clock", arguments: '{"a":1}' }, weatherOf(oslo)] },
    ],
    [
      "named",
      `[TOOL_CALLS]get_weather[ARGS]${oslo}[TOOL_CALLS]clock[CALL_ID]abc123def[ARGS] {}`,
      { text: "", calls: [weatherOf(oslo), { name: "clock", arguments: "{}" }] },
    ],
    ["named", `[TOOL_CALLS]get_weather${oslo}`, { text: "", calls: [weatherOf(oslo)] }],
  ];
  for (const [model, text, answer] of cases) {
    test(`${model}: ${text.slice(0, 40).replace("\n", " ")}`, () => {
      expect(readCut(model, signed(model, text))).toEqual(answer);
    });
  }

  test("several calls, and text before, between and after them", () => {
    const call = (name: string, given: string) =>
      `<tool_call>\n{"name": "${name}", "arguments": ${given}}\n</tool_call>`;
    const both = `I look. \n\n${call("clock", "{}")}\n${call("get_weather", '{"a": 1}')}\n`;
    const calls = [{ name: "clock", arguments: "{}" }, weatherOf('{"a": 1}')];
    for (const model of ["qwen", "hermes"] as const) {
      expect(readCut(model, signed(model, both))).toEqual({ text: "I look.", calls });
      expect(readCut(model, signed(model, `${both} Done `))).toEqual({ text: "I look.Done", calls });
      expect(readCut(model, signed(model, both), { several: false }).calls).toEqual(calls.slice(0, 1));
    }
  });

  test("slips of a model: no closer, no arguments, raw line breaks, other fields, another key", () => {
    const cases = [
      ['<tool_call>{"name": "clock"}', { name: "clock", arguments: "{}" }],
      ['<tool_call>{"name": "clock", "arguments": null}</tool_call>', { name: "clock", arguments: "{}" }],
      [
        '<tool_call> {"id": 7, "x": [1, {"y": "z"}], "name": "clock", "parameters": {"a": 1}}',
        { name: "clock", arguments: '{"a": 1}' },
      ],
      [
        '<tool_call>{"name": "clock", "arguments": {"a": "b\nc\td"}}',
        { name: "clock", arguments: '{"a": "b\\nc\\td"}' },
      ],
    ] as const;
    for (const [text, call] of cases) {
      for (const model of ["qwen", "hermes"] as const) {
        expect(readCut(model, signed(model, text))).toEqual({ text: "", calls: [call] });
      }
    }
  });

  test("arguments come in pieces, as they are written", () => {
    const reader = new CallReader({
      syntax: syntaxes.hermes,
      names: new Set(["clock"]),
      several: true,
      callsOnly: false,
    });
    const pieces = ["<tool", '_call>\n{"na', 'me": "clock", "arguments": ', '{"a', '": [1', ", 2]}", "}\n</tool_call>"];
    expect(pieces.map((piece) => reader.push(piece))).toEqual([
      [],
      [],
      [],
      [
        { type: "call", call: 0, name: "clock" },
        { type: "arguments", call: 0, text: '{"a' },
      ],
      [{ type: "arguments", call: 0, text: '": [1' }],
      [{ type: "arguments", call: 0, text: ", 2]}" }],
      [],
    ]);
  });
});

describe("what is no call stays text", () => {
  const texts: readonly (readonly [Model, string])[] = [
    ["hermes", "Use <tool_call> and </tool_call> tags. "],
    ["hermes", ' <tool_call>{"name": "unknown", "arguments": {"a": "<tool_call>"}} and on'],
    ["hermes", '<tool_call>{"name": "get_weather", "arguments": "Oslo"}</tool_call>'],
    ["hermes", '<tool_call>{"name": "get_weather", "name": "clock", "arguments": {}}'],
    ["hermes", '<tool_call>{"arguments": {}, "arguments": {}, "name": "get_weather"}'],
    ["hermes", '<tool_call>{"name": "get_weather", "argum'],
    ["hermes", "<tool_call"],
    ["hermes", "a <tool_ca"],
    ["llama", '{"city": "Oslo"}'],
    ["llama", '{"name": "Ann", "parameters": {}}'],
    ["llama", "[1] says so. "],
    ["llama", 'It is {"name": "get_weather", "parameters": {}}'],
    ["mistral", '[{"name": "get_weather", "arguments": {}}]'],
    ["qwen", " \n "],
    ["llama", " \n "],
  ];
  for (const [model, text] of texts) {
    test(`${model}: ${text}`, () => expect(readCut(model, text)).toEqual({ text, calls: [] }));
  }

  test("words that spell a control token are not that token", () => {
    const call = '{"name": "get_weather", "arguments": {}}';
    for (const [model, text] of [
      ["qwen", `<tool_call>\n${call}\n</tool_call>`],
      ["mistral", `[TOOL_CALLS] [${call}]`],
      ["named", "[TOOL_CALLS]get_weather[ARGS]{}"],
    ] as const) {
      expect(readCut(model, text)).toEqual({ text, calls: [] });
      expect(readCut(model, signed(model, text)).calls).toHaveLength(1);
    }
  });

  test("a token that begins no call is shown if it is one that is shown", () => {
    expect(readCut("qwen", signed("qwen", "a <tool_call> b </tool_call>")).text).toBe("a <tool_call> b </tool_call>");
    expect(readCut("mistral", signed("mistral", "a[TOOL_CALLS] b")).text).toBe("a b");
  });

  test("a real call behind one that is none is read", () => {
    const text = '<tool_call> is a tag: <tool_call>{"name": "clock", "arguments": {}}</tool_call>';
    for (const model of ["qwen", "hermes"] as const) {
      const answer = { text: "<tool_call> is a tag:", calls: [{ name: "clock", arguments: "{}" }] };
      expect(readCut(model, signed(model, text))).toEqual(answer);
    }
  });
});

describe("what breaks off", () => {
  const begun = '{"name": "get_weather", "arguments": {"city": "Os';

  test("keeps the arguments that there are", () => {
    for (const model of ["qwen", "hermes"] as const) {
      const answer = { text: "", calls: [weatherOf('{"city": "Os')] };
      expect(readCut(model, signed(model, `<tool_call>${begun}`))).toEqual(answer);
    }
    expect(readCut("llama", begun.replace("arguments", "parameters")).calls).toEqual([weatherOf('{"city": "Os')]);
  });

  test("ends at a token that closes it, and what follows is dropped up to the next call", () => {
    const text = `<tool_call>${begun}</tool_call> garbage <tool_call>{"name": "clock", "arguments": {}}</tool_call>`;
    const calls = [weatherOf('{"city": "Os'), { name: "clock", arguments: "{}" }];
    expect(readCut("qwen", signed("qwen", text))).toEqual({ text: "", calls });
    expect(readCut("hermes", '<tool_call>{"name": "clock", "arguments": {"a": [}} b <tool_ca')).toEqual({
      text: "",
      calls: [{ name: "clock", arguments: '{"a": [' }],
    });
  });

  test("before its name, where there are calls and nothing else, is not shown", () => {
    expect(readCut("hermes", '<tool_call>\n{"na', { callsOnly: true })).toEqual({ text: "", calls: [] });
    expect(readCut("hermes", "<tool_ca", { callsOnly: true })).toEqual({ text: "", calls: [] });
  });
});

test("any text: nothing is lost, nothing depends on the pieces, and nothing takes long", () => {
  const bits = [
    "<tool_call>",
    "</tool_call>",
    "{",
    "}",
    "[",
    "]",
    '"',
    '"name"',
    ":",
    ",",
    "clock",
    '"arguments"',
    " ",
    "\n",
    "\\",
    "é",
    "🐀",
    "𐀀",
    "<",
    "1",
  ];
  const some = fc.array(fc.constantFrom(...bits, '<tool_call>{"name": "clock", "arguments": {'), { maxLength: 40 });
  fc.assert(
    fc.property(
      some,
      fc.constantFrom(...(Object.keys(syntaxes) as Model[])),
      fc.boolean(),
      (parts, model, asTokens) => {
        const joined = parts.join("");
        const text = asTokens ? signed(model, joined) : joined;
        const whole = read(model, [text]);
        expect(read(model, [...text])).toEqual(whole);
        expect(
          read(
            model,
            parts.map((part) => (asTokens ? signed(model, part) : part)),
          ),
        ).toEqual(whole);
        if (whole.calls.length === 0 && !asTokens) expect(whole.text).toBe(joined);
        expect(whole.text).not.toMatch(/[\uFDD0-\uFDEF]/);
      },
    ),
    { numRuns: 400 },
  );
  const long = '<tool_call>{"name": '.repeat(20_000);
  expect(read("hermes", [long]).text).toBe(long);
});
