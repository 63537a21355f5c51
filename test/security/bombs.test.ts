/**
 * Documents that are made to break whoever reads them: each is refused or read within the limits of its own process.
 */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { deflateSync } from "node:zlib";
import JSZip from "jszip";
import { FileError } from "../../gateway/corpus/ingest/decode.ts";
import { type ExtractLimits, Extractor } from "../../gateway/corpus/ingest/extractor.ts";
import { ReaderProgram } from "../../gateway/corpus/ingest/reader-program.ts";
import type { DocumentKind } from "../../gateway/extract/protocol.ts";
import { docxOf, paragraph, pdfOf, pdfPage } from "../extract/documents.ts";
import { bytesOf, catalog, page, pdfObjects, stream } from "../extract/pdf-objects.ts";
import { Choices } from "../sim/random.ts";
import { effort } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";

setDefaultTimeout(120_000);

const mib = 1024 * 1024;
const choices = new Choices(testSeed());
const program = new ReaderProgram();
const limits: ExtractLimits = {
  maxTextChars: mib,
  maxPages: 100,
  maxUnpackedBytes: 8 * mib,
  maxParts: 64,
  // Several of these documents are worked on until the time is up.
  maxMs: effort(250, 10_000),
  maxMemoryBytes: 512 * mib,
};
/** For documents that have to be read, however busy the machine is. */
const patient: ExtractLimits = { ...limits, maxMs: 60_000 };

/** The text, or why there is none; anything else that is thrown fails the test. */
async function outcome(kind: DocumentKind, bytes: Uint8Array, within = limits): Promise<string> {
  try {
    return (await new Extractor(within, program).extract(kind, bytes, new AbortController().signal)).text;
  } catch (error) {
    if (error instanceof FileError && error.code === "invalid_file") return error.message;
    throw error;
  }
}

function filteredTimes(count: number): string {
  let content = Buffer.from("BT ET");
  for (let time = 0; time < count; time++) content = deflateSync(content);
  return stream(`/Filter [${"/FlateDecode ".repeat(count)}]`, content.toString("latin1"));
}

