/** Documents of every format at what is nasty in it: many cells, deep nesting, archives that unpack to much. */
import JSZip from "jszip";
import { docxOf, paragraph, pdfOf, pdfPage } from "../../../extract/documents.ts";
import type { StallCase } from "./case.ts";
import { mib, prose, times } from "./texts.ts";
import { upload } from "./world.ts";

const route = "POST /v1/vector_stores/{vector_store_id}/files";

type Parts = Readonly<Record<string, string | Uint8Array>>;

/** @param parts by their paths in the archive */
async function archiveOf(parts: Parts): Promise<Blob> {
  const archive = new JSZip();
  for (const [path, content] of Object.entries(parts)) archive.file(path, content, { createFolders: false });
  return new Blob([await archive.generateAsync({ type: "arraybuffer", compression: "DEFLATE" })]);
}

const office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
const contentTypes = { "[Content_Types].xml": "<Types/>" };
const relationships = (targets: readonly string[]): string =>
  `<Relationships>${targets.map((target, at) => `<Relationship Id="r${at}" Target="${target}"/>`).join("")}</Relationships>`;

/** @param rows XML of the sheet's rows */
const sheetOf = (rows: string, strings: readonly string[] = []): Promise<Blob> =>
  archiveOf({
    ...contentTypes,
    "xl/workbook.xml": `<workbook xmlns:r="${office}"><sheets><sheet name="a" r:id="r0"/></sheets></workbook>`,
    "xl/_rels/workbook.xml.rels": relationships(["worksheets/sheet1.xml"]),
    "xl/sharedStrings.xml": `<sst>${strings.map((text) => `<si><t>${text}</t></si>`).join("")}</sst>`,
    "xl/worksheets/sheet1.xml": `<worksheet><sheetData>${rows}</sheetData></worksheet>`,
  });

/** @param count of slides */
const slidesOf = (count: number, slide: (at: number) => string): Promise<Blob> =>
  archiveOf({
    ...contentTypes,
    "ppt/presentation.xml": `<p:presentation xmlns:r="${office}">${times(count, (at) => `<p:sldId r:id="r${at}"/>`).join("")}</p:presentation>`,
    "ppt/_rels/presentation.xml.rels": relationships(times(count, (at) => `slides/${at}.xml`)),
    ...Object.fromEntries(times(count, (at) => [`ppt/slides/${at}.xml`, slide(at)])),
  });

const bookOf = (count: number, chapter: (at: number) => string): Promise<Blob> =>
  archiveOf({
    "META-INF/container.xml": '<container><rootfile full-path="book.opf"/></container>',
    "book.opf": `<package>${times(count, (at) => `<item id="i${at}" href="${at}.xhtml"/><itemref idref="i${at}"/>`).join("")}</package>`,
    ...Object.fromEntries(times(count, (at) => [`${at}.xhtml`, chapter(at)])),
  });

const openDocumentOf = (content: string): Promise<Blob> =>
  archiveOf({ mimetype: "application/vnd.oasis.opendocument.spreadsheet", "content.xml": content });

const cells = (count: number, cell: (column: number) => string, separator = ","): string =>
  times(count, cell).join(separator);
const nested = (open: string, close: string, depth: number): string => open.repeat(depth) + close.repeat(depth);
const nestedChars = 4 * mib;

type Content = string | Blob;

