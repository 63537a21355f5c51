/** Files in a prompt itself, through every API: read as ingestion reads them, cited by page, and nobody else's. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import Anthropic from "@anthropic-ai/sdk";
import type OpenAI from "openai";
import { toFile } from "openai";
import { docxOf, paragraph } from "../extract/documents.ts";
import { pagedFormats, type SourcePage } from "../extract/paged-documents.ts";
import { openaiClient } from "../support/openai.ts";
import { cacheOf } from "../support/operator.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { until } from "../support/until.ts";

// A server starts in this test.
setDefaultTimeout(120_000);

const question = "What is the extension of Jon Vale?";
const sentence = "The extension of Jon Vale is 3057.";
const pages: readonly SourcePage[] = [
  { name: "Bakery", sentences: ["Mira Holt works as a baker.", "The extension of Mira Holt is 4821."] },
  { name: "Accounts", sentences: ["Jon Vale lives in Fairhaven.", sentence] },
];
const files: Record<string, Uint8Array> = {};

let server: TestServer;
let tenant: TestTenant;
let client: OpenAI;

beforeAll(async () => {
  server = await startTestServer();
  tenant = await server.tenant("asks");
  client = openaiClient(server.url, tenant.apiKey);
  for (const [format, { make }] of Object.entries(pagedFormats)) files[`staff.${format}`] = await make(pages);
  const sentences = pages.flatMap((page) => page.sentences);
  files["staff.docx"] = await docxOf(sentences.map((text) => paragraph(text)).join(""));
  files["staff.md"] = Buffer.from(`# Staff\n\n${sentences.join("\n")}\n`);
  files["staff.csv"] = Buffer.from(
    `name,note\n${pages.map(({ sentences }) => `,${sentences.join(" ")}`).join("\n")}\n`,
  );
});
afterAll(async () => await server[Symbol.asyncDispose]());

const base64Of = (name: string): string => Buffer.from(files[name] ?? []).toString("base64");
const upload = async (name: string, by = client): Promise<string> =>
  (await by.files.create({ purpose: "assistants", file: await toFile(files[name] ?? [], name) })).id;

type FilePart = OpenAI.ChatCompletionContentPart.File;
const filePart = (file: FilePart["file"]): FilePart => ({ type: "file", file });
const chatOver = (...parts: readonly OpenAI.ChatCompletionContentPart[]) => {
  const content = [...parts, { type: "text" as const, text: question }];
  return { model: server.model, messages: [{ role: "user" as const, content }], temperature: 0, max_tokens: 40 };
};
const citationsIn = (answer: unknown): readonly Record<string, unknown>[] =>
  (answer as { spangate?: { citations?: readonly Record<string, unknown>[] } }).spangate?.citations ?? [];
const textOf = (answer: OpenAI.ChatCompletion): string => answer.choices[0]?.message.content ?? "";

describe("chat completions", () => {
  test("answer from a file's bytes, in every format, and name its page", async () => {
    for (const name of Object.keys(files)) {
      const isUrl = name.endsWith("pdf");
      const file_data = `${isUrl ? "data:application/pdf;base64," : ""}${base64Of(name)}`;
      const answer = await client.chat.completions.create(chatOver(filePart({ filename: name, file_data })));
      expect(textOf(answer), name).toContain("3057");
      const [cited] = citationsIn(answer);
      expect(cited, name).toMatchObject({ filename: name, document_id: "messages[0].content[0].file" });
      expect(cited?.quote, name).toContain("3057");
      const format = name.replace("staff.", "");
      expect(cited?.page, name).toBe(format in pagedFormats ? 2 : undefined);
    }
  });

  test("answer from an upload by its id, streamed too; its KV is found again, whatever the cache_salt", async () => {
    const file_id = await upload("staff.pdf");
    const first = await client.chat.completions.create(chatOver(filePart({ file_id })));
    expect(citationsIn(first)).toMatchObject([{ file_id, filename: "staff.pdf", page: 2, quote: sentence }]);
    const body = { ...chatOver(filePart({ file_id })), cache_salt: "other", stream: true as const };
    const chunks = await Array.fromAsync(
      await client.chat.completions.create({ ...body, stream_options: { include_usage: true } }),
    );
    expect(citationsIn(chunks.at(-1))).toMatchObject([{ file_id, page: 2 }]);
    expect((chunks.at(-1) as { spangate?: object }).spangate).toMatchObject({ spans: [{ source: "device" }] });
  });

  test("the same bytes are another tenant's own: nothing of the first one's KV is found", async () => {
    const others = openaiClient(server.url, (await server.tenant("same bytes")).apiKey);
    const body = chatOver(filePart({ filename: "staff.odp", file_data: base64Of("staff.odp") }));
    const spans = { spangate: { spans: [{ source: "computed" }] } };
    expect(await others.chat.completions.create(body)).toMatchObject(spans);
    const id = await upload("staff.pdf", others);
    const missing = client.chat.completions.create(chatOver(filePart({ file_id: id })));
    const unknown = client.chat.completions.create(chatOver(filePart({ file_id: `file-${"0".repeat(24)}` })));
    const told = await Promise.all([missing, unknown].map((sent) => sent.catch((error: unknown) => error)));
    const param = "messages[0].content[0].file.file_id";
    for (const error of told) expect(error).toMatchObject({ status: 404, code: "not_found", param });
    expect(String(told[0])).toBe(String(told[1]));
  });

  test("tokenize counts the file, and a batch's lines read it", async () => {
    const part = filePart({ filename: "staff.md", file_data: base64Of("staff.md") });
    const count = async (body: object) =>
      (await tenant.client.json<{ count: number }>("POST", "/tokenize", body)).count;
    const { model, messages } = chatOver(part);
    const [withFile, without] = [
      await count({ model, messages }),
      await count({ ...chatOver(), max_tokens: undefined, temperature: undefined }),
    ];
    expect(withFile - without).toBeGreaterThan(20);
    const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body: chatOver(part) };
    const input = await client.files.create({
      purpose: "batch",
      file: await toFile(Buffer.from(JSON.stringify(line)), "lines.jsonl"),
    });
    const made = {
      input_file_id: input.id,
      endpoint: "/v1/chat/completions" as const,
      completion_window: "24h" as const,
    };
    const { id } = await client.batches.create(made);
    await until(async () => (await client.batches.retrieve(id)).status === "completed", "the batch ends");
    const output = (await client.batches.retrieve(id)).output_file_id ?? "";
    expect(await (await client.files.content(output)).text()).toContain("3057");
  });

  const data = (name: string, filename = name) => filePart({ filename, file_data: base64Of(name) });
  const at = "messages[0].content[0].file";
  const text = Buffer.from("a").toString("base64");
  const refusals: readonly [why: string, parts: () => readonly unknown[], param: string, message: string][] = [
    ["no source", () => [filePart({ filename: "a.pdf" })], `${at}.file_data`, "is missing, and so is file_id"],
    ["two", () => [filePart({ file_id: "file-a", file_data: text })], `${at}.file_data`, "cannot stand beside"],
    ["no base64", () => [filePart({ filename: "a.pdf", file_data: "%%" })], `${at}.file_data`, "must be base64"],
    ["an empty file", () => [filePart({ file_data: "data:text/plain;base64," })], `${at}.file_data`, "empty file"],
    ["a PDF in name alone", () => [data("staff.md", "a.pdf")], `${at}.file_data`, "it is no PDF"],
    [
      "a damaged archive",
      () => [filePart({ filename: "a.docx", file_data: Buffer.from("PK\x03\x04aaaa").toString("base64") })],
      `${at}.file_data`,
      "damaged",
    ],
    ["an unknown format", () => [data("staff.md", "a.exe")], `${at}.file_data`, "not supported (extension .exe)"],
    ["a name with a line break", () => [data("staff.md", "a\n.md")], `${at}.filename`, "control characters"],
    ["17 files", () => Array.from({ length: 17 }, () => data("staff.md")), "messages", "more than 16 files"],
    [
      "an image",
      () => [{ type: "image_url", image_url: { url: "https://x" } }],
      "messages[0].content[0].type",
      "'text' and 'file'",
    ],
  ];
  test.each(refusals)("refuse %s", async (_why, parts, param, message) => {
    const body = chatOver(...(parts() as FilePart[]));
    const sent = await client.chat.completions.create(body).catch((error: unknown) => error);
    expect(sent).toMatchObject({ status: 400, code: "invalid_value", param });
    expect(String(sent)).toContain(message);
  });

  test("refuse a file of the system's and of the assistant's", async () => {
    for (const role of ["system", "assistant"]) {
      const body = {
        ...chatOver(),
        messages: [
          { role, content: [data("staff.md")] },
          { role: "user", content: "?" },
        ],
      };
      const sent = await client.chat.completions.create(body as never).catch((error: unknown) => error);
      expect(sent).toMatchObject({ status: 400, param: "messages[0].content[0].type" });
    }
  });
});

test("a deleted file leaves no KV: neither its own, nor that of answers that were made with it", async () => {
  const own = await server.tenant("deletes");
  const by = openaiClient(server.url, own.apiKey);
  const blocks = async (): Promise<number> => (await cacheOf(server, own.id))?.blocks ?? 0;
  const before = await by.chat.completions.create({ ...chatOver(), messages: [{ role: "user", content: "Hi." }] });
  expect(before.usage?.total_tokens).toBeGreaterThan(0);
  const file_id = await upload("staff.md", by);
  const held = await blocks();
  for (const attention of ["span", "full"]) {
    await by.chat.completions.create({ ...chatOver(filePart({ file_id })), spangate: { attention } } as never);
  }
  await until(async () => (await blocks()) > held + 4, "the file is held");
  await by.files.delete(file_id);
  await until(async () => (await blocks()) <= held, "the file is gone");
});

describe("responses", () => {
  const ask = (part: object) => ({
    model: server.model,
    input: [{ role: "user" as const, content: [part, { type: "input_text" as const, text: question }] }] as never,
    temperature: 0,
    max_output_tokens: 40,
  });

  test("answer from bytes and uploads, cite the file, and go on with it", async () => {
    const file_data = `data:application/pdf;base64,${base64Of("staff.pdf")}`;
    const sent = await client.responses.create(ask({ type: "input_file", filename: "staff.pdf", file_data }));
    expect(sent.output_text).toContain("3057");
    expect(citationsIn(sent)).toMatchObject([{ document_id: "input[0].content[0]", filename: "staff.pdf", page: 2 }]);
    const file_id = await upload("staff.pdf");
    const named = await client.responses.create(ask({ type: "input_file", file_id }));
    const [item] = named.output;
    const annotations =
      item?.type === "message" && item.content[0]?.type === "output_text" ? item.content[0].annotations : [];
    expect(annotations).toMatchObject([{ type: "file_citation", file_id, filename: "staff.pdf", index: 0 }]);
    const next = await client.responses.create({
      ...ask({ type: "input_text", text: "" }),
      previous_response_id: named.id,
    });
    expect(next.output_text).toContain("3057");
    expect(citationsIn(next)).toMatchObject([{ file_id, page: 2 }]);
    const items = await client.responses.inputItems.list(named.id);
    expect(items.data[0]).toMatchObject({ content: [{ type: "input_file", file_id }, { type: "input_text" }] });
    await client.files.delete(file_id);
    const gone = client.responses.create({ ...ask({ type: "input_text", text: "" }), previous_response_id: named.id });
    expect(await gone.catch((error: unknown) => error)).toMatchObject({ status: 404, param: "previous_response_id" });
  });

  test("refuse a file's address, and a file of the assistant's", async () => {
    const sent = await client.responses
      .create(ask({ type: "input_file", file_url: "https://x" }))
      .catch((e: unknown) => e);
    expect(sent).toMatchObject({ status: 400, param: "input[0].content[0].file_url" });
    const input = [{ role: "assistant", content: [{ type: "input_file", file_id: "file-a" }] }] as never;
    const own = await client.responses.create({ model: server.model, input }).catch((error: unknown) => error);
    expect(own).toMatchObject({ status: 400, param: "input[0].content[0].type" });
  });
});

test("messages: documents as base64 and as uploads, cited as Anthropic does", async () => {
  const anthropic = new Anthropic({ baseURL: server.url, apiKey: tenant.apiKey, maxRetries: 0 });
  const ask = (source: object, fields: object = {}) => {
    const document = { type: "document", source, citations: { enabled: true }, ...fields };
    const messages = [{ role: "user", content: [document, { type: "text", text: question }] }] as never;
    return anthropic.messages.create({ model: server.model, max_tokens: 40, messages, ...{ temperature: 0 } });
  };
  const citedIn = ({ content }: Anthropic.Message) =>
    content.flatMap((block) => (block.type === "text" ? (block.citations ?? []) : []));
  const pdf = { type: "base64", media_type: "application/pdf", data: base64Of("staff.pdf") };
  const page = { type: "page_location", cited_text: sentence, start_page_number: 2, end_page_number: 3 };
  const context = "Of the town hall.";
  expect(citedIn(await ask(pdf, { title: "Staff", context }))).toMatchObject([
    { ...page, document_index: 0, document_title: "Staff", file_id: null },
  ]);
  const file_id = await upload("staff.md");
  const [cited] = citedIn(await ask({ type: "file", file_id }, { context }));
  expect(cited).toMatchObject({ type: "char_location", cited_text: sentence, file_id });
  const place = cited as Anthropic.CitationCharLocation;
  const whole = [...Buffer.from(files["staff.md"] ?? []).toString()];
  expect(whole.slice(place.start_char_index, place.end_char_index).join("")).toBe(sentence);
  const refused = await ask({ ...pdf, data: "%" }).catch((error: unknown) => error);
  expect(refused).toMatchObject({ status: 400 });
  expect(String(refused)).toContain("messages[0].content[0].source.data");
});
