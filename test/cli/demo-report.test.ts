import { expect, test } from "bun:test";
import { type AskedQuestion, answersTable, closingWords, questionBody } from "../../gateway/cli/demo-report.ts";

const asked = (expected: string, text: string): AskedQuestion => ({
  question: "When?",
  expected,
  answer: {
    text,
    clientTtftMs: 8,
    usage: { prompt_tokens: 9, completion_tokens: 5, total_tokens: 14, prompt_tokens_details: { cached_tokens: 7 } },
  },
});
const filler = "Orders for cakes with writing on them, and for those with more than one layer,";

test("an answer is right when it holds the words, cold and prepared alike", () => {
  const holds = asked("four", "Orders must reach us by four in the afternoon.");
  const lacks = asked("four", "The documents do not say.");
  const marks = (cold: AskedQuestion, prepared: AskedQuestion) =>
    answersTable([cold], [prepared]).match(/[✓✗]/g)?.join();
  expect([marks(holds, holds), marks(lacks, lacks), marks(lacks, holds), marks(holds, lacks)]).toEqual([
    "✓",
    "✗",
    "✗",
    "✗",
  ]);
  expect(answersTable([holds, lacks], [holds, lacks])).toContain("1 of 2 as expected");
});

test("of a long sentence the part with the expected words is shown, from the beginning of a word", () => {
  const long = asked("four in the afternoon", `${filler} must reach us by four in the afternoon, please.`);
  expect(answersTable([long], [long])).toContain(
    "  …with more than one layer, must reach us by four in the afternoon…  ",
  );
  const early = asked("cakes", `${filler} must reach us by four.`);
  expect(answersTable([early], [early])).toMatch(/ {2}Orders for cakes .*…/);
});

test("the line for curl asks what the demo has asked", () => {
  const question = "Who's there?";
  const corpus = { tenant: "acme", questions: [{ question }] };
  const words = closingWords({
    ...{ url: "http://127.0.0.1:1", adminKey: "k", model: "m" },
    tenants: [{ corpus, apiKey: "k", storeId: "vs_1" }],
  });
  const sent = words.match(/-d '(\{.*\})'$/m)?.[1]?.replaceAll("'\\''", "'") ?? "";
  expect(words).toContain("in a browser: http://127.0.0.1:1 ");
  expect(JSON.parse(sent)).toEqual(questionBody("m", "vs_1", question));
});
