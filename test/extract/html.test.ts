import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { decodeHtml, htmlText } from "../../gateway/extract/html.ts";

const text = (html: string, maxTextChars = 10_000_000) => htmlText(html, { maxTextChars });

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
