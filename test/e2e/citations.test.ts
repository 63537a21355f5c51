/** Answers cite by page and by a literal quote: in every format that has pages, and through every API. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import Anthropic from "@anthropic-ai/sdk";
import type OpenAI from "openai";
import { toFile } from "openai";
import { docxOf, paragraph } from "../extract/documents.ts";
import { pagedFormats, type SourcePage } from "../extract/paged-documents.ts";
import { openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

// A server starts in this test.
setDefaultTimeout(120_000);

interface Cited {
  readonly choice?: number;
  readonly file_id: string;
  readonly filename: string;
  readonly fragment_id: string;
  readonly page?: number;
  readonly page_name?: string;
  readonly quote: string;
  readonly answer_range: readonly [number, number];
  readonly quote_range: readonly [number, number];
}

const question = "What is the extension of Jon Vale?";
const sentence = "The extension of Jon Vale is 3057.";
/** The same names on each page, so that only the sentence tells them apart. */
const pages: readonly SourcePage[] = [
  { name: "Bakery", sentences: ["Mira Holt works as a baker.", "The extension of Mira Holt is 4821."] },
  { name: "Accounts", sentences: ["Jon Vale lives in Fairhaven.", sentence] },
  { name: "Guards", sentences: ["Ada Quill works as a guard.", "The extension of Ada Quill is 7719."] },
];

let server: TestServer;
let apiKey: string;
let client: OpenAI;
const stores = new Map<string, string>();

async function storeOf(filename: string, bytes: Uint8Array): Promise<string> {
  const store = await client.vectorStores.create({ name: filename });
  const file = await toFile(Buffer.from(bytes), filename);
  const added = await client.vectorStores.files.uploadAndPoll(store.id, file);
  if (added.status !== "completed") throw new Error(`${filename}: ${added.last_error?.message}`);
  return store.id;
}

beforeAll(async () => {
  server = await startTestServer();
  ({ apiKey } = await server.tenant("citations"));
  client = openaiClient(server.url, apiKey);
  for (const [format, { make }] of Object.entries(pagedFormats)) {
    stores.set(format, await storeOf(`staff.${format}`, await make(pages)));
  }
  const body = pages.flatMap(({ sentences }) => sentences.map((text) => paragraph(text)));
  stores.set("docx", await storeOf("staff.docx", await docxOf(body.join(""))));
});
afterAll(async () => await server[Symbol.asyncDispose]());

const chatOver = (format: string): OpenAI.ChatCompletionCreateParamsNonStreaming => {
  const search = { file_search: { vector_store_ids: [stores.get(format)], max_num_results: 2 } };
  const messages = [{ role: "user" as const, content: question }];
  return { model: server.model, messages, temperature: 0, max_tokens: 40, ...search };
};
const citationsIn = (answer: unknown): readonly Cited[] =>
  (answer as { spangate?: { citations?: readonly Cited[] } }).spangate?.citations ?? [];

/** The text of a fragment, as a search finds it. */
async function fragmentText(format: string): Promise<string> {
  const found = await client.vectorStores.search(stores.get(format) ?? "", { query: question, max_num_results: 1 });
  return found.data[0]?.content[0]?.text ?? "";
}

/** The quote stands literally on the page that is named, and on no other. */
async function expectRight(format: string, answer: string, citations: readonly Cited[]): Promise<void> {
  expect(citations).toHaveLength(1);
  const [cited] = citations;
  if (cited === undefined) throw new Error("nothing is cited");
  expect(cited).toMatchObject({ filename: `staff.${format}`, file_id: expect.stringMatching(/^file-/) });
  // A row of a sheet says the name of its column too.
  expect(cited.quote.replace(/^Note: /, "")).toBe(sentence);
  expect([...(await fragmentText(format))].slice(...cited.quote_range).join("")).toBe(cited.quote);
  expect([...answer].slice(...cited.answer_range).join("")).toContain("3057");
  const formats: Readonly<Record<string, { readonly named: boolean }>> = pagedFormats;
  if (formats[format] === undefined) return void expect(cited).not.toHaveProperty("page");
  expect(cited.page).toBe(1 + pages.findIndex(({ sentences }) => sentences.includes(sentence)));
  expect(cited.page_name).toBe(formats[format]?.named ? "Accounts" : undefined);
}

