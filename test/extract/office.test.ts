/** Presentations, sheets, books and OpenDocument, as small archives that are made here. */
import { describe, expect, test } from "bun:test";
import JSZip from "jszip";
import { officePages } from "../../gateway/extract/office.ts";
import type { ExtractJob } from "../../gateway/extract/protocol.ts";

const mib = 1024 * 1024;
const job: ExtractJob = { kind: "office", maxTextChars: 10_000, maxPages: 1, maxUnpackedBytes: 8 * mib, maxParts: 64 };

async function text(parts: Readonly<Record<string, string | Uint8Array>>, limits: Partial<ExtractJob> = {}) {
  const archive = new JSZip();
  for (const [name, content] of Object.entries(parts)) archive.file(name, content);
  const bytes = await archive.generateAsync({ type: "uint8array", compression: "DEFLATE" });
  return (await officePages(bytes, { ...job, ...limits })).map(({ text }) => text).join("\n\n");
}

const types = { "[Content_Types].xml": "<Types/>" };
const related = (targets: readonly string[]) =>
  `<Relationships>${targets.map((to, at) => `<Relationship Id="r${at}" Target="${to}"/>`).join("")}</Relationships>`;

describe("PPTX", () => {
  const run = (words: string) => `<a:p><a:r><a:rPr/><a:t>${words}</a:t></a:r></a:p>`;
  const shape = (words: string, kind = "") => `<p:sp><p:nvPr>${kind}</p:nvPr><p:txBody>${words}</p:txBody></p:sp>`;
  const deck = (slides: readonly string[], order: readonly number[]) => ({
    ...types,
    "ppt/presentation.xml": `<p:sldIdLst>${order.map((at) => `<p:sldId r:id="r${at}"/>`).join("")}</p:sldIdLst>`,
    "ppt/_rels/presentation.xml.rels": related(slides.map((_, at) => `slides/slide${at}.xml`)),
    ...Object.fromEntries(slides.map((body, at) => [`ppt/slides/slide${at}.xml`, `<p:sld>${body}</p:sld>`])),
  });

  test("slides in the order of the show, with titles, paragraphs and tables", async () => {
    const cell = (words: string) => `<a:tc><a:txBody>${run(words)}</a:txBody></a:tc>`;
    const table = `<a:tbl><a:tr>${cell("x")}${cell("")}${cell("y &amp; z")}</a:tr></a:tbl>`;
    const title = (words: string) => shape(run(words), '<p:ph type="title"/>');
    const slides = [`${title("Last")}${table}`, `${title("First")}${shape(run("The ferry") + run("sails."))}`];
    expect(await text(deck(slides, [1, 0]))).toBe("## First\n\nThe ferry\n\nsails.\n\n## Last\n\nx | | y & z");
  });

  test("a slide that is named a thousand times is read once; a missing one is none", async () => {
    const order = Array.from({ length: 1_000 }, () => 0);
    expect(await text(deck([shape(run("once"))], [...order, 7]))).toBe("once");
    await expect(
      text(deck([shape(run("x".repeat(60))), shape(run("y".repeat(60)))], [0, 1]), { maxTextChars: 100 }),
    ).rejects.toThrow("more than 100 characters");
  });
});

describe("XLSX", () => {
  const book = (
    sheets: Readonly<Record<string, string>>,
    more: Readonly<Record<string, string>> = {},
    settings = "",
  ) => ({
    ...types,
    "xl/workbook.xml": `${settings}<sheets>${Object.keys(sheets)
      .map((name, at) => `<sheet name="${name}" r:id="r${at}"/>`)
      .join("")}</sheets>`,
    "xl/_rels/workbook.xml.rels": related(Object.keys(sheets).map((_, at) => `/xl/sheet${at}.xml`)),
    ...Object.fromEntries(
      Object.values(sheets).map((rows, at) => [`xl/sheet${at}.xml`, `<sheetData>${rows}</sheetData>`]),
    ),
    ...more,
  });
  const words = (at: string, said: string) => `<c r="${at}" t="inlineStr"><is><t>${said}</t></is></c>`;

  test("rows name their columns; shared strings, numbers, dates, formulas and empty cells", async () => {
    const shared = "<sst><si><t>name</t></si><si><r><t>An</t></r><r><t>n</t></r><rPh><t>no</t></rPh></si></sst>";
    const styles = `<numFmts><numFmt numFmtId="164" formatCode="0.00 &quot;days&quot;"/><numFmt numFmtId="165" formatCode="d.m.yy h:mm"/></numFmts>
      <cellStyleXfs><xf numFmtId="14"/></cellStyleXfs><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="165"/></cellXfs>`;
    const rows = `<row>${'<c r="A1" t="s"><v>0</v></c>'}${words("B1", "born")}${words("D1", "seen")}${words("E1", "sum")}</row>
      <row><c r="A2" t="s"><v>1</v></c><c r="B2" s="1"><v>45292</v></c><c r="D2" s="3"><v>45292.75</v></c><c r="E2" s="2"><f>A1+1</f><v>0.30000000000000004</v></c></row>
      <row><c r="E3" t="b"><v>1</v></c></row>`;
    expect(
      await text(book({ People: rows, Empty: "" }, { "xl/sharedStrings.xml": shared, "xl/styles.xml": styles })),
    ).toBe("# People\n\n- name: Ann | born: 2024-01-01 | seen: 2024-01-01 18:00:00 | sum: 0.3\n- sum: TRUE");
    const old = book(
      { S: '<row><c s="1"><v>0</v></c></row>' },
      { "xl/styles.xml": styles },
      '<workbookPr date1904="1"/>',
    );
    expect(await text(old)).toContain("00:00:00");
    const prefixed =
      '<x:row><x:c r="A1" t="inlineStr"><x:is><x:t>a</x:t></x:is></x:c><x:c r="C1"><x:v>2</x:v></x:c></x:row>';
    expect(await text(book({ S: prefixed }))).toBe("# S\n\n- a | 2");
  });

  test("what no sheet has is text or nothing, and too many columns are refused", async () => {
    const odd = '<row><c r="?" t="s"><v>99</v></c><c><v>x</v></c><c s="9"><v>1e999</v></c><c><v></v></c></row>';
    expect(await text(book({ S: odd }))).toBe("# S\n\n- x | 1e999");
    expect(await text(book({}))).toBe("");
    await expect(text(book({ S: `<row>${words("ZZZ1", "far")}</row>` }))).rejects.toThrow("more than 16384 columns");
    const long = `<row>${words("A1", "x".repeat(90))}</row>`.repeat(4);
    await expect(text(book({ S: long }), { maxTextChars: 200 })).rejects.toThrow("more than 200 characters");
  });
});

