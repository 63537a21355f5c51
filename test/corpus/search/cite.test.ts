/** Which sentences of the documents an answer's sentences are tied to, over a set that was written by hand. */
import { expect, test } from "bun:test";
import { cite, leastShare } from "../../../gateway/corpus/search/cite.ts";
import { type CitationCase, citationSet } from "./citation-set.ts";

interface Counts {
  right: number;
  wrong: number;
  missed: number;
}

/** A citation of another sentence than the one that is meant is wrong, and the one that is meant is missed. */
async function count({ documents, question, answer }: CitationCase, bar: number, counts: Counts): Promise<void> {
  const text = answer.map(([sentence]) => sentence).join("");
  const sources = documents.map((document) => ({ text: document }));
  const found = await cite(text, question, sources, bar);
  let end = 0;
  for (const [sentence, from] of answer) {
    const start = end;
    end += [...sentence].length;
    const own = found.filter((citation) => citation.answer.start >= start && citation.answer.start < end);
    const quotes = own.map(({ source, units }) => documents[source]?.slice(units.start, units.end) ?? "");
    const isRight = from !== null && quotes.length === 1 && quotes[0]?.startsWith(from) === true;
    if (isRight) counts.right += 1;
    else if (quotes.length > 0) counts.wrong += 1;
    if (from !== null && !isRight) counts.missed += 1;
  }
}

async function measured(bar: number) {
  const counts: Counts = { right: 0, wrong: 0, missed: 0 };
  for (const each of citationSet) await count(each, bar, counts);
  const { right, wrong, missed } = counts;
  const [precision, recall] = [right / (right + wrong), right / (right + missed)];
  return { precision, recall, f1: (2 * precision * recall) / (precision + recall) };
}

test("over the set the bar is the best of all, and nearly everything is right", async () => {
  const own = await measured(leastShare);
  expect(own.precision).toBeGreaterThan(0.95);
  expect(own.recall).toBeGreaterThan(0.95);
  for (let bar = 0.1; bar < 1; bar += 0.1) expect((await measured(bar)).f1).toBeLessThanOrEqual(own.f1);
  // Without a bar the set has many wrong ones: it can tell.
  expect((await measured(0)).precision).toBeLessThan(0.75);
});

test("what the answer says in other words than a line of a log is found by the line alone", async () => {
  const text =
    "10:02 disk sda full at 98 percent of 400 GB\n10:07 job nightly-backup failed with code 28\n10:09 disk sda clean\n";
  const [only, ...others] = await cite("The nightly backup failed with code 28.", "", [{ text, filename: "disk.log" }]);
  expect(others).toEqual([]);
  expect(text.slice(only?.units.start, only?.units.end)).toBe("10:07 job nightly-backup failed with code 28");
});

test("megabytes of text and an answer without end take bounded work, in slices", async () => {
  const text = "Alpha beta 17 gamma. ".repeat(200_000);
  const answer = "Alpha beta 17 gamma delta. ".repeat(20_000);
  let turns = 0;
  let isDone = false;
  const count = (): void => {
    turns += 1;
    if (!isDone) setImmediate(count);
  };
  setImmediate(count);
  const found = await cite(answer, "Which beta?", [{ text }, { text }]);
  isDone = true;
  // 128 sentences of the answer at most.
  expect(found.length).toBeLessThanOrEqual(128);
  // Some 60 ms of work on an idle machine, in slices of 4 ms.
  expect(turns).toBeGreaterThan(8);
});

test("answers that end together are tied to their sources in turns of their own", async () => {
  const turns: number[] = [];
  let turn = 0;
  let isOver = false;
  const count = (): void => {
    turn += 1;
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  const sources = [{ text: "The kiosk opens at nine." }];
  const cited = Array.from({ length: 8 }, async () => {
    await cite("The kiosk opens at nine.", "When?", sources);
    turns.push(turn);
  });
  await Promise.all(cited);
  isOver = true;
  expect(new Set(turns).size).toBe(8);
});