describe("PDF", () => {
  test.each<[string, Uint8Array]>([
    ["pages that hold themselves", pdfObjects({ 1: catalog, 2: "<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>" })],
    [
      "a count of pages that is not true",
      pdfObjects({ 1: catalog, 2: "<< /Type /Pages /Kids [] /Count 2147483647 >>" }),
    ],
    ["a negative count", pdfObjects({ 1: catalog, 2: "<< /Type /Pages /Kids [3 0 R] /Count -1 >>", 3: page })],
    ["a catalog that is itself", pdfObjects({ 1: "1 0 R" })],
    [
      "a length that is itself",
      pdfObjects({
        1: catalog,
        2: "<< /Kids [3 0 R] /Count 1 >>",
        3: page,
        4: "<< /Length 4 0 R >>\nstream\nx\nendstream",
      }),
    ],
    [
      "a form that draws itself",
      pdfObjects({
        1: catalog,
        2: "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        3: page,
        4: stream("", "/X Do"),
        5: "<< /XObject << /X 6 0 R >> >>",
        6: stream("/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources 5 0 R", "/X Do /X Do"),
      }),
    ],
    [
      "forms that draw twice what each draws",
      pdfObjects({
        1: catalog,
        2: "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        3: page,
        4: stream("", "/X6 Do"),
        5: `<< /XObject << ${Array.from({ length: 40 }, (_, index) => `/X${index + 6} ${index + 6} 0 R`).join(" ")} >> >>`,
        ...Object.fromEntries(
          Array.from({ length: 40 }, (_, index) => [
            index + 6,
            stream(
              "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources 5 0 R",
              `/X${index + 7} Do /X${index + 7} Do`,
            ),
          ]),
        ),
      }),
    ],
    [
      "a hundred filters",
      pdfObjects({ 1: catalog, 2: "<< /Kids [3 0 R] /Count 1 >>", 3: page, 4: filteredTimes(100) }),
    ],
    [
      "a table of places that goes on at itself",
      bytesOf(
        "%PDF-1.7\nxref\n0 1\n0000000000 65535 f \ntrailer\n<< /Size 1 /Prev 9 /Root 1 0 R >>\nstartxref\n9\n%%EOF",
      ),
    ],
    [
      "a table of two thousand million places",
      bytesOf(
        "%PDF-1.7\nxref\n0 2147483647\n0000000000 65535 f \ntrailer\n<< /Size 2147483647 /Root 1 0 R >>\nstartxref\n9\n%%EOF",
      ),
    ],
    ["arrays a million deep", pdfObjects({ 1: `${"[".repeat(1_000_000)}`, 2: "null" })],
    ["dictionaries a hundred thousand deep", pdfObjects({ 1: "<< /A ".repeat(100_000) })],
    [
      "a page a hundred thousand times",
      pdfObjects({ 1: catalog, 2: `<< /Type /Pages /Kids [${"3 0 R ".repeat(100_000)}] /Count 100000 >>`, 3: page }),
    ],
    ["a text that is drawn ten million times", pdfOf([deflateSync(Buffer.alloc(64 * mib, "(a)Tj "))])],
    ["a font that maps a code to a megabyte", pdfOf([pdfPage("x".repeat(100_000))])],
    ["nothing but its first line", bytesOf("%PDF-1.7")],
    [
      "bytes by chance",
      Buffer.concat([bytesOf("%PDF-1.7\n"), Uint8Array.from({ length: 60_000 }, () => choices.int(0, 255))]),
    ],
  ])("%s", async (_name, bytes) => {
    expect((await outcome("pdf", bytes)).length).toBeLessThanOrEqual(limits.maxTextChars);
  });

  test("what would run or fetch is not in the text", async () => {
    const actions =
      "/OpenAction << /S /JavaScript /JS (app.alert(1)) >> /AA << /O << /S /URI /URI (http://127.0.0.1:1/) >> >>";
    const bytes = pdfObjects({
      1: `<< /Type /Catalog /Pages 2 0 R ${actions} >>`,
      2: "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
      3: page,
      4: stream("", pdfPage("Plain words.")),
      5: "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>",
    });
    expect(await outcome("pdf", bytes, patient)).toBe("Plain words.");
  });
});

describe("HTML", () => {
  test.each<[string, string]>([
    ["elements a million deep", "<div>".repeat(1_000_000)],
    ["a million elements that are never closed, with text", "<p>a<b>".repeat(1_000_000)],
    ["an attribute of megabytes", `<a href="${"x".repeat(8 * mib)}">a</a>`],
    ["a million attributes", `<a ${"b=c ".repeat(1_000_000)}>a</a>`],
    ["a comment without end", `a<!--${"-".repeat(8 * mib)}`],
    ["entities without end", "&".repeat(4 * mib)],
    ["entities of megabytes", `&#${"9".repeat(4 * mib)};`],
    ["a tag without end", `<${"a".repeat(8 * mib)}`],
    ["tables within cells", "<table><tr><td>".repeat(300_000)],
    ["headings within headings", "<h1>a".repeat(500_000)],
    ["a script without end", `<script>${"<".repeat(8 * mib)}`],
    ["CDATA and instructions", "<![CDATA[<?".repeat(500_000)],
    ["a character set that is none", `<meta charset="${"x".repeat(39)}">a`],
    ["main elements without end", "<main><nav>".repeat(500_000)],
    ["articles in navigation", "<nav><article>a".repeat(300_000)],
    ["blank space", `<pre>${" \n".repeat(4 * mib)}</pre>`],
  ])("%s", async (_name, text) => {
    expect((await outcome("html", bytesOf(text))).length).toBeLessThanOrEqual(limits.maxTextChars);
  });
});

