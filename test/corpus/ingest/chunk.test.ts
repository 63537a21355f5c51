import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { type Chunk, chunkText } from "../../../gateway/corpus/ingest/chunk.ts";
import {
  maxSentenceChars,
  sentenceSteps,
  sentenceUnits,
  type TextKind,
} from "../../../gateway/corpus/ingest/sentences.ts";
import { countTokens } from "../fixtures.ts";

function chunk(text: string, maxTokens: number, overlapTokens = 0, kind: TextKind = "plain"): Chunk[] {
  return [...chunkText(text, kind, { maxTokens, overlapTokens }, countTokens)].filter((step) => step !== undefined);
}

function units(text: string, kind: TextKind = "plain"): string[] {
  return [...sentenceUnits(text, kind)].map((unit) => text.slice(unit.start, unit.end));
}

const anyText = fc.oneof(
  fc.string({ unit: "binary", maxLength: 400 }),
  fc
    .array(
      fc.constantFrom(
        "Ada left. ",
        "\n",
        "\n\n",
        "# Head\n",
        "- item\n",
        "```\n",
        "x ",
        "東京。",
        "👍🏽",
        "\r\n",
        "    code\n",
        "Dr. ",
        "e.g. ",
      ),
      { maxLength: 80 },
    )
    .map((parts) => parts.join("")),
);
const anyKind = fc.constantFrom<TextKind>("plain", "markdown", "lines");

describe("sentenceUnits", () => {
  test("cover any text without gap or overlap", () => {
    fc.assert(
      fc.property(anyText, anyKind, (text, kind) => {
        expect(units(text, kind).join("")).toBe(text);
      }),
      { numRuns: 500 },
    );
  });

  test("are lines in code and rows, with the empty lines after them; long lines are cut, but through no character", () => {
    const code = 'a("One. Two! Three?");\n\n\n  b = "x.y. Z";\r\n\r\n# c\n';
    expect(units(code, "lines")).toEqual(['a("One. Two! Three?");\n\n\n', '  b = "x.y. Z";\r\n\r\n', "# c\n"]);
    const long = `${"x".repeat(maxSentenceChars - 1)}👍🏽 end\nlast`;
    expect(units(long, "lines").map((unit) => unit.length)).toEqual([maxSentenceChars - 1, 9, 4]);
    expect(units(long, "lines").join("").isWellFormed()).toBe(true);
  });

  test("a fragment of rows holds whole rows, and one of code begins where a part begins", () => {
    const rows = Array.from({ length: 30 }, (_, i) => `name: Ann ${i}. Vale | note: Yes! No. Maybe?`).join("\n");
    for (const { text } of chunk(rows, 40, 0, "lines")) expect(text).toMatch(/^name:[\s\S]*Maybe\?\n?$/);
    const code = Array.from({ length: 8 }, (_, i) => `def f${i}():\n    a = 1\n\n    return a + ${i}\n`).join("\n");
    for (const { text } of chunk(code, 24, 0, "lines")) expect(text).toStartWith("def ");
  });

  test("end where sentences end", () => {
    expect(units("Ada met Dr. Who. She e.g. left! Is 3.5 more? Yes.")).toEqual([
      "Ada met Dr. Who. ",
      "She e.g. left! ",
      "Is 3.5 more? ",
      "Yes.",
    ]);
    expect(units("J. R. Tolkien wrote. 東京は大きい。大阪も。")).toEqual([
      "J. R. Tolkien wrote. ",
      "東京は大きい。",
      "大阪も。",
    ]);
  });

  test("a wrapped line's break ends no sentence, a short line's does", () => {
    const wrapped = "This line of a hard-wrapped paragraph goes on\nin the next one. And ends.";
    expect(units(wrapped)).toEqual(["This line of a hard-wrapped paragraph goes on\nin the next one. ", "And ends."]);
    expect(units("Name: Ada\nTown: Ulm\n")).toEqual(["Name: Ada\n", "Town: Ulm\n"]);
  });

  test("Markdown: a heading goes with the sentence below, code and lists line by line", () => {
    const text = "Intro.\n\n# One\n\nFirst text. More.\n\n## Two\n- a\n- b\n\n```\nx = 1. Y\nz = 2\n```\n";
    expect(units(text, "markdown")).toEqual([
      "Intro.\n\n",
      "# One\n\nFirst text. ",
      "More.\n\n",
      "## Two\n- a\n",
      "- b\n\n",
      "```\n",
      "x = 1. ",
      "Y\n",
      "z = 2\n",
      "```\n",
    ]);
    expect(units("# Only a heading", "markdown")).toEqual(["# Only a heading"]);
  });

  test("no unit grows without bound", () => {
    const hostile = [
      "\n".repeat(200_000),
      "# h\n".repeat(50_000),
      "x".repeat(200_000),
      " ".repeat(200_000),
      "A. ".repeat(50_000),
      `# ${"y".repeat(200_000)}`,
    ];
    for (const text of hostile) {
      const found = units(text, "markdown");
      expect(found.join("") === text).toBe(true);
      expect(Math.max(...found.map((unit) => unit.length))).toBeLessThanOrEqual(2 * maxSentenceChars + 400);
    }
  });
});

