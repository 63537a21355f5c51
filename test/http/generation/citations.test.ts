import { expect, test } from "bun:test";
import type { RetrievedFragment } from "../../../gateway/corpus/search/retrieve.ts";
import { citationBodies, citationsOf, fileCitations } from "../../../gateway/http/generation/citations.ts";

const fragment = (fileId: string, text: string, fields: object = {}) =>
  ({ id: `frag-${fileId}`, fileId, filename: `${fileId}.md`, text, ...fields }) as unknown as RetrievedFragment;
const retrieved = [
  fragment("file-a", "The extension of Mira Holt is 4821."),
  fragment("file-b", "Jon Vale lives in Fairhaven."),
  fragment("file-b", "The extension of Jon Vale is 3057.", { pages: [{ at: 0, number: 2, name: "Accounts" }] }),
  fragment("file-c", "The extension of Ada Quill is 7719."),
];
const sources = { documents: [], retrieved };
const question = "What is the extension of Jon Vale?";
const citedIn = (answer: string) => citationsOf({ question, documents: [], retrieved }, answer);
const filesIn = async (answer: string) => fileCitations(await citedIn(answer), sources).map(({ index }) => index);

test("the file that holds what the answer adds to the question, by its place among the files", async () => {
  expect(fileCitations(await citedIn("The extension of Jon Vale is 3057."), sources)).toEqual([
    { type: "file_citation", file_id: "file-b", filename: "file-b.md", index: 1 },
  ]);
});

test("each of several files, none where the answer holds nothing of theirs", async () => {
  expect(await filesIn("The first is 4821. The second is 7719.")).toEqual([0, 2]);
  expect(await filesIn("The documents do not say.")).toEqual([]);
  expect(await filesIn("")).toEqual([]);
  expect(await citationsOf({ question, documents: [], retrieved: [] }, "3057")).toEqual([]);
});

test("quotes stand literally in their text and ranges count characters, in answer and text", async () => {
  const document = { id: "notes", title: "Notes", text: "# Phones 😀\n\n- Jon Vale: 3057\n- Mira Holt: 4821" };
  const answer = "😀 Gladly! Jon Vale has 3057.";
  const citations = await citationsOf({ question, documents: [document], retrieved: [] }, answer);
  expect(citationBodies(citations, { isBatchLine: false })).toEqual([
    {
      ...{ document_id: "notes", title: "Notes", quote: "Jon Vale: 3057" },
      ...{ answer_range: [10, 28], quote_range: [14, 28], score: 0.714 },
    },
  ]);
});

test("a file's page is told by number and name; a line of a batch has no text of a file", async () => {
  const citations = await citedIn("It is 3057.");
  const [told] = citationBodies(citations, { isBatchLine: false });
  const facts = { file_id: "file-b", fragment_id: "frag-file-b", page: 2, page_name: "Accounts" };
  expect(told).toMatchObject({ ...facts, quote: "The extension of Jon Vale is 3057." });
  const [ofBatch] = citationBodies(citations, { isBatchLine: true });
  expect(ofBatch).toMatchObject(facts);
  expect(ofBatch).not.toHaveProperty("quote");
});
