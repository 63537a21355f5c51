import { expect, test } from "bun:test";
import { type Chain, longChain, makeChain, readNames } from "./chains.ts";
import { chainRequest, scoreChain } from "./score.ts";

const names = readNames();

/** Reads a prompt and works it out anew, from what it says and not from how it was made. */
function lastValue(prompt: string): number {
  const values = new Map<string, number>();
  for (const line of prompt.split("\n")) {
    const given = /^- (\w+) is (\d\d)$/.exec(line);
    if (given !== null) values.set(given[1] ?? "", Number(given[2]));
    const sum = /^- (\w+) = (\w+) \+ (\w+)$/.exec(line);
    if (sum !== null) {
      values.set(
        sum[1] ?? "",
        ((values.get(sum[2] ?? "") ?? Number.NaN) + (values.get(sum[3] ?? "") ?? Number.NaN)) % 100,
      );
    }
  }
  const asked = /What is (\w+)\?$/.exec(prompt)?.[1] ?? "";
  return values.get(asked) ?? Number.NaN;
}

const hashOf = ({ prompt, answer }: Chain): string =>
  new Bun.CryptoHasher("sha256").update(`${prompt}\n\n${answer}`).digest("hex");

test("a short chain, written out", () => {
  const { prompt, answer } = makeChain(7, { least: 3, most: 3 }, names);
  expect(prompt).toBe(`Given:
- weather is 72
- ring is 25
- members is 15
- hand is 76
Derive:
- laboratory = weather + ring
- dress = members + ring
- mountain = ring + dress
What is mountain?`);
  expect(answer).toBe(`- laboratory = weather + ring; weather is 72, ring is 25; 2+5=07, 7+2+0=09; laboratory is 97
- dress = members + ring; members is 15, ring is 25; 5+5=10, 1+2+1=04; dress is 40
- mountain = ring + dress; ring is 25, dress is 40; 5+0=05, 2+4+0=06; mountain is 65
Answer: 65`);
});

/** What recipe/chains.py makes of these seeds and bounds, prompt and answer with an empty line between them. */
test.each([
  [0, 1, 3, "adce2ffaa72a2a9ec5fdfbbf2ccf0612ec41931475a17408b0f8397b232d44a8"],
  [7, 91, 181, "a7f2ef31c0120aee04c02a664f3a32e4efd0cc8b9ae40e85e80a5bb36cf85a8b"],
  [123_456_789, 91, 181, "4fd7d03fd267e3df3a1a9ca51f377c88c1c1da1e46bb23ee58a9c3e5eabf8b31"],
  [2_147_483_653, 1, 248, "e0a2c2272edd58a38e24706f7e3b0e2a018d5b3a6d58469c3e9c8c24752063e1"],
])("seed %i, %i to %i lines: as the model was trained on them", (seed, least, most, hash) => {
  expect(hashOf(makeChain(seed, { least, most }, names))).toBe(hash);
});

test("the answer's last value is what the prompt works out to, and its lines are the plan's", () => {
  for (let seed = 0; seed < 200; seed += 1) {
    const { prompt, answer } = makeChain(seed, longChain, names);
    expect(answer).toEndWith(`\nAnswer: ${String(lastValue(prompt)).padStart(2, "0")}`);
    const plan = prompt.split("\n").filter((line) => line.includes(" = "));
    expect(
      answer
        .split("\n")
        .slice(0, -1)
        .map((line) => line.split(";")[0] ?? ""),
    ).toEqual(plan);
  }
});

test("about a quarter of the lines have a part in the last one's value", () => {
  const shares = Array.from({ length: 100 }, (_, seed) => {
    const plan = makeChain(seed, longChain, names)
      .prompt.split("\n")
      .filter((line) => line.includes(" = "));
    const needed = new Set([plan.at(-1)?.split(" ")[1]]);
    for (const line of plan.toReversed()) {
      const [, name, , left, , right] = line.split(" ");
      if (needed.has(name)) needed.add(left).add(right);
    }
    return plan.filter((line) => needed.has(line.split(" ")[1])).length / plan.length;
  });
  const mean = shares.reduce((sum, share) => sum + share, 0) / shares.length;
  expect(mean).toBeGreaterThan(0.2);
  expect(mean).toBeLessThan(0.4);
});

test("more lines than names are refused", () => {
  expect(() => makeChain(1, { least: 300, most: 300 }, names)).toThrow(RangeError);
});

const chain = makeChain(7, { least: 3, most: 3 }, names);

test.each([
  ["the answer itself", chain.answer, true, true, 4],
  ["an end of line behind it", `${chain.answer}\n`, true, true, 4],
  [
    "a wrong sum that does not reach the last value",
    chain.answer.replace("laboratory is 97", "laboratory is 98"),
    true,
    false,
    0,
  ],
  ["a wrong last value", chain.answer.replace("Answer: 65", "Answer: 66"), false, false, 3],
  ["a line twice", `- dress is lost\n${chain.answer}`, true, false, 0],
  ["an answer cut off", chain.answer.slice(0, -3), false, false, 3],
  ["something behind the answer", `${chain.answer}\n- more`, false, false, 4],
  ["nothing", "", false, false, 0],
])("%s", (_, given, isRight, isWhole, linesBeforeMistake) => {
  expect(scoreChain(chain, given)).toEqual({ isRight, isWhole, linesBeforeMistake });
});

test("a chain is asked for greedily, with its prompt alone", () => {
  expect(chainRequest(chain, "m")).toMatchObject({
    model: "m",
    messages: [{ role: "user", content: chain.prompt }],
    temperature: 0,
  });
});
