/** Tools and calls of chat completions that cannot be taken: each is refused with its path, before anything runs. */
import { describe, expect, test } from "bun:test";
import { toolModels } from "../../text/tool-models.ts";
import { chatRig, post, question } from "../chat-rig.ts";
import { asked, parameters, tool } from "../chat-tools-request.ts";

describe("what is wrong is named", () => {
  const call = (fields: object = {}, called: object = {}) => ({
    id: "call_1",
    type: "function",
    function: { name: "clock", arguments: "{}", ...called },
    ...fields,
  });
  const said = (...messages: object[]) => ({ ...asked, messages: [...asked.messages, ...messages] });
  const calling = (...calls: object[]) => ({ role: "assistant", content: null, tool_calls: calls });
  const result = (id: unknown = "call_1") => ({ role: "tool", content: "x", tool_call_id: id });
  const forced = (properties: object) => ({
    ...asked,
    tool_choice: "required",
    tools: [tool(), tool({ name: "other", parameters: { ...parameters, properties, required: [] } })],
  });
  test.each([
    ["a tool of another type", { ...asked, tools: [{ type: "custom", custom: { name: "x" } }] }, "tools[0].type"],
    ["a tool without a function", { ...asked, tools: [{ type: "function" }] }, "tools[0].function"],
    ["a name with a space", { ...asked, tools: [tool({ name: "a b" })] }, "tools[0].function.name"],
    ["a name that is too long", { ...asked, tools: [tool({ name: "a".repeat(65) })] }, "tools[0].function.name"],
    ["a name twice", { ...asked, tools: [tool(), tool()] }, "tools[1].function.name"],
    [
      "parameters of no object",
      { ...asked, tools: [tool({ parameters: { type: "string" } })] },
      "tools[0].function.parameters.type",
    ],
    ["parameters that are none", { ...asked, tools: [tool({ parameters: [] })] }, "tools[0].function.parameters"],
    [
      "too long a description",
      { ...asked, tools: [tool({ description: "x".repeat(16_385) })] },
      "tools[0].function.description",
    ],
    [
      "too large a schema",
      { ...asked, tools: [tool({ parameters: { ...parameters, title: "x".repeat(65_536) } })] },
      "tools[0].function.parameters",
    ],
    [
      "too much of all",
      {
        ...asked,
        tools: Array.from({ length: 10 }, (_, i) =>
          tool({ name: `t${i}`, parameters: { ...parameters, title: "x".repeat(60_000) } }),
        ),
      },
      "tools",
    ],
    ["too many", { ...asked, tools: Array.from({ length: 129 }, (_, i) => tool({ name: `t${i}` })) }, "tools"],
    ["a choice of nothing", { ...question, tool_choice: "required" }, "tool_choice"],
    ["a choice that is unknown", { ...asked, tool_choice: "any" }, "tool_choice"],
    [
      "a named tool that is none",
      { ...asked, tool_choice: { type: "function", function: { name: "x" } } },
      "tool_choice.function.name",
    ],
    [
      "a schema that cannot be kept",
      forced({ a: { type: "array", uniqueItems: true } }),
      "tools[1].function.parameters.properties.a.uniqueItems",
    ],
    [
      "strictness that cannot be kept",
      { ...asked, tools: [tool({ strict: true, parameters: { type: "object", not: {} } })] },
      "tools[0].function.parameters.not",
    ],
    ["min_tokens beside tools", { ...asked, min_tokens: 2 }, "min_tokens"],
    ["ignore_eos beside tools", { ...asked, ignore_eos: true }, "ignore_eos"],
    ["a call without an id", said(calling(call({ id: undefined })), result()), "messages[1].tool_calls[0].id"],
    ["a call of another type", said(calling(call({ type: "custom" })), result()), "messages[1].tool_calls[0].type"],
    [
      "arguments that are no JSON",
      said(calling(call({}, { arguments: "{" })), result()),
      "messages[1].tool_calls[0].function.arguments",
    ],
    [
      "arguments that are a list",
      said(calling(call({}, { arguments: "[]" })), result()),
      "messages[1].tool_calls[0].function.arguments",
    ],
    [
      "arguments nested too deep",
      said(calling(call({}, { arguments: `{"a":${"[".repeat(40)}${"]".repeat(40)}}` })), result()),
      "messages[1].tool_calls[0].function.arguments",
    ],
    ["no calls", said(calling()), "messages[1].tool_calls"],
    ["an id twice", said(calling(call(), call()), result()), "messages[1].tool_calls[1].id"],
    ["a call without a result", said(calling(call(), call({ id: "b" })), result("b")), "messages[1].tool_calls[0]"],
    [
      "a call before another question",
      said(calling(call()), { role: "user", content: "x" }),
      "messages[1].tool_calls[0]",
    ],
    [
      "more values than a template should look at",
      said(calling(call({}, { arguments: JSON.stringify({ a: Array.from({ length: 16_380 }, () => 1) }) })), result()),
      "messages",
    ],
    ["a result of nothing", said(result()), "messages[1].tool_call_id"],
    ["a result of another call", said(calling(call()), result("c")), "messages[2].tool_call_id"],
    ["a second result", said(calling(call()), result(), result()), "messages[3].tool_call_id"],
    ["a result without an id", said(calling(call()), result(null)), "messages[2].tool_call_id"],
    ["an answer with nothing in it", said({ role: "assistant" }), "messages[1].content"],
    ["a user's calls", said({ role: "user", content: "x", tool_calls: [] }), "messages[1].tool_calls"],
  ])("%s", async (_name, body, param) => {
    const { app, submits } = chatRig({ model: toolModels.qwen });
    const response = await post(app, body);
    const { error } = (await response.json()) as { error?: { param: string; message: string } };
    expect([response.status, error?.param]).toEqual([400, param]);
    expect(error?.message.length).toBeLessThan(400);
    expect(submits()).toEqual([]);
  });
});
