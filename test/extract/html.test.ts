import { describe, expect, test } from "bun:test";
import { decodeHtml, htmlText, pageText } from "../../gateway/extract/html.ts";
import { fc } from "../support/fast-check.ts";

const text = (html: string, maxTextChars = 10_000_000) => htmlText(html, { maxTextChars });

describe("a page's matter", () => {
  const page = (html: string) => pageText(html, { maxTextChars: 10_000 });
  const around = (matter: string) =>
    `<title>Ferry</title><header><a>Logo</a></header><nav>Home <b>News</b></nav>${matter}
     <aside>Buy this</aside><form>Search <input></form><footer>(c) 2026</footer><script>track()</script>`;

  test("is its main element, with the headers and notes of its own, without navigation", () => {
    const main = "<main><header><h1>Sails</h1></header>a<nav>Up</nav>b<aside>Note.</aside><article>c</article></main>";
    expect(page(around(main))).toBe("# Sails\n\na\n\nb\n\nNote.\n\nc");
    // The title of the page stands in place of a heading that is not in there.
    expect(page(around("<h1>Site</h1><MAIN><h2>Times</h2>at six</MAIN>"))).toBe("# Ferry\n\n## Times\n\nat six");
  });

  test("is all of its articles where it has no main element", () => {
    const article = (text: string) =>
      `<article><header><h2>${text}</h2></header>of ${text}<article>re</article></article>`;
    expect(page(around(`promoted ${article("one")} and ${article("two")}`))).toBe(
      "# Ferry\n\n## one\n\nof one\n\nre\n\n## two\n\nof two\n\nre",
    );
  });

  test("else what is left without the frame, and everything where next to nothing is left", () => {
    expect(page(around("<p>The ferry sails at six.</p>"))).toBe("# Ferry\n\nThe ferry sails at six.");
    const rows = "<p>The ferry sails at six.</p>".repeat(20);
    expect(page(`<form>${rows}</form>top`).match(/six/g)).toHaveLength(20);
    expect(page(`<nav>Home${rows}`).match(/six/g)).toHaveLength(20);
    expect(page("<nav>Home")).toBe("Home");
    expect(page("<main></main><article> </article><p>a")).toBe("a");
    expect(page("")).toBe("");
  });

  test("elements that are closed in vain, opened twice, or named alike change nothing", () => {
    expect(page("</main></nav></article><p>a</main>b")).toBe("ab");
    expect(page("<main>a<main>b</main>c</main>d")).toBe("a\n\nb\n\nc");
    expect(page("<mainly>a</mainly><p>b <code>&lt;main></code>")).toBe("a\n\nb <main>");
    expect(page("<table><tr><td>x<main><table><tr><td>1<td>2</table></main><td>y</table>z")).toBe("1 | 2");
  });
});

