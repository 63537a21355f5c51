import { expect, test } from "bun:test";
import { DocsIndex, searchLimits } from "../../gateway/docs/search.ts";

const entries = [
  { address: "/docs/a#salts", page: "A", title: "Rotating a salt", text: "A salt makes cached text unfindable." },
  {
    address: "/docs/b#other",
    page: "B",
    title: "Other",
    text: `${"word ".repeat(200)}a salt stands here ${"more ".repeat(200)}`,
  },
  { address: "/docs/c#none", page: "C", title: "None", text: "Nothing of it." },
];
const none = async (): Promise<void> => undefined;

test("titles go before texts, and an excerpt shows the word that was found", async () => {
  const index = await DocsIndex.of(entries, none);
  const found = index.find("salt");
  expect(found.map(({ address }) => address)).toEqual(["/docs/a#salts", "/docs/b#other"]);
  expect(found[1]?.excerpt).toContain("a salt stands here");
  expect(found[1]?.excerpt.length).toBeLessThan(240);
});

test("all words are wanted; where nothing has them, some of them are, roughly spelt", async () => {
  const index = await DocsIndex.of(entries, none);
  expect(index.find("salt unfindable").map(({ page }) => page)).toEqual(["A"]);
  expect(index.find("unfindible").map(({ page }) => page)).toEqual(["A"]);
  expect(index.find("")).toEqual([]);
  expect(index.find("!?")).toEqual([]);
});

test("of a long question the first characters and words count", async () => {
  const index = await DocsIndex.of(entries, none);
  const filler = Array.from({ length: searchLimits.words }, (_, at) => `x${at}`).join(" ");
  expect(index.find(`${filler} salt`)).toEqual([]);
  expect(index.find(`${"y".repeat(searchLimits.chars)} salt`)).toEqual([]);
});

test("an index is made in pieces with other work between", async () => {
  let rests = 0;
  const many = Array.from({ length: 40 }, (_, at) => ({ address: `/${at}`, page: "P", title: `T${at}`, text: "text" }));
  await DocsIndex.of(many, async () => {
    rests += 1;
  });
  expect(rests).toBe(10);
});
