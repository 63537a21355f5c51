/** Documents as HTML: what they may do, and what they may not. */
import { describe, expect, test } from "bun:test";
import { renderMarkdown } from "../../gateway/docs/markdown.ts";
import { type DocsPage, DocsPages } from "../../gateway/docs/pages.ts";

const pages = new DocsPages();
const page = pages.find("limits") as DocsPage;
const targets = {
  link: (href: string) => pages.linkFrom(page, href),
  picture: (href: string) => pages.pictureFrom(page, href) && `/docs/pictures/${pages.pictureFrom(page, href)}`,
};
const html = (source: string): string => renderMarkdown(source, targets).html;

describe("a document", () => {
  test("has its HTML as text", () => {
    for (const hostile of [
      '<img src=x onerror="alert(1)">',
      "<script>alert(1)</script>",
      "text <svg onload=alert(1)> text",
      "<a href='javascript:alert(1)'>x</a>",
      "# <iframe src=//evil.example></iframe>",
      "| a |\n| --- |\n| <b onclick=alert(1)>x</b> |",
      "```html\n</code></pre><script>alert(1)</script>\n```",
      "`</code><script>alert(1)</script>`",
    ]) {
      const made = html(hostile);
      // The tags are those of the Markdown alone, and no attribute is the document's.
      expect(made.match(/<(?!\/?(?:p|h\d|a|code|pre|div|table|thead|tbody|tr|th|td)\b)[^>]*>/g) ?? []).toEqual([]);
      expect(made).not.toMatch(/<[^>]*\s(?:on\w+|src)=/i);
    }
  });

  test("links to other documents and http(s) addresses alone", () => {
    const link = (href: string): string | undefined => /<a href="([^"]*)"/.exec(html(`[x](${href})`))?.[1];
    expect(link("api.md#routes")).toBe("/docs/api#routes");
    expect(link("../gateway/query/README.md")).toBe("/docs/span-queries");
    expect(link("adr/0004-salts-at-every-chain-root.md")).toBe("/docs/adr-0004-salts-at-every-chain-root");
    expect(link("#documents-and-search")).toBe("#documents-and-search");
    expect(link("https://example.com/a?b=%22")).toBe("https://example.com/a?b=%22");
    for (const other of [
      "javascript:alert(1)",
      "JaVaScRiPt:alert(1)",
      "data:text/html,x",
      "//evil.example",
      "vbscript:x",
    ]) {
      expect(link(other), other).toBeUndefined();
    }
    // A source file is nothing that a server shows.
    expect(html("[config](../gateway/config.ts)")).toBe("<p>config</p>\n");
  });

  test("shows pictures that lie beside the documents, and others' descriptions", () => {
    expect(html("![a curve](pictures/rag.svg)")).toContain('<img src="/docs/pictures/rag.svg" alt="a curve">');
    for (const other of [
      "https://evil.example/a.svg",
      "../docs/pictures/../../secret.svg",
      "pictures/a.svg?x",
      "/a.svg",
    ]) {
      expect(html(`![words](${other})`)).toBe("<p>words</p>\n");
    }
  });

  test("names its headings as GitHub does, each once, and tells the text below each", () => {
    const source =
      "# `a` and b!\n\none *two*\n\n## Part\n\n- three `four`\n- five\n\n## Part\n\n| x | y |\n| --- | ---: |\n| six | 7 |\n";
    const { html: made, sections } = renderMarkdown(source, targets);
    expect(sections).toEqual([
      { anchor: "a-and-b", title: "a and b!", depth: 1, text: "one two" },
      { anchor: "part", title: "Part", depth: 2, text: "three four five" },
      { anchor: "part-1", title: "Part", depth: 2, text: "x y six 7" },
    ]);
    for (const { anchor } of sections) expect(made).toContain(`id="${anchor}"`);
    expect(made).toContain('<td class="number">7</td>');
  });
});
