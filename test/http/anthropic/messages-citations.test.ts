/** Citations of messages: where in the request's blocks, or in the files that were found, the answer's words stand. */
import { expect, test } from "bun:test";
import type { RetrievedFragment } from "../../../gateway/corpus/search/retrieve.ts";
import { type CitableSource, messageCitations } from "../../../gateway/http/anthropic/citations.ts";
import { citationsOf } from "../../../gateway/http/generation/citations.ts";
import { chatRig, post } from "../chat-rig.ts";

const question = "What is the extension of Jon Vale?";
const answer = "The extension of Jon Vale is 3057.";
const line = (text: string): string => (text === "" ? "" : `${text}\n`);

interface Block extends Partial<Omit<CitableSource, "content">> {
  readonly content: string | readonly string[];
  /** What the API writes before the block's text. */
  readonly head?: string;
}

/** Blocks of a request that all want citations, and fragments that were found. */
async function cited(said: string, blocks: readonly Block[], retrieved: readonly RetrievedFragment[] = []) {
  const sources = blocks.map(({ head: _, content: given, ...block }, document): CitableSource => {
    const content = typeof given === "string" ? undefined : given;
    return { title: "People", source: undefined, index: document, document, ...block, content };
  });
  const documents = blocks.map(({ content, head = "" }, index) => {
    const body = typeof content === "string" ? content : content.join("\n");
    return { id: `document-${index}`, text: line(head) + body, bodyAt: line(head).length };
  });
  const citations = await citationsOf({ question, documents, retrieved }, said);
  const blocksOf = { sources, documentCount: blocks.length, resultCount: 0 };
  return messageCitations(citations, blocksOf, { isBatchLine: false }, retrieved);
}

test("the sentence that holds what the answer adds, by its characters", async () => {
  const text = "😀 Mira Holt bakes. The extension of Jon Vale is 3057. He lives in Fairhaven.";
  const [first, ...others] = await cited(answer, [{ content: text, index: 2, head: "Context: 🙂 of the staff" }]);
  expect(others).toEqual([]);
  const { start_char_index: start, end_char_index: end, ...rest } = first as Record<string, unknown>;
  const sentence = "The extension of Jon Vale is 3057.";
  const facts = { document_index: 2, document_title: "People", file_id: null };
  expect(rest).toEqual({ type: "char_location", cited_text: sentence, ...facts });
  expect([...text].slice(start as number, end as number).join("")).toBe(sentence);
});

test("parts of documents and of search results by their place", async () => {
  const content = ["Mira Holt bakes.", "The extension of Jon Vale is 3057."];
  const place = { start_block_index: 1, end_block_index: 2, cited_text: content[1] };
  expect(await cited(answer, [{ content, title: undefined }])).toEqual([
    { type: "content_block_location", document_index: 0, document_title: null, file_id: null, ...place },
  ]);
  const result = { content, source: "https://people.example", index: 1, head: "Source: https://people.example" };
  expect(await cited(answer, [{ content: "Ada Quill bakes." }, result])).toEqual([
    {
      type: "search_result_location",
      search_result_index: 1,
      source: "https://people.example",
      title: "People",
      ...place,
    },
  ]);
});

test("files that were found: by their page where they have pages, after the request's own documents", async () => {
  const text = "Mira Holt bakes.\n\nThe extension of Jon Vale is 3057.";
  const fragment = { id: "frag_1", fileId: "file-1", filename: "people.pdf", text };
  const paged = {
    ...fragment,
    pages: [
      { at: 0, number: 3 },
      { at: 18, number: 4 },
    ],
  } as unknown as RetrievedFragment;
  const own = { content: "Ada Quill bakes." };
  const quote = { cited_text: "The extension of Jon Vale is 3057." };
  const place = { document_index: 1, document_title: "people.pdf", start_page_number: 4, end_page_number: 5 };
  expect(await cited(answer, [own], [paged])).toEqual([
    { type: "page_location", ...quote, ...place, file_id: "file-1" },
  ]);
  const unpaged = fragment as unknown as RetrievedFragment;
  const result = { search_result_index: 0, source: "file-1", title: "people.pdf" };
  expect(await cited(answer, [own], [unpaged])).toEqual([
    { type: "search_result_location", ...quote, ...result, start_block_index: 0, end_block_index: 1 },
  ]);
});

test("nothing is cited where nothing holds the answer's words, and one source where all do", async () => {
  expect(await cited("The documents do not say.", [{ content: "Mira Holt bakes." }])).toEqual([]);
  expect(await cited(answer, [])).toEqual([]);
  const many = Array.from({ length: 200 }, () => "3057.");
  expect(await cited("3057", [{ content: many }])).toHaveLength(1);
});

test("blocks cite only where it was asked for, whole and streamed", async () => {
  const { app } = chatRig();
  const block = (data: string, enabled: boolean) => {
    return { type: "document", source: { type: "text", media_type: "text/plain", data }, citations: { enabled } };
  };
  const ask = (fields: object, ...enabled: readonly boolean[]) => {
    const content = [...enabled.map((on) => block(on ? "user thing" : "other words", on)), { type: "text", text: "x" }];
    const body = { model: "fake-model", max_tokens: 4, messages: [{ role: "user", content }], ...fields };
    return post(app, body, { path: "/v1/messages" });
  };
  const citationsOf = async (...enabled: readonly boolean[]) => {
    const { content } = (await (await ask({}, ...enabled)).json()) as { content: { citations: object[] | null }[] };
    return content[0]?.citations;
  };
  expect(await citationsOf()).toBeNull();
  expect(await citationsOf(false, false)).toBeNull();
  // What is cited may not be told of a block that did not ask for it.
  expect(await citationsOf(true, true)).toMatchObject([{ document_index: 0 }]);
  expect(await citationsOf(false, true)).toMatchObject([{ type: "char_location", document_index: 1 }]);
  const events = await (await ask({ stream: true }, true)).text();
  const [, delta = ""] = /^data: (.*citations_delta.*)$/m.exec(events) ?? [];
  expect(JSON.parse(delta)).toMatchObject({ index: 0, delta: { citation: { document_index: 0 } } });
});