describe("EPUB", () => {
  const container = '<container><rootfiles><rootfile full-path="OPS/a.opf"/></rootfiles></container>';
  const epub = (spine: readonly string[], parts: Readonly<Record<string, string>>) => ({
    mimetype: "application/epub+zip",
    "META-INF/container.xml": container,
    "OPS/a.opf": `<package><manifest>${Object.keys(parts)
      .map((href, at) => `<item id="i${at}" href="${href}"/>`)
      .join("")}</manifest><spine>${spine.map((id) => `<itemref idref="${id}"/>`).join("")}</spine></package>`,
    ...Object.fromEntries(Object.entries(parts).map(([href, html]) => [`OPS/${decodeURI(href)}`, html])),
  });

  test("chapters in the order of the spine", async () => {
    const chapters = { "b%20one.xhtml": "<h1>Two</h1><p>Sails.</p>", "a.xhtml": "<h1>One</h1><p>The ferry</p>" };
    expect(await text(epub(["i1", "i0", "i0", "i7"], chapters))).toBe("# One\n\nThe ferry\n\n# Two\n\nSails.");
  });

  test("chapters from outside of the archive are none", async () => {
    const parts = { "http://127.0.0.1:1/x": "", "../../../etc/passwd": "", "/etc/passwd": "" };
    const {
      "META-INF/container.xml": own,
      "OPS/a.opf": contents,
      mimetype,
    } = epub(["i0", "i1", "i2"], parts) as Record<string, string>;
    expect(
      await text({ "META-INF/container.xml": own ?? "", "OPS/a.opf": contents ?? "", mimetype: mimetype ?? "" }),
    ).toBe("");
  });
});

describe("OpenDocument", () => {
  const odt = (body: string, more: Readonly<Record<string, string>> = {}) => ({
    mimetype: "application/vnd.oasis.opendocument.text",
    "content.xml": `<office:document-content><office:automatic-styles>no</office:automatic-styles><office:body>${body}</office:body></office:document-content>`,
    ...more,
  });

  test("headings, paragraphs, lists and tables; no comments, no deleted text", async () => {
    const item = (words: string) => `<text:list-item><text:p>${words}</text:p></text:list-item>`;
    const cell = (words: string) => `<table:table-cell><text:p>${words}</text:p></table:table-cell>`;
    const body = `<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>
      <text:h text:outline-level="2">Times</text:h><text:p>The<text:s/>ferry<office:annotation><text:p>no</text:p></office:annotation> <text:span>sails</text:span>.</text:p>
      <text:list>${item("a")}${item("b")}</text:list><table:table><table:table-row>${cell("x")}${cell("y")}</table:table-row></table:table>`;
    expect(await text(odt(body))).toBe("## Times\n\nThe ferry sails.\n\n- a\n\n- b\n\nx | y");
    expect(await text(odt('<text:h text:outline-level="-9e9">a</text:h>'))).toBe("# a");
  });

  test("one with a password says so", async () => {
    const manifest =
      "<manifest:manifest><manifest:file-entry><manifest:encryption-data/></manifest:file-entry></manifest:manifest>";
    await expect(text(odt("", { "META-INF/manifest.xml": manifest }))).rejects.toThrow("password");
  });
});

describe("any archive", () => {
  const deck = { ...types, "ppt/presentation.xml": "<p:sldIdLst/>" };

  test("that is cut, holds too much, or is something else is refused", async () => {
    await expect(text({ ...deck, "ppt/media/a.png": new Uint8Array(64 * mib) })).rejects.toThrow(
      "unpacks to more than",
    );
    const many = Object.fromEntries(Array.from({ length: 100 }, (_, at) => [`p${at}`, "x"]));
    await expect(text({ ...deck, ...many })).rejects.toThrow("more than 64 parts");
    await expect(text({ "a.txt": "x", mimetype: "text/plain" })).rejects.toThrow("no DOCX, PPTX, XLSX, EPUB");
    await expect(officePages(new TextEncoder().encode("PK\x03\x04 nothing"), job)).rejects.toThrow("damaged ZIP");
  });

  test("entities that a part declares are not replaced, whatever they name", async () => {
    const doctype = '<!DOCTYPE d [<!ENTITY a "ha"><!ENTITY f SYSTEM "file:///etc/passwd">]>';
    const slide = `${doctype}<p:sld><a:p><a:t>x&a;&f;</a:t></a:p></p:sld>`;
    const parts = { "ppt/slides/s.xml": slide, "ppt/_rels/presentation.xml.rels": related(["slides/s.xml"]) };
    const main = { "ppt/presentation.xml": '<p:sldId r:id="r0"/>' };
    expect(await text({ ...types, ...main, ...parts })).toBe("x&a;&f;");
  });
});