describe("chunkText", () => {
  test("without overlap: joined is the text, every fragment within the bound and exactly counted", () => {
    fc.assert(
      fc.property(anyText, anyKind, fc.integer({ min: 16, max: 64 }), (text, kind, maxTokens) => {
        const chunks = chunk(text, maxTokens, 0, kind);
        expect(chunks.map((c) => c.text).join("")).toBe(text);
        for (const c of chunks) {
          expect(c.text).toBe(text.slice(c.firstChar, c.endChar));
          expect(c.tokenCount).toBe(countTokens(c.text));
          expect(c.tokenCount).toBeLessThanOrEqual(maxTokens);
          expect(c.text.isWellFormed() || !text.isWellFormed()).toBe(true);
        }
      }),
      { numRuns: 500 },
    );
  });

  test("cuts at sentence ends only, except inside a sentence that is over the maximum alone", () => {
    const word = fc.constantFrom("alpha", "beta", "gamma", "delta", "epsilon");
    const sentence = fc
      .array(word, { minLength: 1, maxLength: 40 })
      .map((words) => `${words.join(" ").replace(/^./, (c) => c.toUpperCase())}.`);
    fc.assert(
      fc.property(fc.array(sentence, { minLength: 1, maxLength: 30 }), fc.integer({ min: 16, max: 40 }), (all, max) => {
        const text = all.join(" ");
        const allowed = new Set<number>();
        let at = 0;
        for (const one of all) {
          const end = Math.min(at + one.length + 1, text.length);
          if (countTokens(text.slice(at, end)) > max) for (let i = at; i <= end; i++) allowed.add(i);
          allowed.add(end);
          at = end;
        }
        for (const c of chunk(text, max)) expect(allowed.has(c.endChar)).toBe(true);
      }),
      { numRuns: 300 },
    );
  });

  test("fills fragments: two neighbours never fit into one", () => {
    const text = Array.from({ length: 200 }, (_, i) => `Sentence number ${i} has a few words.`).join(" ");
    const chunks = chunk(text, 64);
    for (let i = 1; i < chunks.length; i++) {
      expect((chunks[i - 1]?.tokenCount ?? 0) + (chunks[i]?.tokenCount ?? 0)).toBeGreaterThan(64);
    }
  });

  test("overlap repeats whole sentences, covers everything, and makes progress", () => {
    fc.assert(
      fc.property(anyText, fc.integer({ min: 16, max: 48 }), (text, maxTokens) => {
        const chunks = chunk(text, maxTokens, Math.floor(maxTokens / 2));
        let covered = 0;
        for (const c of chunks) {
          expect(c.firstChar).toBeLessThanOrEqual(covered);
          expect(c.endChar).toBeGreaterThan(covered);
          expect(c.tokenCount).toBeLessThanOrEqual(maxTokens);
          covered = c.endChar;
        }
        expect(covered).toBe(text.length);
      }),
      { numRuns: 300 },
    );
    const text = "One one one. Two two two. Three three three. Four four four. Five five five.";
    const repeated = chunk(text, 16, 8).filter((c, i, all) => i > 0 && c.firstChar < (all[i - 1]?.endChar ?? 0));
    expect(repeated.length).toBeGreaterThan(0);
  });

  test("a heading begins a new fragment once the open one is half full", () => {
    const body = "Some words in a sentence here. ".repeat(2);
    const chunks = chunk(`${body}\n\n# Next\n\nNext body.`, 32, 0, "markdown");
    expect(chunks.at(-1)?.text.startsWith("# Next")).toBe(true);
  });

  test("a tokenizer whose counts are not additive still gets its bound kept", () => {
    // Joined texts cost one token more than their parts, which a sum does not see.
    const odd = (text: string) => Math.ceil(text.length / 4) + (text.match(/\. (?=\S)/g) ?? []).length * 3;
    const text = "Aaaa bbbb cccc. ".repeat(60);
    const steps = [...chunkText(text, "plain", { maxTokens: 20, overlapTokens: 0 }, odd)];
    const chunks = steps.filter((step) => step !== undefined);
    expect(chunks.map((c) => c.text).join("")).toBe(text);
    for (const c of chunks) expect(c.tokenCount).toBeLessThanOrEqual(20);
  });
});

