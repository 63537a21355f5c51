/** What a model wrote, as elements: what Markdown may do there, and what it may not. */
import { describe, expect, test } from "bun:test";
import {
  type Mark,
  type MarkdownNode,
  markdownTree,
  safeLink,
} from "../../gateway/console/client/answers/markdown-tree.ts";
import { fc } from "../support/fast-check.ts";

/** Every element, with its attributes, in order. */
function elementsOf(nodes: readonly MarkdownNode[]): readonly string[] {
  return nodes.flatMap((node) => {
    if (!("tag" in node)) return [];
    const { tag, children, ...attributes } = node;
    const own = Object.entries(attributes).map(([name, value]) => ` ${name}=${value}`);
    return [tag + own.join(""), ...elementsOf(children)];
  });
}
const textOf = (nodes: readonly MarkdownNode[]): string =>
  nodes
    .map((node) => ("text" in node ? node.text : "source" in node ? `[${node.source}]` : textOf(node.children)))
    .join("");
const read = (source: string, marks?: readonly Mark[]) => {
  const tree = markdownTree(source, marks) ?? [];
  return { elements: elementsOf(tree), text: textOf(tree) };
};

describe("Markdown", () => {
  test("becomes elements", () => {
    const { elements, text } = read(
      "# Head\n\n*one* **two** `three`\n\n- four\n- five\n\n2. six\n\n| a |\n| --- |\n| b |\n",
    );
    expect(elements).toEqual([
      ...["h3", "p", "em", "strong", "code", "ul", "li", "li", "ol start=2", "li"],
      ...["table", "thead", "tr", "th", "tbody", "tr", "td"],
    ]);
    expect(text).toBe("Headone two threefourfivesixab");
  });

  test("has HTML as text, and pictures as their descriptions", () => {
    const { elements, text } = read(
      'a <img src=x onerror="f()"> b\n\n<script>f()</script>\n\n![pic](https://evil.example/x.png)',
    );
    expect(elements).toEqual(["p", "p", "p"]);
    expect(text).toContain('<img src=x onerror="f()">');
    expect(text).toContain("<script>f()</script>");
    expect(text).toEndWith("pic");
  });

  test("links to the web alone", () => {
    const { elements } = read(
      "[a](https://example.com/x) [b](javascript:f()) [c](data:text/html,x) [d](//evil) <https://e.org>",
    );
    expect(elements.slice(1)).toEqual(["a href=https://example.com/x", "a href=https://e.org/"]);
    const others = [
      "JAVASCRIPT:f()",
      " javascript:f()",
      "java\nscript:f()",
      "https:evil",
      "http://",
      "ftp://a",
      "#x",
      "",
    ];
    for (const other of others) expect(safeLink(other), other).toBeUndefined();
  });

  test("has marks where sentences with a source end, counted in characters", () => {
    const marks = [
      { at: 14, source: 2 },
      { at: 9, source: 1 },
    ];
    expect(read("😀 is one. Two.", marks).text).toBe("😀 is one.[1] Two.[2]");
    // A text's own signs are no marks, and a mark behind an address is none of it.
    expect(read("a \ue0007\ue001 b").text).toBe("a \ufffd7\ufffd b");
    const linked = read("see https://e.org/a", [{ at: 19, source: 1 }]);
    expect(linked).toEqual({ elements: ["p", "a href=https://e.org/a"], text: "see https://e.org/a[1]" });
    expect(read("short", [{ at: 900, source: 1 }]).text).toBe("short[1]");
  });

  test("of any text makes no element and no attribute but its own", () => {
    const blocks = "p|h3|hr|pre|blockquote|ul|ol start=\\d+|li|table|thead|tbody|tr|th|td";
    const allowed = new RegExp(`^(?:${blocks}|strong|em|del|br|code|a href=https?://\\S+)$`);
    const pieces = ["<img onerror=f()>", "[x](javascript:f())", "![x](y)", "```", "# ", "| a |\n| - |\n", "- ", "> "];
    const more = [
      "<a href=x>",
      "\n\n",
      "**",
      "`",
      "http://e.org",
      "&lt;",
      "\ue0001\ue001",
      "1. ",
      "[x]: javascript:f()\n",
    ];
    const piece = fc.oneof(fc.constantFrom(...pieces, ...more), fc.string());
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 12 }), (parts) => {
        for (const element of read(parts.join("")).elements) expect(element).toMatch(allowed);
      }),
    );
  });

  test("that is longer than a page can read is none", () => {
    expect(markdownTree("x".repeat(200_001))).toBeUndefined();
  });
});
