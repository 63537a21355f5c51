/** Loops of tools as frameworks run them: the model calls, the framework answers, the model goes on. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { HumanMessage } from "@langchain/core/messages";
import { tool as langchainTool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { startTestServer, type TestServer } from "../support/server.ts";

setDefaultTimeout(60_000);

const schema = z.object({
  name: z.string().max(10),
  year: z.number().int().min(1).max(9),
  kind: z.enum(["town", "extension"]),
  note: z.string().max(4).optional(),
});
const prompt = "What is the extension of Jon Vale?";

describe("loops of tools", () => {
  let server: TestServer;
  let apiKey: string;
  let baseURL: string;

  beforeAll(async () => {
    server = await startTestServer({ model: "one-layer" });
    ({ apiKey } = await server.tenant("loops"));
    baseURL = `${server.url}/v1`;
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  test.each(["chat", "responses", "compatible"] as const)("the AI SDK over %s", async (api) => {
    const openai = createOpenAI({ baseURL, apiKey });
    const compatible = createOpenAICompatible({ name: "spangate", baseURL, apiKey });
    const models = { chat: openai.chat, responses: openai.responses, compatible };
    const asked: unknown[] = [];
    const lookUp = tool({
      description: "Finds a fact.",
      inputSchema: schema,
      execute: async (input) => {
        asked.push(input);
        return { found: 3057 };
      },
    });
    const choice = { type: "tool", toolName: "lookUp" } as const;
    const settings = { model: models[api](server.model), tools: { lookUp }, prompt, temperature: 0, maxRetries: 0 };
    const { steps } = await generateText({
      ...settings,
      maxOutputTokens: 200,
      stopWhen: stepCountIs(2),
      prepareStep: async ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? choice : "none" }),
    });
    expect(steps.map(({ finishReason }) => finishReason)[0]).toBe("tool-calls");
    expect(steps.map(({ toolCalls }) => toolCalls.length)).toEqual([1, 0]);
    expect(asked.map((input) => schema.parse(input))).toEqual(asked as never);
    const streamed = streamText({ ...settings, maxOutputTokens: 200, toolChoice: choice });
    const types: string[] = [];
    for await (const part of streamed.fullStream) types.push(part.type);
    expect(types.filter((type) => type === "tool-input-delta").length).toBeGreaterThan(3);
    expect(types).not.toContain("text-start");
    expect(await streamed.toolCalls).toMatchObject([{ toolName: "lookUp", input: asked[0] }]);
  });

  test("LangChain: a bound tool, and structured output by a call", async () => {
    const chat = new ChatOpenAI({
      model: server.model,
      apiKey,
      temperature: 0,
      maxTokens: 200,
      maxRetries: 0,
      configuration: { baseURL },
    });
    const lookUp = langchainTool(async () => "3057", { name: "look_up", description: "Finds a fact.", schema });
    const first = await chat.bindTools([lookUp], { tool_choice: "look_up" }).invoke(prompt);
    const calls = first.tool_calls ?? [];
    expect(calls.map(({ name }) => name)).toEqual(["look_up"]);
    const results = await Promise.all(calls.map((call) => lookUp.invoke(call)));
    const after = await chat.bindTools([lookUp]).invoke([new HumanMessage(prompt), first, ...results]);
    expect(after.response_metadata.finish_reason).toBeString();
    const structured = chat.withStructuredOutput(schema, { method: "functionCalling", name: "answer" });
    expect(schema.safeParse(await structured.invoke(prompt)).success).toBe(true);
  });

  test("Anthropic's tool runner, whole and streamed", async () => {
    const client = new Anthropic({ baseURL: server.url, apiKey, maxRetries: 0 });
    const asked: unknown[] = [];
    const lookUp = betaZodTool({
      name: "look_up",
      description: "Finds a fact.",
      inputSchema: schema,
      run: async (input) => {
        asked.push(input);
        return "3057";
      },
    });
    const params = {
      model: server.model,
      max_tokens: 200,
      temperature: 0,
      tools: [lookUp],
      tool_choice: { type: "tool" as const, name: "look_up" },
      max_iterations: 2,
      messages: [{ role: "user" as const, content: prompt }],
    };
    const message = await client.beta.messages.toolRunner(params);
    expect(message.stop_reason).toBe("tool_use");
    for await (const stream of client.beta.messages.toolRunner({ ...params, stream: true })) {
      expect((await stream.finalMessage()).content.map(({ type }) => type)).toEqual(["tool_use"]);
    }
    expect(asked.length).toBeGreaterThanOrEqual(3);
    for (const input of asked) expect(schema.safeParse(input).success).toBe(true);
  });
});