describe("CSV", () => {
  test.each<[string, string]>([
    ["a million columns", "a,".repeat(1_000_000)],
    ["a million rows of a million names", `${"a,".repeat(10_000)}\n`.repeat(1_000)],
    ["a cell of megabytes", `a,b\n1,${"x".repeat(8 * mib)}\n`],
    ["a quotation mark without end", `a,b\n1,"${"x\n".repeat(4 * mib)}`],
    ["nothing but quotation marks", '"'.repeat(8 * mib)],
    ["nothing but line breaks", "\n".repeat(16 * mib)],
    ["names that objects have", "__proto__,constructor\n1,2"],
  ])("%s", async (_name, text) => {
    expect((await outcome("csv", bytesOf(text))).length).toBeLessThanOrEqual(limits.maxTextChars);
  });
});

/** An archive of one kind whose main part is hostile. */
function archiveOf(parts: Readonly<Record<string, string>>): Promise<Uint8Array> {
  const archive = new JSZip();
  for (const [name, content] of Object.entries(parts)) archive.file(name, content);
  return archive.generateAsync({ type: "uint8array", compression: "DEFLATE" });
}
const typesPart = { "[Content_Types].xml": "<Types/>" };
const bookPart = '<sheets><sheet name="a" r:id="r"/></sheets>';
const sheetOf = (rows: string): Promise<Uint8Array> =>
  archiveOf({
    ...typesPart,
    "xl/workbook.xml": bookPart,
    "xl/_rels/workbook.xml.rels": '<Relationship Id="r" Target="a.xml"/>',
    "xl/a.xml": rows,
  });
const openDocumentOf = (content: string): Promise<Uint8Array> =>
  archiveOf({ mimetype: "application/vnd.oasis.opendocument.text", "content.xml": content });

describe("sheets, slides and books", () => {
  test.each<[string, () => Promise<Uint8Array>]>([
    ["rows whose one cell is far to the right", () => sheetOf('<row><c r="XFD1"><v>1</v></c></row>'.repeat(100_000))],
    ["a cell beyond all columns", () => sheetOf('<row><c r="ZZZZZZZZZZ1"><v>1</v></c><c r="ZZZ1"><v>1</v></c></row>')],
    ["rows within rows", () => sheetOf("<row><c><v>1".repeat(300_000))],
    [
      "strings of strings",
      () =>
        archiveOf({
          ...typesPart,
          "xl/workbook.xml": bookPart,
          "xl/_rels/workbook.xml.rels": '<Relationship Id="r" Target="a.xml"/>',
          "xl/sharedStrings.xml": `<si><t>${"x".repeat(mib)}</t></si>`,
          "xl/a.xml": '<row><c t="s"><v>0</v></c></row>'.repeat(10_000),
        }),
    ],
    ["lists within lists", () => openDocumentOf("<text:list><text:list-item><text:p>a".repeat(100_000))],
    ["entities of entities", () => openDocumentOf(`<!DOCTYPE d [<!ENTITY a "${"&b;".repeat(100_000)}">]><text:p>&a;`)],
    [
      "names that objects have",
      () => openDocumentOf("<__proto__><constructor><text:p>a</text:p></constructor></__proto__>"),
    ],
    [
      "a presentation that is related to itself",
      () =>
        archiveOf({
          ...typesPart,
          "ppt/presentation.xml": '<p:sldId r:id="r"/>',
          "ppt/_rels/presentation.xml.rels": '<Relationship Id="r" Target="presentation.xml"/>',
        }),
    ],
    [
      "a book whose contents are itself, and a name that is no address",
      () =>
        archiveOf({
          "META-INF/container.xml":
            '<rootfile full-path="META-INF/container.xml"/><item id="a" href="%"/><itemref idref="a"/>',
        }),
    ],
  ])("%s", async (_name, make) => {
    expect((await outcome("office", await make())).length).toBeLessThanOrEqual(limits.maxTextChars);
  });
});

