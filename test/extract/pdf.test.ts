import { expect, test } from "bun:test";
import { pageText } from "../../gateway/extract/pdf.ts";

const line = (str: string, y: number, hasEOL = true) => ({ str, hasEOL, height: 10, transform: [1, 0, 0, 1, 0, y] });

test("lines become paragraphs, cut words are whole again, columns stay apart", () => {
  const items = [
    line("The hyphen-", 700),
    line("ation of a long", 688),
    line("", 688),
    line("word", 676, false),
    line(" ", 676, false),
    line("ends.", 676),
    line("A well-", 640),
    line("Known case.", 628),
    line("Second column.", 700),
  ];
  expect(pageText(items)).toBe("The hyphenation of a long word ends.\n\nA well- Known case.\n\nSecond column.");
});
