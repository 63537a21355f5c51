/** Drawings: the whole tree, within bounds, whatever its texts hold. */
import { describe, expect, test } from "bun:test";
import { drawSvg, drawText } from "../../gateway/query/draw.ts";
import type { Query } from "../../gateway/query/ir.ts";
import { maxRows } from "../../gateway/query/outline.ts";
import { fc } from "../support/fast-check.ts";
import { g, out, treeOf, user } from "./nodes.ts";
import { treeArbitrary } from "./trees.ts";

const [a, b] = ["a", "b"].map(user);
const hostile = '</text><script>alert("1")</script>&\u0000\u001b[31m\u202e\ud800\uffff\n\u2028';

test("text is a tree of lines with labels", () => {
  const query = treeOf(g({ seq: [{ system: "judge" }, { plus: [{ seq: [a, out(a, { temperature: 0 })] }, b] }, a] }));
  const labels = (node: Query) =>
    node.kind === "message" ? `${"text" in node ? node.text.length : 0} tokens` : undefined;
  expect(drawText(query, labels).split("\n")).toEqual([
    'g model "m", temperature 0.6',
    "└─ seq",
    '   ├─ system "judge"  (5 tokens)',
    "   ├─ plus",
    "   │  ├─ seq",
    '   │  │  ├─ user "a"  (1 tokens)',
    '   │  │  └─ g model "m", expose "output", temperature 0',
    '   │  │     └─ user "a"  (1 tokens)',
    '   │  └─ user "b"  (1 tokens)',
    '   └─ user "a"  (1 tokens)',
  ]);
});

test("a run that stands twice is drawn once", () => {
  const shown = treeOf(g(a));
  const lines = drawText({ kind: "par", children: [shown, treeOf(g(b)), shown] }).split("\n");
  expect(lines).toEqual([
    "par",
    '├─ g model "m", temperature 0.6 #1',
    '│  └─ user "a"',
    '├─ g model "m", temperature 0.6',
    '│  └─ user "b"',
    '└─ g model "m", temperature 0.6 #1, as above',
  ]);
});

test("long texts and large trees are cut", () => {
  const many = treeOf({ plus: Array.from({ length: 2 * maxRows }, () => user("x".repeat(10_000))) });
  const lines = drawText(many).split("\n");
  expect(lines.length).toBe(maxRows + 1);
  expect(lines.at(-1)).toContain("and more");
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThan(120);
  expect(drawSvg(many).length).toBeLessThan(1_000 * maxRows);
});

test("a tree that shows everything twice at each level is cut in time", () => {
  let query: Query = { kind: "message", role: "user", text: "a" };
  for (let depth = 0; depth < 60; depth++) query = { kind: "seq", children: [query, query] };
  expect(drawText(query).split("\n").length).toBe(maxRows + 1);
});

/** A reader of the XML that is written here: elements, attributes, text, the five entities; nothing else passes. */
function elementsOf(xml: string): string[] {
  expect(xml).not.toMatch(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/u);
  const open: string[] = [];
  const seen: string[] = [];
  const token = /<(\/?)([a-zA-Z]+)((?: [a-zA-Z:-]+="[^"<&]*")*)(\/?)>|((?:[^<&]|&(?:amp|lt|gt|quot|apos);)+)/gy;
  let end = 0;
  for (const match of xml.matchAll(token)) {
    end = match.index + match[0].length;
    const [, closes, name = "", , isEmpty] = match;
    if (closes === "/") expect(open.pop()).toBe(name);
    else if (name !== "") {
      seen.push(name);
      if (isEmpty !== "/") open.push(name);
    }
  }
  expect({ end, open }).toEqual({ end: xml.length, open: [] });
  return seen;
}

describe("SVG", () => {
  test("is well formed, with nothing but shapes and text, whatever the texts hold", () => {
    const labels = () => hostile;
    const known = new Set(["svg", "g", "rect", "path", "text"]);
    const query = treeOf({ seq: [a, g({ plus: [b] })] });
    const written: Query = {
      kind: "seq",
      children: [query, { kind: "message", role: "user", text: hostile }, { kind: "fragment", id: hostile }],
    };
    for (const drawn of [
      drawSvg(written, labels),
      ...fc.sample(treeArbitrary, { numRuns: 200 }).map((tree) => drawSvg(tree)),
    ]) {
      const elements = elementsOf(drawn);
      expect(elements[0]).toBe("svg");
      expect(elements.filter((name) => !known.has(name))).toEqual([]);
    }
  });

  test("has a box for each node and a line to each child", () => {
    const elements = elementsOf(drawSvg(treeOf({ seq: [a, g({ plus: [b] })] })));
    const count = (name: string) => elements.filter((element) => element === name).length;
    expect({ boxes: count("rect") - 1, texts: count("text"), lines: count("path") }).toEqual({
      boxes: 5,
      texts: 5,
      lines: 4,
    });
  });
});

test("text drawings hold no control characters", () => {
  const drawn = drawText({ kind: "message", role: "user", text: hostile }, () => hostile);
  expect(drawn).not.toMatch(/[\p{C}\u2028]/u);
  expect(drawn).toContain("\\u{202e}");
});