test.each([...Object.keys(pagedFormats), "docx"])("%s, in a whole chat completion", async (format) => {
  const answer = await client.chat.completions.create(chatOver(format));
  await expectRight(format, answer.choices[0]?.message.content ?? "", citationsIn(answer));
});

test("streamed chat completions, with and without a summary", async () => {
  for (const options of [{ stream_options: { include_usage: true } }, {}]) {
    const stream = await client.chat.completions.create({ ...chatOver("pdf"), stream: true, ...options });
    const chunks = await Array.fromAsync(stream);
    const answer = chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join("");
    await expectRight("pdf", answer, citationsIn(chunks.at(-1)));
    expect(chunks.filter((chunk) => citationsIn(chunk).length > 0)).toHaveLength(1);
  }
});

const queryOver = (...children: readonly object[]) => {
  const ask = { user: question };
  return { g: { max_tokens: 40, temperature: 0, input: { cross: [{ plus: children }, ask] } } };
};
const found = (format: string) => {
  return { retrieve: { vector_store_ids: [stores.get(format)], query: question, max_num_results: 2 } };
};
const postQuery = (path: string, body: string, type = "application/json"): Promise<Response> =>
  fetch(`${server.url}/v1/query/${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${apiKey}`, "content-type": type },
    body,
  });
async function executed(query: object, search = ""): Promise<OpenAI.ChatCompletion> {
  const response = await postQuery(`execute${search}`, JSON.stringify(query));
  expect(response.status).toBe(200);
  return (await response.json()) as OpenAI.ChatCompletion;
}
const textOf = (answer: OpenAI.ChatCompletion): string => answer.choices[0]?.message.content ?? "";

test.each([...Object.keys(pagedFormats), "docx"])("%s, that a span query found", async (format) => {
  const answer = await executed(queryOver(found(format)));
  await expectRight(format, textOf(answer), citationsIn(answer));
});

test("span queries: streamed, and over a fragment that is named by its id", async () => {
  const stream = await postQuery("execute?stream=true", JSON.stringify(queryOver(found("pdf"))));
  const chunks = (await stream.text()).split("\n\n").flatMap((event): OpenAI.ChatCompletionChunk[] => {
    return event.startsWith("data: {") ? [JSON.parse(event.slice("data: ".length))] : [];
  });
  const text = chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join("");
  await expectRight("pdf", text, citationsIn(chunks.at(-1)));
  const id = citationsIn(chunks.at(-1))[0]?.fragment_id;
  const named = await executed(queryOver({ fragment: { id } }, { fragment: { text: "Jon Vale likes tea." } }));
  await expectRight("pdf", textOf(named), citationsIn(named));
});

test("span queries: a text that came with the query is cited by its path, a part of a document within the whole of it", async () => {
  const fragments = pages.map(({ name, sentences }) => ({ fragment: { title: name, text: sentences.join(" ") } }));
  const inline = await executed(queryOver(...fragments));
  const path = "$.g.input.cross[0].plus[1]";
  expect(citationsIn(inline)).toMatchObject([{ choice: 0, document_id: path, title: "Accounts", quote: sentence }]);
  const text = `# Staff 😀\n\n${"Nothing is known of the weather. ".repeat(200)}\n\n${sentence}\n`;
  const augment = { augment: { embedding_model: "", body: { user: question }, doc: ["staff.md", { Text: text }] } };
  const [cited] = citationsIn(await executed(queryOver(augment)));
  expect(cited).toMatchObject({ document_id: "$.g.input.cross[0].plus[0]", title: "staff.md", quote: sentence });
  expect([...text].slice(...(cited?.quote_range ?? [0, 0])).join("")).toBe(sentence);
});

