/** Patterns and formats of strings, each against JavaScript's own expressions. */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { z } from "zod";
import { fc } from "../support/fast-check.ts";
import { Adversary, byteTokens, vocabularyOf } from "./adversary.ts";
import { schemaGrammar } from "./compile.ts";

setDefaultTimeout(60_000);

const bytes = new Adversary(vocabularyOf(byteTokens), 0);
const accepts = (schema: object) => {
  const grammar = schemaGrammar({ type: "string", ...schema });
  return (text: string): boolean => bytes.accepts(grammar, JSON.stringify(text));
};
const signs = fc.constantFrom(
  ...('abcxyz019AZ_- .,@/\\"\n\t\r\u0001\u007féß€世\u2028😀\u{10ffff}'.match(/./gsu) ?? []),
);
const texts = fc.array(signs, { maxLength: 7 }).map((parts) => parts.join(""));

const patterns = [
  ...["^[a-c]{2}\\d+$", "a|b", "^a|b$", "^(?:a|bc)*$", "[^a-z]", "^[^\\n]*$", "^.$", "\\s", "^\\S+$", "^\\w{1,3}$"],
  ...["^(?:x{2,}|y?)z$", "^[\\w-]+$", '^["\\\\]+$', "^\\u0001$", "^\\u{1f600}$", "[é-€]", "^(?<year>\\d{2})-\\d$", "$"],
  ...["^$", "a$|^b", "^a*?b+?$", "^(?:a?){3}$", "[\\t\\x41]", "^[a\\-z]$", "^[\\^\\]]*$", "\\D\\W", "a.c", "^(?:|a)b$"],
];

describe("a pattern takes what JavaScript's takes", () => {
  test.each(patterns)("%s", (pattern) => {
    const expression = new RegExp(pattern, "u");
    const isTaken = accepts({ pattern });
    const matching = fc.stringMatching(new RegExp(pattern.replaceAll("(?<year>", "(?:"), "u"), { maxLength: 10 });
    const property = fc.property(fc.oneof(texts, matching), (text) => {
      if (!text.isWellFormed()) return;
      expect([text, isTaken(text)]).toEqual([text, expression.test(text)]);
    });
    fc.assert(property, { numRuns: 150 });
  });

  test("a count that is too high, or with nothing to repeat, is refused and not taken for text", () => {
    for (const pattern of [
      "a{1001}",
      "a{10000}",
      `a{1${"0".repeat(70)}}`,
      "a{2,1}",
      "a{,5}",
      "a{1 }",
      "{2}",
      "a*{2}",
    ]) {
      expect(() => accepts({ pattern })).toThrow(/count/);
    }
    expect(["{}", "{x}", "a{x}", "x"].filter(accepts({ pattern: "^a?{x?}$" }))).toEqual(["{}", "{x}", "a{x}"]);
  });

  test("within lengths, which count characters", () => {
    const isTaken = accepts({ pattern: "^(?:😀|ab)*$", minLength: 2, maxLength: 4 });
    const found = ["", "😀", "ab", "😀😀", "abab", "ab😀ab", "😀😀😀😀😀", "aba"].filter(isTaken);
    expect(found).toEqual(["ab", "😀😀", "abab"]);
    const open = accepts({ pattern: "a", minLength: 3 });
    expect(["a", "aa", "bab", "bbbb", "bbbba"].filter(open)).toEqual(["bab", "bbbba"]);
  });
});

test("formats take what is of them", () => {
  const cases: Readonly<Record<string, readonly [good: readonly string[], bad: readonly string[]]>> = {
    date: [
      ["2024-02-29", "2000-02-29", "1999-12-31"],
      ["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "24-01-01"],
    ],
    time: [
      ["23:59:59Z", "00:00:00.5+01:30"],
      ["24:00:00Z", "10:00:00", "1:00:00Z"],
    ],
    "date-time": [["2024-02-29T12:00:00Z"], ["2024-02-29 12:00:00Z", "2024-02-30T12:00:00Z"]],
    email: [["a.b+c@d-e.example.org"], ["a@b", "@b.org", "a b@c.org", ".a@b.org"]],
    hostname: [
      ["a.example", "localhost"],
      ["-a", "a-", "a..b"],
    ],
    ipv4: [
      ["0.0.0.0", "255.249.199.9"],
      ["256.0.0.1", "1.2.3", "01.2.3.4"],
    ],
    uuid: [["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]],
    uri: [["https://example.org/a?b=%20#c"], ["example", "https://a b", "https://%2"]],
  };
  for (const [format, [good, bad]] of Object.entries(cases)) {
    const isTaken = accepts({ format });
    for (const text of good) expect([format, text, isTaken(text)]).toEqual([format, text, true]);
    for (const text of bad) expect([format, text, isTaken(text)]).toEqual([format, text, false]);
  }
});

test("formats as zod writes them are grammars", () => {
  const named = {
    email: z.email(),
    uuid: z.uuid(),
    date: z.iso.date(),
    time: z.iso.datetime(),
    ip: z.ipv4(),
    url: z.url(),
  };
  const schema = z.object({ ...named, code: z.string().regex(/^[A-Z]{2}\d{4}$/), start: z.string().startsWith("x") });
  expect(schemaGrammar(z.toJSONSchema(schema)).symbols.length).toBeGreaterThan(500);
});
