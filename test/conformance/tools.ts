/** Tools through every client: a call that must come, its result sent back in the client's own words, streams of calls. */
import { beforeAll, describe, expect, test } from "bun:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { HumanMessage } from "@langchain/core/messages";
import { tool as langchainTool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { OpenAI as LlamaIndexOpenAI } from "@llamaindex/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { tool as llamaindexTool } from "llamaindex";
import OpenAI from "openai";
import { zodFunction } from "openai/helpers/zod";
import { z } from "zod";
import { question, type Suite, thrownBy } from "./suite.ts";

const person = z.object({ name: z.enum(["Jon Vale", "Mira Holt"]), kind: z.enum(["extension", "town"]) });
const parameters = { ...z.toJSONSchema(person), type: "object" as const };
const description = "Looks a person up.";
const result = "- The extension of Jon Vale is 3057.";
/** The demo model was never shown a tool: what it says of a result is its own affair, that it is asked is the server's. */
const isText = (text: unknown): void => expect(text).toBeString();

export function tools(suite: Suite): void {
  describe("tools", () => {
    let apiKey: string;
    let baseURL: string;
    beforeAll(async () => {
      apiKey = (await suite.tenant("tools")).apiKey;
      baseURL = `${suite.url}/v1`;
    });

    test("openai: chat, whole, streamed, and the client's own loop", async () => {
      const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
      const definition = {
        type: "function",
        function: { name: "look_up", description, parameters, strict: true },
      } as const;
      const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: question }];
      const body = { model: suite.model, messages, temperature: 0, max_tokens: 200, tools: [definition] };
      const named = { type: "function", function: { name: "look_up" } } as const;
      const { choices, usage } = await client.chat.completions.create({ ...body, tool_choice: named });
      const [choice] = choices;
      expect(choice).toMatchObject({ finish_reason: "tool_calls", message: { content: null } });
      const [call] = choice?.message.tool_calls ?? [];
      if (choice === undefined || call?.type !== "function") throw new Error("no call");
      person.parse(JSON.parse(call.function.arguments));
      expect(usage?.completion_tokens).toBeGreaterThan(5);
      const back: OpenAI.ChatCompletionMessageParam = { role: "tool", tool_call_id: call.id, content: result };
      const next = await client.chat.completions.create({ ...body, messages: [...messages, choice.message, back] });
      isText(next.choices[0]?.message.content);
      const stream = client.chat.completions.stream({ ...body, tool_choice: "required", parallel_tool_calls: false });
      const heard: string[] = [];
      stream.on("tool_calls.function.arguments.delta", ({ arguments_delta: delta }) => heard.push(delta));
      const final = await stream.finalChatCompletion();
      const [streamed] = final.choices[0]?.message.tool_calls ?? [];
      if (streamed?.type !== "function") throw new Error("no call was streamed");
      expect(heard.join("")).toBe(streamed.function.arguments);
      expect(heard.length).toBeGreaterThan(1);
      const asked: unknown[] = [];
      const run = async (input: z.infer<typeof person>): Promise<string> => {
        asked.push(input);
        return result;
      };
      const lookUp = zodFunction({ name: "look_up", description, parameters: person, function: run });
      const runner = client.chat.completions.runTools(
        { ...body, tool_choice: named, tools: [lookUp] },
        { maxChatCompletions: 1 },
      );
      await runner.done();
      expect(asked).toHaveLength(1);
      const lost = { role: "tool", tool_call_id: "call_nobody", content: result } as const;
      const refused = client.chat.completions.create({ ...body, messages: [...messages, choice.message, lost] });
      expect(await thrownBy(refused)).toBeInstanceOf(OpenAI.BadRequestError);
    });

    test("openai: responses, by their outputs and by the earlier response", async () => {
      const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
      const definition = { type: "function", name: "look_up", description, parameters, strict: true } as const;
      const body = { model: suite.model, temperature: 0, max_output_tokens: 200, tools: [definition] };
      const first = await client.responses.create({
        ...body,
        input: question,
        tool_choice: "required",
        parallel_tool_calls: false,
      });
      const [call] = first.output;
      if (call?.type !== "function_call") throw new Error("no call");
      person.parse(JSON.parse(call.arguments));
      const output = { type: "function_call_output", call_id: call.call_id, output: result } as const;
      const followed = await client.responses.create({ ...body, input: [output], previous_response_id: first.id });
      const input = [{ role: "user" as const, content: question }, call, output];
      const { usage } = await client.responses.create({ ...body, input });
      expect(usage?.input_tokens).toBe(followed.usage?.input_tokens as number);
      const reference = { type: "item_reference" as const, id: call.id ?? "" };
      const referred = [{ role: "user" as const, content: question }, reference, output];
      const again = await client.responses.create({ ...body, input: referred });
      expect(again.usage?.input_tokens).toBe(followed.usage?.input_tokens as number);
      const stream = client.responses.stream({
        ...body,
        input: question,
        tool_choice: "required",
        parallel_tool_calls: false,
      });
      let heard = "";
      stream.on("response.function_call_arguments.delta", ({ delta }) => {
        heard += delta;
      });
      const [streamed] = (await stream.finalResponse()).output;
      expect(streamed).toMatchObject({ type: "function_call", name: "look_up", arguments: heard });
    });

    test("@anthropic-ai/sdk: tool_use, tool_result, streamed input, counted tokens", async () => {
      const client = new Anthropic({ baseURL: suite.url, apiKey, maxRetries: 0 });
      const { model } = suite;
      const messages: Anthropic.MessageParam[] = [{ role: "user", content: question }];
      const definitions: Anthropic.Tool[] = [{ name: "look_up", description, input_schema: parameters }];
      const body = { model, max_tokens: 200, messages, tools: definitions };
      const first = await client.messages.create({
        ...body,
        tool_choice: { type: "any", disable_parallel_tool_use: true },
      });
      expect(first.stop_reason).toBe("tool_use");
      const [use] = first.content;
      if (use?.type !== "tool_use") throw new Error("no call");
      person.parse(use.input);
      const back: Anthropic.MessageParam[] = [
        { role: "assistant", content: first.content },
        { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: result }] },
      ];
      expect((await client.messages.create({ ...body, messages: [...messages, ...back] })).content[0]?.type).toBe(
        "text",
      );
      const stream = client.messages.stream({
        ...body,
        tool_choice: { type: "tool", name: "look_up", disable_parallel_tool_use: true },
      });
      let heard = "";
      stream.on("inputJson", (delta) => {
        heard += delta;
      });
      const [streamed] = (await stream.finalMessage()).content;
      if (streamed?.type !== "tool_use") throw new Error("no call was streamed");
      expect(streamed.input).toEqual(JSON.parse(heard));
      const withTools = await client.messages.countTokens({ model, messages, tools: definitions });
      const without = await client.messages.countTokens({ model, messages });
      expect(withTools.input_tokens).toBeGreaterThan(without.input_tokens);
    });

    test("ai: steps with results, streamed calls, over each provider", async () => {
      const openai = createOpenAI({ baseURL, apiKey });
      const compatible = createOpenAICompatible({ name: "spangate", baseURL, apiKey });
      for (const model of [compatible(suite.model), openai(suite.model), openai.chat(suite.model)]) {
        // Several calls could come of one that is required, as many as there is room for.
        const named = { type: "tool", toolName: "look_up" } as const;
        const asked: unknown[] = [];
        const execute = async (input: z.infer<typeof person>): Promise<string> => {
          asked.push(input);
          return result;
        };
        const settings = {
          ...{ model, prompt: question, temperature: 0, maxOutputTokens: 200, maxRetries: 0 },
          tools: { look_up: tool({ description, inputSchema: person, execute }) },
        };
        const { steps, text } = await generateText({
          ...settings,
          stopWhen: stepCountIs(2),
          prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? named : "none" }),
        });
        expect(steps.map(({ finishReason }) => finishReason)).toEqual(["tool-calls", expect.any(String)]);
        expect(asked).toEqual(steps[0]?.toolCalls.map(({ input }) => input) ?? []);
        isText(text);
        const stream = streamText({ ...settings, toolChoice: named });
        const parts = (await Array.fromAsync(stream.fullStream)).map(({ type }) => type);
        expect(parts).toEqual(expect.arrayContaining(["tool-input-delta", "tool-call", "tool-result"]));
      }
    });

    test("@langchain/openai: bound tools, streamed calls, structured output by a call", async () => {
      const lookUp = langchainTool(async () => result, { name: "look_up", description, schema: person });
      for (const useResponsesApi of [false, true]) {
        const configuration = { baseURL };
        const settings = { model: suite.model, apiKey, configuration, temperature: 0, maxTokens: 200, maxRetries: 0 };
        const chat = new ChatOpenAI({ ...settings, useResponsesApi });
        const bound = chat.bindTools([lookUp], { tool_choice: "look_up" });
        const said = await bound.invoke(question);
        const [call] = said.tool_calls ?? [];
        if (call === undefined) throw new Error("no call");
        person.parse(call.args);
        const back = await lookUp.invoke({ ...call, type: "tool_call" });
        isText((await chat.bindTools([lookUp]).invoke([new HumanMessage(question), said, back])).text);
        const chunks = await Array.fromAsync(await bound.stream(question));
        const whole = chunks.slice(1).reduce((sum, chunk) => sum.concat(chunk), chunks[0] as (typeof chunks)[number]);
        expect(whole.tool_calls?.map(({ args }) => person.safeParse(args).success)).toEqual([true]);
        const schema = z.object({ answer: z.enum(["yes", "no"]) });
        const structured = chat.withStructuredOutput(schema, { method: "functionCalling", name: "answer" });
        schema.parse(await structured.invoke("Is it?"));
      }
    });

    test("llamaindex: tools of a chat", async () => {
      const settings = { model: suite.model, apiKey, baseURL, temperature: 0, maxTokens: 200, maxRetries: 0 };
      const llm = new LlamaIndexOpenAI({
        ...settings,
        additionalChatOptions: { tool_choice: "required", parallel_tool_calls: false },
      });
      const lookUp = llamaindexTool({ name: "look_up", description, parameters: person, execute: () => result });
      const { message } = await llm.chat({ messages: [{ role: "user", content: question }], tools: [lookUp] });
      const { toolCall = [] } = (message.options ?? {}) as { toolCall?: { name: string; id: string; input: string }[] };
      const [call] = toolCall;
      if (call === undefined) throw new Error("no call");
      person.parse(typeof call.input === "string" ? JSON.parse(call.input) : call.input);
      const back = {
        role: "user" as const,
        content: result,
        options: { toolResult: { id: call.id, result, isError: false } },
      };
      const asked = { role: "user" as const, content: question };
      const plain = new LlamaIndexOpenAI(settings);
      isText((await plain.chat({ messages: [asked, message, back], tools: [lookUp] })).message.content);
    });
  });
}
