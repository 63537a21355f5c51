import { describe, expect, test } from "bun:test";
import { type Chunk, chunkText } from "../../../gateway/corpus/ingest/chunk.ts";
import {
  maxSentenceChars,
  sentenceSteps,
  sentenceUnits,
  type TextKind,
} from "../../../gateway/corpus/ingest/sentences.ts";
import { anyCodePoints } from "../../support/code-points.ts";
import { effort } from "../../support/effort.ts";
import { fc } from "../../support/fast-check.ts";
import { countTokens } from "../fixtures.ts";

/** Numbers in 0..1, the same ones for the same seed. */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

function chunk(text: string, maxTokens: number, overlapTokens = 0, kind: TextKind = "plain"): Chunk[] {
  return [...chunkText(text, kind, { maxTokens, overlapTokens }, countTokens)].filter((step) => step !== undefined);
}

function units(text: string, kind: TextKind = "plain"): string[] {
  return [...sentenceUnits(text, kind)].map((unit) => text.slice(unit.start, unit.end));
}

const anyText = fc.oneof(
  anyCodePoints({ maxLength: 400 }),
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

  test("fills fragments more than half on average, and none less than a quarter; a short text is one", () => {
    const sentences = Array.from({ length: 400 }, (_, i) => `Sentence number ${i} has a few words.`);
    for (const max of [64, 256]) {
      const sizes = chunk(sentences.join(" "), max).map(({ tokenCount }) => tokenCount);
      expect(sizes.reduce((sum, size) => sum + size, 0) / sizes.length / max).toBeGreaterThan(0.5);
      expect(Math.min(...sizes)).toBeGreaterThanOrEqual(max / 4);
    }
    expect(chunk(sentences.slice(0, 5).join(" "), 64).length).toBe(1);
  });

  test("a changed, added or removed sentence changes few fragments, and the text alone decides", () => {
    const random = randomOf(7);
    const words = "river house table garden window number letter morning evening winter paper stone bridge".split(" ");
    const draw = (): string => words[Math.floor(random() * words.length)] ?? "";
    const sentence = (): string =>
      `${Array.from({ length: 4 + Math.floor(random() * 24) }, draw).join(" ")} ends.${random() < 0.2 ? "\n\n" : " "}`;
    for (const [max, overlap, most] of [
      [32, 0, 4],
      [256, 0, 4],
      [64, 16, 8],
    ] as const) {
      const document = Array.from({ length: 400 }, (_, i) => `S${i} ${sentence()}`);
      const texts = (sentences: readonly string[]) => chunk(sentences.join(""), max, overlap).map(({ text }) => text);
      const before = new Set(texts(document));
      expect([...new Set(texts(document))]).toEqual([...before]);
      const changed: number[] = [];
      for (let edit = 0; edit < effort(45, 150); edit++) {
        const at = Math.floor(random() * document.length);
        const inserted = edit % 3 === 1 ? [] : [`T${edit} ${sentence()}`];
        const after = texts(document.toSpliced(at, edit % 3 === 2 ? 0 : 1, ...inserted));
        changed.push(after.filter((text) => !before.has(text)).length);
      }
      expect([max, Math.max(...changed) <= most, Math.max(...changed)]).toEqual([max, true, Math.max(...changed)]);
      expect(changed.reduce((sum, count) => sum + count) / changed.length).toBeLessThan(most / 2);
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

  test("a heading begins a new fragment where neither that nor the one before gets very small", () => {
    const body = "Some words in a sentence here. ".repeat(2);
    const part = (name: string) => `# ${name}\n\n${body}\n\n`;
    const chunks = chunk(["One", "Two", "Three"].map(part).join(""), 32, 0, "markdown");
    expect(chunks.map(({ text }) => text.slice(0, 5))).toEqual(["# One", "# Two", "# Thr"]);
    expect(chunk("# One\n\nSome words in a sentence here.\n\n# Two\n\nShort.", 32, 0, "markdown").length).toBe(1);
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
      const chars = effort(64, 128) * 1024;
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

test("whatever sign Unicode ends a sentence with ends one here", () => {
  const segmenter = new Intl.Segmenter("en", { granularity: "sentence" });
  const missed: string[] = [];
  let ends = 0;
  // All later planes are ideographs, tags and letters for private use.
  for (let code = 1; code < 0x2_0000; code++) {
    const sign = String.fromCodePoint(code);
    if (/[\r\n\u0085\u2028\u2029\p{Surrogate}]/u.test(sign)) continue;
    const text = `a${sign} B`;
    const isEnd = Array.from(segmenter.segment(text)).length > 1;
    if (isEnd) ends += 1;
    if (isEnd && units(text).length === 1) missed.push(code.toString(16));
  }
  expect(missed).toEqual([]);
  expect(ends).toBeGreaterThan(150);
});
