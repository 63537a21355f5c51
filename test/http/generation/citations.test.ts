import { expect, test } from "bun:test";
import { type CitedFragment, fileCitations } from "../../../gateway/http/generation/citations.ts";

const fragment = (fileId: string, text: string) => ({ fileId, filename: `${fileId}.md`, text }) as CitedFragment;
const fragments = [
  fragment("file-a", "The extension of Mira Holt is 4821."),
  fragment("file-b", "Jon Vale lives in Fairhaven."),
  fragment("file-b", "The extension of Jon Vale is 3057."),
  fragment("file-c", "The extension of Ada Quill is 7719."),
];
const question = "What is the extension of Jon Vale?";
const cited = (answer: string) => fileCitations(answer, question, fragments).map(({ index }) => index);

test("the file that holds what the answer adds to the question, by its place among the files", () => {
  expect(fileCitations("The extension of Jon Vale is 3057.", question, fragments)).toEqual([
    { type: "file_citation", file_id: "file-b", filename: "file-b.md", index: 1 },
  ]);
});

test("each of several files, none where the answer holds nothing of theirs", () => {
  expect(cited("4821 or 7719")).toEqual([0, 2]);
  expect(cited("The documents do not say.")).toEqual([]);
  expect(cited("")).toEqual([]);
  expect(fileCitations("3057", question, [])).toEqual([]);
});

test("a file that holds less than half as much as the best is not cited", () => {
  expect(cited("Mira Holt has 4821, not 7719.")).toEqual([0]);
  expect(cited("Holt has 4821, not 7719.")).toEqual([0, 2]);
});
