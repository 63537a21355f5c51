/** Prompts, parameters and tools of the routes that answer. */
import { jsonCase, plainCase, type StallCase } from "./case.ts";
import { mib, prose, times } from "./texts.ts";
import type { StallWorld } from "./world.ts";

const chat = "POST /v1/chat/completions";
const responses = "POST /v1/responses";
const messages = "POST /v1/messages";
const user = (content: unknown) => ({ role: "user", content });
const short = { max_tokens: 4, min_tokens: 4, ignore_eos: true };

const chatCase = (name: string, body: (world: StallWorld) => object): StallCase =>
  jsonCase(chat, name, (world) => ({
    model: world.model,
    messages: [user("Who is Anna?")],
    max_tokens: 4,
    ...body(world),
  }));

const parts = (count: number, part: object) => times(count, () => part);
const textPart = { type: "text", text: "a" };
const misspelt = { type: "text", txt: "a" };

export const generationCases: readonly StallCase[] = [
  chatCase("8 MiB of text in 1,024 messages", () => ({ messages: times(1_024, (at) => user(prose(8_000, at))) })),
  chatCase("documents with 8 MiB of text", () => ({ documents: times(512, (at) => ({ text: prose(16_000, at) })) })),
  chatCase("one message of 8 MiB", () => ({ messages: [user(prose(8 * mib - 1_000))] })),
  chatCase("one word of 65,000 letters", () => ({ messages: [user("abcdefghij".repeat(6_500))] })),
  chatCase("one word of 8 million letters", () => ({ messages: [user("abcdefghij".repeat(800_000))] })),
  chatCase("2 million emoji", () => ({ messages: [user("\u{1f600}".repeat(2_000_000))] })),
  chatCase("60,000 combining marks", () => ({
    messages: [user(`a${"\u0315".repeat(30_000)}${"\u0327".repeat(30_000)}`)],
  })),
  chatCase("900 messages of 200 parts", () => ({ messages: times(900, () => user(parts(200, textPart))) })),
  chatCase("900 messages of 200 parts, a field misspelt", () => ({
    messages: times(900, () => user(parts(200, misspelt))),
  })),
  chatCase("a prompt as long as the model takes", () => ({ messages: [user(prose(90_000))], ...short })),
  chatCase("512 documents", () => ({ documents: times(512, (at) => ({ text: prose(160, at) })), ...short })),
  chatCase("n 16, 20 log-probabilities each", () => ({
    ...short,
    n: 16,
    max_tokens: 16,
    logprobs: true,
    top_logprobs: 20,
  })),
  chatCase("logit_bias of 1,024, stops, penalties", () => ({
    ...short,
    logit_bias: Object.fromEntries(times(1_024, (at) => [String(at), 1])),
    stop: times(16, (at) => `${at % 10}`.repeat(200) + at),
    presence_penalty: 1,
    frequency_penalty: 1,
  })),
  chatCase("16 stops of 256 characters beside what they begin like", () => ({
    messages: [user("Say a.")],
    ...short,
    max_tokens: 256,
    min_tokens: 256,
    stop: times(16, (at) => `${" ".repeat(255 - at)}a`),
  })),
  chatCase("16 answers with citations of 1,000 short sentences", () => ({
    messages: [user(prose(6_000))],
    documents: times(10, (at) => ({ text: times(100, (index) => `It is ${(at * index) % 97}.`).join(" ") })),
    ...short,
    n: 16,
    max_tokens: 64,
    min_tokens: 64,
  })),
  chatCase("an answer of 80,000 characters that is gone on with", () => ({
    messages: [user("Tell."), { role: "assistant", content: prose(80_000) }],
    continue_final_message: true,
    add_generation_prompt: false,
    ...short,
  })),
  chatCase("an answer of 8 MiB that is gone on with", () => ({
    messages: [user("Tell."), { role: "assistant", content: prose(8 * mib - 1_000) }],
    continue_final_message: true,
    add_generation_prompt: false,
  })),
  chatCase("128 tools of 700 characters", () => ({ tools: times(128, (at) => tool(at, 700)) })),
  chatCase("128 tools of 4 KB", () => ({ tools: times(128, (at) => tool(at, 4_000)) })),
  chatCase("search of 4 stores by 16,000 characters", ({ storeIds }) => ({
    messages: [user(prose(16_000))],
    file_search: { vector_store_ids: storeIds, max_num_results: 50 },
    ...short,
  })),
  jsonCase("POST /v1/completions", "32 prompts of 250,000 characters", ({ model }) => ({
    model,
    prompt: times(32, (at) => prose(250_000, at)),
    max_tokens: 1,
  })),
  jsonCase("POST /v1/completions", "131,000 token ids", ({ model }) => ({
    model,
    prompt: times(131_000, (at) => at % 4_000),
    max_tokens: 1,
  })),
  jsonCase("POST /v1/completions", "32 prompts of 1,000 token ids", ({ model }) => ({
    model,
    prompt: times(32, (at) => times(1_000, (index) => (at * 17 + index) % 4_000)),
    max_tokens: 1,
  })),
  jsonCase(responses, "7 MB of queries in a search item", ({ model }) => ({
    model,
    input: [
      { type: "file_search_call", id: "fs_a", status: "completed", queries: times(200, (at) => prose(35_000, at)) },
      user("Who?"),
    ],
    max_output_tokens: 1,
  })),
  jsonCase(responses, "200 references to items of kept responses", (world) => ({
    model: world.model,
    input: references(world, 200),
    max_output_tokens: 1,
  })),
  jsonCase(responses, "the end of a chain", ({ model, responseIds }) => ({
    model,
    input: "And?",
    previous_response_id: responseIds.at(-1),
    max_output_tokens: 1,
  })),
  jsonCase(responses, "1,024 items of 8 MiB", ({ model }) => ({
    model,
    input: times(1_024, (at) => user(prose(8_000, at))),
    max_output_tokens: 1,
  })),
  jsonCase(responses, "annotations and log-probabilities of unknown kind", ({ model }) => ({
    model,
    input: [
      { role: "assistant", content: [{ type: "output_text", text: "a", logprobs: times(100_000, () => ({ a: 1 })) }] },
      user("Who?"),
    ],
    max_output_tokens: 1,
  })),
  jsonCase("POST /v1/responses/input_tokens", "1,024 items of 8 MiB", ({ model }) => ({
    model,
    input: times(1_024, (at) => user(prose(8_000, at))),
  })),
  jsonCase("POST /v1/responses/input_tokens", "200 references", (world) => ({
    model: world.model,
    input: references(world, 200),
  })),
  plainCase("GET /v1/responses/{response_id}", "of a long conversation"),
  plainCase("GET /v1/responses/{response_id}/input_items", "100 of them", "?limit=100"),
  jsonCase("POST /v1/responses/{response_id}/cancel", "refused", () => ({})),
  {
    route: "DELETE /v1/responses/{response_id}",
    name: "of a long conversation",
    afterMs: 1_500,
    make: async (world) => {
      const body = { model: world.model, input: times(500, (at) => user(prose(40, at))), max_output_tokens: 1 };
      const { id } = await world.hostile.client.json<{ id: string }>("POST", "/v1/responses", body);
      return { method: "DELETE", path: `/v1/responses/${id}` };
    },
  },
  jsonCase(messages, "900 messages of 200 blocks", ({ model }) => ({
    model,
    max_tokens: 1,
    messages: [...times(899, () => user(parts(200, textPart))), user("Who?")],
  })),
  jsonCase(messages, "900 messages of 200 blocks, a field misspelt", ({ model }) => ({
    model,
    max_tokens: 1,
    messages: times(900, () => user(parts(200, misspelt))),
  })),
  jsonCase(messages, "documents of 8 MiB", ({ model }) => ({
    model,
    max_tokens: 1,
    messages: [user([...times(200, (at) => documentBlock(prose(40_000, at))), textPart])],
  })),
  jsonCase(messages, "documents with citations, of 1,000 short sentences", ({ model }) => ({
    model,
    max_tokens: 64,
    messages: [
      user([
        ...times(10, (at) => ({
          ...documentBlock(times(100, () => `Ann is ${at}.`).join(" ")),
          citations: { enabled: true },
        })),
        { type: "text", text: prose(6_000) },
      ]),
    ],
  })),
  jsonCase(messages, "an answer of 80,000 characters that is gone on with", ({ model }) => ({
    model,
    max_tokens: 4,
    messages: [user("Tell."), { role: "assistant", content: prose(80_000) }],
    stop_sequences: times(16, (at) => `${at}`.repeat(100)),
  })),
  jsonCase("POST /v1/messages/count_tokens", "documents of 8 MiB", ({ model }) => ({
    model,
    messages: [user([...times(200, (at) => documentBlock(prose(40_000, at))), textPart])],
  })),
  jsonCase("POST /v1/embeddings", "2,048 texts of 140 tokens", ({ model }) => ({
    model,
    input: times(2_048, (at) => prose(380, at)),
  })),
  jsonCase("POST /v1/embeddings", "300,000 token ids", ({ model }) => ({
    model,
    input: times(2_048, (at) => times(146, (index) => (at + index) % 4_000)),
    encoding_format: "base64",
  })),
  jsonCase("POST /v1/embeddings", "2,048 texts of 4,000 letters", ({ model }) => ({
    model,
    input: times(2_048, () => "abcdefghij".repeat(400)),
  })),
  jsonCase("POST /v1/rerank", "1,024 documents", ({ model }) => ({
    model,
    query: prose(200),
    documents: times(1_024, (at) => prose(500, at)),
    return_documents: true,
  })),
  jsonCase("POST /mcp", "a search of 4 stores by 16,000 characters", ({ storeIds }) =>
    toolCall("search", { query: prose(16_000), vector_store_ids: storeIds, max_results: 50 }),
  ),
  jsonCase("POST /mcp", "a question of 16,000 characters to 4 stores", ({ storeIds }) =>
    toolCall("ask", { question: prose(16_000), vector_store_ids: storeIds, max_results: 50, max_tokens: 4 }),
  ),
  jsonCase("POST /mcp", "a call with 20,000 fields that no tool has", () =>
    toolCall("ask", Object.fromEntries(times(2_000, (at) => [`field${at}`, times(10, () => at)]))),
  ),
  jsonCase("POST /tokenize", "65,000 letters", () => ({ prompt: "abcdefghij".repeat(6_500) })),
  jsonCase("POST /tokenize", "8 MiB of text", () => ({ prompt: prose(8 * mib - 1_000), return_token_strs: true })),
  jsonCase("POST /tokenize", "8 MiB of spaces", () => ({ prompt: " ".repeat(8 * mib - 1_000) })),
  jsonCase("POST /tokenize", "40,000 emoji, by the names of their tokens", () => ({
    prompt: "\u{1F468}\u200D".repeat(20_000),
    return_token_strs: true,
  })),
  jsonCase("POST /tokenize", "a conversation that is gone on with", () => ({
    messages: [user("Tell."), { role: "assistant", content: prose(80_000) }],
    continue_final_message: true,
    add_generation_prompt: false,
    return_token_strs: true,
  })),
  jsonCase("POST /detokenize", "131,072 tokens", () => ({ tokens: times(131_072, (at) => at % 4_000) })),
  jsonCase("POST /detokenize", "131,072 special tokens", () => ({ tokens: times(131_072, () => 1) })),
  jsonCase("POST /detokenize", "400,000 tokens", () => ({ tokens: times(400_000, (at) => at % 4_000) })),
  plainCase("GET /v1/models", "the list"),
  plainCase("GET /v1/models/{id}", "one"),
];

const toolCall = (name: string, fields: object) => ({
  ...{ jsonrpc: "2.0", id: 1, method: "tools/call" },
  params: { name, arguments: fields },
});

const documentBlock = (data: string) => ({
  type: "document",
  source: { type: "text", media_type: "text/plain", data },
});

const tool = (at: number, chars: number) => ({
  type: "function",
  function: {
    name: `tool_${at}`,
    description: prose(chars - 400, at),
    parameters: { type: "object", properties: { a: { type: "string" } } },
  },
});

/** Items of the kept responses, the longest conversations first, by id alone. */
function references({ responseIds }: StallWorld, count: number): readonly object[] {
  const owns = responseIds.map((id) => id.replace("resp_", "")).reverse();
  return times(count, (at) => ({
    type: "item_reference",
    id: `msg_${owns[at % owns.length]}_${Math.floor(at / owns.length)}`,
  }));
}