/** Replaces parts of a document that is right in all else. */
async function docxWith(parts: Readonly<Record<string, string | Uint8Array>>): Promise<Uint8Array> {
  return await docxOf(paragraph("Plain words."), parts);
}

const word = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"';
const documentOf = (body: string, before = ""): string =>
  `${before}<w:document ${word}><w:body>${body}</w:body></w:document>`;
const relationships = (entries: string): string =>
  `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">${entries}</Relationships>`;

describe("DOCX", () => {
  test("entities from outside are not read", async () => {
    for (const target of ["file:///etc/passwd", "file:///proc/self/environ", "http://127.0.0.1:1/x"]) {
      const doctype = `<!DOCTYPE d [<!ENTITY x SYSTEM "${target}"><!ENTITY % y SYSTEM "${target}"> %y;]>`;
      const text = await outcome(
        "office",
        await docxWith({ "word/document.xml": documentOf(paragraph("a &x; b"), doctype) }),
        patient,
      );
      expect(text).not.toMatch(/root:|PATH=|HOME=/);
      expect(text.length).toBeLessThan(200);
    }
  });

  test("nothing outside of the archive is read or written", async () => {
    const escaped = join(tmpdir(), `spangate-escaped-${crypto.randomUUID()}`);
    const image = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/image";
    const entries = ["../../../../../etc/passwd", "/etc/passwd", "file:///etc/passwd"]
      .map((target, index) => `<Relationship Id="r${index}" Type="${image}" Target="${target}" TargetMode="External"/>`)
      .join("");
    const parts = {
      "word/_rels/document.xml.rels": relationships(entries),
      [escaped]: "x",
      [`../../../../../../../..${escaped}`]: "x",
    };
    expect(await outcome("office", await docxWith(parts), patient)).toBe("Plain words.");
    expect(await Bun.file(escaped).exists()).toBe(false);
  });

  test.each<[string, () => Promise<Uint8Array>]>([
    [
      "a document part that leads to itself",
      () => docxWith({ "_rels/.rels": relationships('<Relationship Id="r" Type="x" Target="_rels/.rels"/>') }),
    ],
    [
      "notes that refer to themselves",
      () =>
        docxWith({
          "word/footnotes.xml": `<w:footnotes ${word}><w:footnote w:id="1"><w:p><w:r><w:footnoteReference w:id="1"/></w:r></w:p></w:footnote></w:footnotes>`,
        }),
    ],
    [
      "styles that are based on each other",
      () =>
        docxWith({
          "word/styles.xml": `<w:styles ${word}><w:style w:type="paragraph" w:styleId="a"><w:basedOn w:val="b"/></w:style><w:style w:type="paragraph" w:styleId="b"><w:basedOn w:val="a"/></w:style></w:styles>`,
        }),
    ],
    ["tables in tables", () => docxOf("<w:tbl><w:tr><w:tc>".repeat(50_000))],
    [
      "a cell that spans two thousand million",
      () =>
        docxOf(
          `<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val="2147483647"/></w:tcPr>${paragraph("x")}</w:tc></w:tr></w:tbl>`,
        ),
    ],
    [
      "a list two thousand million deep",
      () =>
        docxOf(
          `<w:p><w:pPr><w:numPr><w:ilvl w:val="2147483647"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>x</w:t></w:r></w:p>`,
        ),
    ],
    ["an attribute of megabytes", () => docxOf(`<w:p w:x="${"y".repeat(4 * mib)}"/>`)],
    ["names that objects have", () => docxWith({ __proto__: "x", constructor: "x", "word/__proto__": "x" })],
    [
      "an archive within an archive",
      async () => docxWith({ "word/inner.docx": await docxOf(paragraph("x".repeat(mib))) }),
    ],
    ["no document at all", () => new JSZip().file("a", "b").generateAsync({ type: "uint8array" })],
  ])("%s", async (_name, make) => {
    expect((await outcome("office", await make())).length).toBeLessThanOrEqual(limits.maxTextChars);
  });
});