describe("HTML to text", () => {
  test("keeps headings, lists, tables and breaks, and leaves out what is not shown", () => {
    const html = `<!DOCTYPE html><head><title>My  page</title><style>p { color: red }</style>
      <body><nav>Home</nav><h1>First</h1><p>One <b>bold</b>word,
      two.</p><script>alert("no")</script><h2>Second</h2><ul><li>a<li>b</ul>
      <table><tr><th>x<th>y<tr><td>1<td>2</table>last&nbsp;&amp; least<br>line<svg><title>no</title></svg>`;
    expect(text(html)).toBe(
      ["Home", "# First", "One boldword, two.", "## Second", "- a\n- b", "x | y\n1 | 2", "last & least\nline"].join(
        "\n\n",
      ),
    );
  });

  test("the title is the heading of a page that has none, and code keeps its lines", () => {
    expect(text("<title>A &lt;tag&gt;</title><p>x</p>")).toBe("# A <tag>\n\nx");
    expect(text("<title>A</title>")).toBe("");
    expect(text('<title>A</title><h1><img src="logo.png"></h1><p>x</p>')).toBe("# A\n\nx");
    expect(text("<p>a</p><pre>if\n  b</pre><p>c")).toBe("a\n\nif\n  b\n\nc");
  });

  test("code that is coloured word by word keeps its lines too, and ends before what follows", () => {
    const code = "<span>if</span> a &lt; b:\n\n    <span>return</span>\n";
    expect(text(`<p>a</p><pre><code>\n  ${code}</code></pre>b`)).toBe("a\n\n  if a < b:\n\n    return\n\nb");
    expect(text(`<pre>\n</pre><pre>a<br>\n  b</pre><h2>c</h2>`)).toBe("a\n  b\n\n## c");
    const pieces = fc.array(fc.stringMatching(/^[a-c \n]{0,4}$/), { maxLength: 12 });
    fc.assert(
      fc.property(pieces, (parts) => {
        expect(text(`<pre>${parts.map((part) => `<i>${part}</i>`).join("")}</pre>`)).toBe(parts.join("").trim());
      }),
    );
    expect(text("<table><tr><td><pre>1\n2\n</pre><td><pre>a\n</pre></table>b")).toBe("1\n2 | a\n\nb");
  });

  test("an empty cell keeps its place before others of its row, in no other row or text", () => {
    const rows = [
      "<th><th>Mon<th>Tue",
      "<td>Ann<td> <br> <td>5",
      "<td>Bob<td>7<td>",
      "<td><td><td>",
      "<td><p></p><td><b>6</b>",
    ];
    const table = `<table>${rows.map((row) => `<tr>${row}`).join("\n")}</table>`;
    expect(text(`${table}<p>after`)).toBe("| Mon | Tue\nAnn | | 5\nBob | 7\n| 6\n\nafter");
    expect(text(`<table><tr><td>a<td>${table}<td>b</table>`)).toBe("a\n| Mon | Tue\nAnn | | 5\nBob | 7\n| 6 | b");
  });

  test("an entry of a list that begins with a paragraph is one too; an empty one is none", () => {
    expect(text("<ul><li><p>a</p><p>b</p></li><li> <div>c</div></ul>d")).toBe("- a\n\nb\n\n- c\n\nd");
    expect(text("<ul><li></li></ul><p>a</p><h2></h2>b<table><tr><td></table>c")).toBe("a\n\nb\n\nc");
  });

  test("words of the text are the words of the HTML, in order, whatever the elements", () => {
    const name = fc.constantFrom("p", "b", "li", "td", "h2", "div", "br", "span", "tr", "section", "pre");
    const piece = fc.oneof(
      fc.stringMatching(/^[a-z]{1,6}$/),
      name.map((tag) => `<${tag}>`),
      name.map((tag) => `</${tag}>`),
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 60 }), (pieces) => {
        const words = pieces.filter((part) => !part.startsWith("<"));
        const found = text(pieces.join(" ")).split(/[\s|#-]+/);
        expect(found.filter((part) => part !== "")).toEqual(words);
      }),
    );
  });

  test("a million open elements are one pass; too much text is refused", () => {
    expect(text(`${"<div>".repeat(1_000_000)}deep`)).toBe("deep");
    expect(() => text("<p>12345<p>67890", 10)).toThrow("more than 10 characters");
  });

  test("the character set is the document's own", () => {
    const latin = Buffer.from('<meta charset="windows-1252"><p>caf\xe9 \x80', "latin1");
    expect(text(decodeHtml(latin))).toBe("café €");
    const utf16 = Buffer.from("\ufeff<p>né", "utf16le");
    expect(text(decodeHtml(utf16))).toBe("né");
    // A mark counts more than what the document says, and what is read byte by byte is not UTF-16.
    expect(text(decodeHtml(Buffer.from('\ufeff<meta charset="windows-1252"><p>né')))).toBe("né");
    expect(text(decodeHtml(Buffer.from('<meta charset="utf-16"><p>né')))).toBe("né");
    expect(() => decodeHtml(Buffer.from([0x3c, 0x70, 0x3e, 0xff]))).toThrow("not valid UTF-8");
    expect(() => decodeHtml(Buffer.from('<meta charset="klingon">'))).toThrow("character set");
  });
});