describe("the work of a long text", () => {
  const repeated = (part: string) => (chars: number) => part.repeat(Math.ceil(chars / part.length)).slice(0, chars);
  const digits = (chars: number) => Array.from({ length: chars }, (_, i) => (i * 7_919) % 10).join("");
  const texts: readonly (readonly [string, (chars: number) => string])[] = [
    ["empty lines", (chars) => `a${repeated("\n")(chars)}`],
    ["lines of a letter", repeated("a\n")],
    ["headings", repeated("#\n")],
    ["list items", repeated("- a\n")],
    ["fences", repeated("```\n")],
    ["one paragraph, wrapped", repeated(`${"word ".repeat(9)}\n`)],
    ["one sentence", repeated("word ")],
    ["one word", repeated("a")],
    ["digits", digits],
    ["table rows", repeated("| a | b |\n")],
    ["short sentences", repeated("A. ")],
    ["spaces", (chars) => `${repeated(" ")(chars)}a`],
  ];
  /** Characters tokenized, and the most of them, or of the text, without a turn for others. */
  function workOf(text: string, maxTokens: number) {
    let counted = 0;
    let sinceTurn = 0;
    let mostBetween = 0;
    let turns = 0;
    const count = (part: string): number => {
      counted += part.length;
      sinceTurn += part.length;
      mostBetween = Math.max(mostBetween, sinceTurn);
      return countTokens(part);
    };
    for (const _ of chunkText(text, "markdown", { maxTokens, overlapTokens: 0 }, count)) {
      sinceTurn = 0;
      turns += 1;
    }
    return { counted, mostBetween, turns };
  }

  for (const maxTokens of [16, 256, 4_096]) {
    test.each(texts)(`%s, ${maxTokens} tokens: rises with its length, in small steps`, (_name, make) => {
      const chars = 128 * 1024;
      const [once, twice] = [workOf(make(chars), maxTokens), workOf(make(2 * chars), maxTokens)];
      // Each character is tokenized in its sentence, in the part of it that fits, and in the fragment.
      expect(once.counted).toBeLessThan(5 * chars);
      expect(twice.counted).toBeLessThan(2.2 * once.counted);
      expect(twice.mostBetween).toBeLessThanOrEqual(64 * 1024);
      expect(twice.turns).toBeGreaterThanOrEqual((2 * chars) / maxSentenceChars / 2);
    });
  }

  test("a fragment whose exact count is over the maximum is counted a few times only", () => {
    // Every seam costs two tokens more, so that the sum of the parts says little.
    const seams = (text: string) => Math.max(0, text.split("\n").length - 2);
    let counted = 0;
    const count = (part: string): number => {
      counted += part.length;
      return countTokens(part) + 2 * seams(part);
    };
    const text = "a\n".repeat(8_192);
    const chunks = [...chunkText(text, "markdown", { maxTokens: 4_096, overlapTokens: 0 }, count)];
    expect(chunks.map((chunk) => chunk?.text ?? "").join("")).toBe(text);
    expect(counted).toBeLessThan(16 * text.length);
  });

  test("a paragraph of many lines is looked through in steps before its first sentence", () => {
    const text = repeated(`${"word ".repeat(9)}\n`)(64 * maxSentenceChars);
    const steps = [...sentenceSteps(text, "markdown")];
    expect(steps.findIndex((unit) => unit !== undefined)).toBeGreaterThanOrEqual(62);
  });
});
