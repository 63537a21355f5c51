/** The hand-written pages are whole, and answers are judged by whole words. */
import { expect, test } from "bun:test";
import { judge, pagesAround, readReadingPages } from "../../bench/support/reading-set.ts";

const known = { question: "How long?", answers: ["24 months", "two years"], answerable: true };
const unknown = { question: "What colour?", answers: [], answerable: false };

test("an accepted answer counts wherever it stands, without regard to case, signs and articles", () => {
  expect(judge(known, "The warranty runs for **24 Months**.")).toBe("right");
  expect(judge(known, "The two years.")).toBe("right");
  expect(judge(known, "124 months")).toBe("wrong");
  expect(judge(known, "24 month")).toBe("wrong");
  expect(judge(known, "The documents do not say.")).toBe("refused");
});

test("what the page does not answer has to be said so", () => {
  expect(judge(unknown, "The documents do not say.")).toBe("right");
  expect(judge(unknown, "It is blue.")).toBe("wrong");
});

test("every answerable question of the hand-written pages has an answer that stands in its page", () => {
  const pages = readReadingPages();
  expect(pages.length).toBeGreaterThanOrEqual(50);
  expect(new Set(pages.map((page) => page.title)).size).toBe(pages.length);
  const questions = pages.flatMap((page) => page.questions);
  expect(questions.filter((question) => question.answerable).length).toBeGreaterThanOrEqual(300);
  expect(questions.filter((question) => !question.answerable).length).toBeGreaterThanOrEqual(100);
  for (const page of pages) {
    for (const question of page.questions.filter((one) => one.answerable)) {
      expect({ question: question.question, inPage: judge(question, page.text) }).toEqual({
        question: question.question,
        inPage: "right",
      });
    }
  }
});

test("a page stands among others that are the same in every run, and never twice", () => {
  const pages = readReadingPages();
  const places = new Set<number>();
  for (const index of pages.keys()) {
    const around = pagesAround(pages, index, 4);
    expect(around).toHaveLength(5);
    expect(new Set(around).size).toBe(5);
    places.add(around.indexOf(pages[index] as (typeof pages)[number]));
    expect(pagesAround(pages, index, 4)).toEqual(around);
  }
  expect(places.size).toBe(5);
  expect(pagesAround(pages, 3, 0)).toEqual([pages[3] as (typeof pages)[number]]);
});