/** By the file's name: what is nasty in it, and its bytes. Everything is within the bounds of an upload. */
const documents: Readonly<Record<string, readonly [name: string, make: () => Content | Promise<Content>]>> = {
  "a.csv": [
    "CSV of 16,384 columns",
    () => `${cells(16_384, (at) => `n${at}`)}\n${`${cells(16_384, () => "7")}\n`.repeat(30)}`,
  ],
  "b.csv": ["CSV of a million cells", () => `x,y\n${"a,b\n".repeat(500_000)}`],
  "c.csv": ["CSV with a quotation mark that stays open for 8 MB", () => `x,y\n"${"a,b\n".repeat(2_000_000)}`],
  "a.json": ["JSON nested 2 million deep in a line", () => nested("[", "]", nestedChars / 2)],
  "a.jsonl": ["a million lines of JSON", () => "{}\n".repeat(1_000_000)],
  "a.yaml": ["YAML of 300,000 lines, ever deeper", () => times(300_000, (at) => `${" ".repeat(at % 24)}a:`).join("\n")],
  "a.xml": ["XML nested 500,000 deep in a line", () => nested("<a>", "</a>", nestedChars / 8)],
  "a.log": ["a log of 4 million empty lines", () => `a${"\n".repeat(4_000_000)}b`],
  "a.html": ["HTML of 300,000 main parts", () => "<main><p>a".repeat(300_000)],
  "b.html": [
    "HTML of 200,000 articles of nothing",
    () => `<p>${prose(mib)}</p>${"<article><nav>a</nav></article>".repeat(200_000)}`,
  ],
  "a.xlsx": [
    "XLSX of a million cells",
    () => sheetOf(`<row>${"<c t='s'><v>0</v></c>".repeat(10)}</row>`.repeat(100_000), ["a"]),
  ],
  "b.xlsx": [
    "XLSX of 20,000 rows that have their last cell alone",
    () => sheetOf("<row><c r='XFD1'><v>1</v></c></row>".repeat(20_000)),
  ],
  "c.xlsx": [
    "XLSX of 100,000 cells with the same 30,000 characters",
    () => sheetOf("<row><c t='s'><v>0</v></c></row>".repeat(100_000), [prose(30_000)]),
  ],
  "a.pptx": [
    "PPTX of 2,000 slides",
    () => slidesOf(2_000, (at) => `<p:sld><a:p><a:t>${prose(400, at)}</a:t></a:p></p:sld>`),
  ],
  "b.pptx": [
    "PPTX of a table nested 500,000 deep",
    () => slidesOf(1, () => nested("<a:tbl><a:tr><a:tc>", "</a:tc></a:tr></a:tbl>", 500_000)),
  ],
  "a.epub": [
    "EPUB of 4,000 chapters",
    () => bookOf(4_000, (at) => `<html><body><p>${prose(300, at)}</p></body></html>`),
  ],
  "a.ods": [
    "ODS of a million cells",
    () =>
      openDocumentOf(
        `<table:table>${`<table:table-row>${"<table:table-cell><text:p>a</text:p></table:table-cell>".repeat(10)}</table:table-row>`.repeat(100_000)}</table:table>`,
      ),
  ],
  "a.odt": [
    "ODT of lists nested 500,000 deep",
    () => openDocumentOf(nested("<text:list><text:list-item>", "</text:list-item></text:list>", 500_000)),
  ],
  "a.docx": ["DOCX of 60,000 paragraphs", async () => new Blob([await docxOf(paragraph("A page.").repeat(60_000))])],
  "b.docx": [
    "DOCX that unpacks to 250 MiB",
    async () => new Blob([await docxOf(paragraph("a"), { "media/a.bin": new Uint8Array(250 * mib) })]),
  ],
  "a.pdf": ["PDF of 4,000 pages", () => new Blob([pdfOf(times(4_000, (at) => pdfPage(`Page ${at} of many.`)))])],
};

const ingested: readonly StallCase[] = Object.entries(documents).map(([filename, [name, make]]) => ({
  route,
  name,
  ingests: true,
  make: async ({ hostile, ids }) => {
    const fileId = await upload(hostile.client, await make(), filename);
    return {
      method: "POST",
      path: `/v1/vector_stores/${ids.vector_store_id}/files`,
      body: JSON.stringify({ file_id: fileId }),
      contentType: "application/json",
    };
  },
}));

type Named = (file: { readonly file_id: string } | { readonly file_data: string; readonly filename: string }) => object;
const asChat: Named = (file) => {
  return { messages: [{ role: "user", content: [{ type: "file", file }] }], max_tokens: 1 };
};

/** @param body what a route that answers is sent, with a file in it */
const promptCase = (route: string, filename: string, name: string, body: Named = asChat): StallCase => ({
  route,
  name: `a prompt's ${name}`,
  make: async ({ hostile, model }) => {
    const [, make] = documents[filename] ?? ["", () => prose(30 * mib)];
    const file_id = await upload(hostile.client, await make(), `${filename}`);
    const sent = JSON.stringify({ model, ...body({ file_id }) });
    return { method: "POST", path: route.replace("POST ", ""), body: sent, contentType: "application/json" };
  },
});

/** @param make what a file of base64 is made of; each round has another, since texts are remembered */
const inlineCase = (route: string, filename: string, name: string, make: (round: number) => string): StallCase => {
  let round = 0;
  return {
    route,
    name: `a prompt's ${name} in base64`,
    make: ({ model }) => {
      const file_data = Buffer.from(make(round++)).toString("base64");
      const body = JSON.stringify({ model, ...asChat({ filename, file_data }) });
      return { method: "POST", path: route.replace("POST ", ""), body, contentType: "application/json" };
    },
  };
};

const chat = "POST /v1/chat/completions";

/** Documents in prompts are read while their request waits. */
const prompted: readonly StallCase[] = [
  promptCase(chat, "a.pdf", "PDF of 4,000 pages"),
  promptCase(chat, "b.docx", "DOCX that unpacks to 250 MiB"),
  promptCase(chat, "c.xlsx", "XLSX of 3 GB of text"),
  promptCase(chat, "large.txt", "text of 30 MiB"),
  promptCase("POST /v1/responses", "a.epub", "EPUB of 4,000 chapters", (file) => {
    const content = [{ type: "input_file", ...file }];
    return { input: [{ role: "user", content }], max_output_tokens: 1, store: false };
  }),
  promptCase("POST /v1/messages", "a.pptx", "PPTX of 2,000 slides", (file) => {
    const content = [{ type: "document", source: { type: "file", ...file } }];
    return { messages: [{ role: "user", content }], max_tokens: 1 };
  }),
  inlineCase(chat, "a.csv", "CSV of 6 MB", (round) => `x,y\n${`a,${round}\n`.repeat(1_400_000)}`),
  inlineCase(chat, "a.txt", "text of 6 MB", (round) => prose(6_000_000, round)),
  inlineCase(chat, "a.html", "HTML nested 500,000 deep", (round) => `${round}${nested("<div>", "</div>", 500_000)}`),
];

export const documentCases: readonly StallCase[] = [...ingested, ...prompted];
