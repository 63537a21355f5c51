/** Citations of messages: where in the request's blocks the answer's words stand. */
import { expect, test } from "bun:test";
import { type CitableSource, messageCitations } from "../../../gateway/http/anthropic/citations.ts";
import { chatRig, post } from "../chat-rig.ts";

const document = (content: CitableSource["content"], fields: Partial<CitableSource> = {}): CitableSource => {
  return { title: "People", source: undefined, index: 0, content, ...fields };
};
const question = "What is the extension of Jon Vale?";
const answer = "The extension of Jon Vale is 3057.";

test("the sentence that holds what the answer adds, by its characters", () => {
  const text = "😀 Mira Holt bakes. The extension of Jon Vale is 3057. He lives in Fairhaven.";
  const [first, ...others] = messageCitations(answer, question, [document(text, { index: 2 })]);
  expect(others).toEqual([]);
  const { start_char_index: start, end_char_index: end, ...rest } = first as Record<string, unknown>;
  const cited = "The extension of Jon Vale is 3057. ";
  expect(rest).toEqual({
    type: "char_location",
    cited_text: cited,
    document_index: 2,
    document_title: "People",
    file_id: null,
  });
  expect([...text].slice(start as number, end as number).join("")).toBe(cited);
});

test("parts of documents and of search results by their place", () => {
  const content = ["Mira Holt bakes.", "The extension of Jon Vale is 3057."];
  const place = { start_block_index: 1, end_block_index: 2, cited_text: content[1] };
  const result = document(content, { title: "T", source: "https://people.example", index: 1 });
  expect(messageCitations(answer, question, [document(content, { title: undefined }), result])).toEqual([
    { type: "content_block_location", document_index: 0, document_title: null, file_id: null, ...place },
    { type: "search_result_location", search_result_index: 1, source: "https://people.example", title: "T", ...place },
  ]);
});

test("nothing is cited where nothing holds the answer's words, and not without end where all do", () => {
  expect(messageCitations("The documents do not say.", question, [document("Mira Holt bakes.")])).toEqual([]);
  expect(messageCitations(answer, question, [])).toEqual([]);
  const many = Array.from({ length: 200 }, () => "3057.");
  expect(messageCitations(answer, question, [document(many)])).toHaveLength(16);
});

test("blocks cite only where it was asked for, whole and streamed", async () => {
  const { app } = chatRig();
  const block = (data: string, enabled: boolean) => {
    return { type: "document", source: { type: "text", media_type: "text/plain", data }, citations: { enabled } };
  };
  const ask = (fields: object, ...enabled: readonly boolean[]) => {
    const content = [...enabled.map((on) => block("user thing", on)), { type: "text", text: "x" }];
    const body = { model: "fake-model", max_tokens: 4, messages: [{ role: "user", content }], ...fields };
    return post(app, body, { path: "/v1/messages" });
  };
  const citationsOf = async (...enabled: readonly boolean[]) => {
    const { content } = (await (await ask({}, ...enabled)).json()) as { content: { citations: object[] | null }[] };
    return content[0]?.citations;
  };
  expect(await citationsOf()).toBeNull();
  expect(await citationsOf(false, false)).toBeNull();
  expect(await citationsOf(false, true)).toMatchObject([{ type: "char_location", document_index: 1 }]);
  const events = await (await ask({ stream: true }, true)).text();
  const [, delta = ""] = /^data: (.*citations_delta.*)$/m.exec(events) ?? [];
  expect(JSON.parse(delta)).toMatchObject({ index: 0, delta: { citation: { document_index: 0 } } });
});