test("span queries: each choice has the sources of its own prompt; what inner generates read counts for the outer one", async () => {
  const alone = (name: string, text: string) => queryOver({ fragment: { title: name, text } });
  const apart = await executed({ plus: [alone("right", sentence), alone("wrong", "Jon Vale likes tea.")] });
  expect(citationsIn(apart)).toMatchObject([{ choice: 0, title: "right", quote: sentence }]);
  const judged = await executed(queryOver(alone("inner", sentence)));
  expect(citationsIn(judged)).toMatchObject([{ title: "inner", quote: sentence }]);
  const bare = await executed({ g: { max_tokens: 4, temperature: 0, input: { user: question } } });
  expect((bare as { spangate?: object }).spangate).not.toHaveProperty("citations");
});

test("span queries in bulk name the page, and keep no quote of a file", async () => {
  const sent = JSON.stringify({ query: queryOver(found("pdf")) });
  const answered = await (await postQuery("bulk", sent, "application/x-ndjson")).text();
  const line = answered.split("\n").find((one) => one.includes('"response"')) ?? "{}";
  const [cited] = citationsIn((JSON.parse(line) as { response?: object }).response);
  expect(cited).toMatchObject({ filename: "staff.pdf", page: 2 });
  expect(cited).not.toHaveProperty("quote");
});

test("each of several choices has its own", async () => {
  const answer = await client.chat.completions.create({ ...chatOver("xlsx"), n: 2 });
  expect(citationsIn(answer).map(({ choice, page_name }) => [choice, page_name])).toEqual([
    [0, "Accounts"],
    [1, "Accounts"],
  ]);
});

test("documents of the request are cited by their id", async () => {
  const documents = pages.map(({ name, sentences }) => ({ id: name, text: sentences.join(" ") }));
  const params = { ...chatOver("pdf"), documents };
  Reflect.deleteProperty(params, "file_search");
  const [cited] = citationsIn(await client.chat.completions.create(params));
  expect(cited).toMatchObject({ document_id: "Accounts", quote: sentence });
});

test("responses, whole, streamed and stored, which keeps no quote", async () => {
  const tools = [{ type: "file_search" as const, vector_store_ids: [stores.get("pdf") ?? ""] }];
  const params = { model: server.model, input: question, temperature: 0, max_output_tokens: 40, tools };
  const whole = await client.responses.create(params);
  await expectRight("pdf", whole.output_text, citationsIn(whole));
  const final = await client.responses.stream({ ...params, stream: true }).finalResponse();
  await expectRight("pdf", final.output_text, citationsIn(final));
  const kept = citationsIn(await client.responses.retrieve(whole.id));
  expect(kept).toMatchObject([{ page: 2 }]);
  expect(JSON.stringify(kept)).not.toContain("Jon Vale");
});

test("messages: the page in Anthropic's own form, whole and streamed", async () => {
  const anthropic = new Anthropic({ baseURL: server.url, apiKey, maxRetries: 0 });
  const over = (format: string) => {
    const search = { file_search: { vector_store_ids: [stores.get(format)], max_num_results: 2 } };
    const messages = [{ role: "user" as const, content: question }];
    return { model: server.model, max_tokens: 40, temperature: 0, messages, ...search };
  };
  const citedIn = ({ content }: Anthropic.Message) =>
    content.flatMap((block) => (block.type === "text" ? (block.citations ?? []) : []));
  const page = { type: "page_location", cited_text: sentence, start_page_number: 2, end_page_number: 3 } as const;
  const whole = await anthropic.messages.create(over("pptx"));
  expect(citedIn(whole)).toMatchObject([{ ...page, document_title: "staff.pptx" }]);
  await expectRight("pptx", sentence, citationsIn(whole));
  const final = await anthropic.messages.stream(over("pptx")).finalMessage();
  expect(citedIn(final)).toEqual(citedIn(whole));
  const unpaged = await anthropic.messages.create(over("docx"));
  expect(citedIn(unpaged)).toMatchObject([
    { type: "search_result_location", cited_text: sentence, title: "staff.docx" },
  ]);
});
