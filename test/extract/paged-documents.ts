/** Documents of several pages in every format that has pages, made here. */
import JSZip from "jszip";
import { pdfOf, pdfPage } from "./documents.ts";

/** A page's name, which slides and PDF pages do not tell, and its sentences. */
export interface SourcePage {
  readonly name: string;
  readonly sentences: readonly string[];
}

type Parts = Readonly<Record<string, string>>;

async function archiveOf(parts: Parts): Promise<Uint8Array> {
  const archive = new JSZip();
  for (const [name, content] of Object.entries(parts)) archive.file(name, content);
  return await archive.generateAsync({ type: "uint8array", compression: "DEFLATE" });
}

const types = { "[Content_Types].xml": "<Types/>" };
const related = (targets: readonly string[]): string =>
  `<Relationships>${targets.map((to, at) => `<Relationship Id="r${at}" Target="${to}"/>`).join("")}</Relationships>`;
const listed = (pages: readonly SourcePage[], each: (page: SourcePage, at: number) => string): string =>
  pages.map(each).join("");

function slides(pages: readonly SourcePage[]): Parts {
  const shape = (text: string): string => `<p:sp><p:txBody><a:p><a:r><a:t>${text}</a:t></a:r></a:p></p:txBody></p:sp>`;
  const slide = ({ sentences }: SourcePage): string => `<p:sld>${sentences.map(shape).join("")}</p:sld>`;
  return {
    ...types,
    "ppt/presentation.xml": `<p:sldIdLst>${listed(pages, (_, at) => `<p:sldId r:id="r${at}"/>`)}</p:sldIdLst>`,
    "ppt/_rels/presentation.xml.rels": related(pages.map((_, at) => `slides/slide${at}.xml`)),
    ...Object.fromEntries(pages.map((page, at) => [`ppt/slides/slide${at}.xml`, slide(page)])),
  };
}

function sheets(pages: readonly SourcePage[]): Parts {
  const row = (text: string): string => `<row><c r="A1" t="inlineStr"><is><t>${text}</t></is></c></row>`;
  const sheet = ({ sentences }: SourcePage): string =>
    `<sheetData>${["Note", ...sentences].map(row).join("")}</sheetData>`;
  return {
    ...types,
    "xl/workbook.xml": `<sheets>${listed(pages, ({ name }, at) => `<sheet name="${name}" r:id="r${at}"/>`)}</sheets>`,
    "xl/_rels/workbook.xml.rels": related(pages.map((_, at) => `/xl/sheet${at}.xml`)),
    ...Object.fromEntries(pages.map((page, at) => [`xl/sheet${at}.xml`, sheet(page)])),
  };
}

function book(pages: readonly SourcePage[]): Parts {
  const chapter = ({ name, sentences }: SourcePage): string => `<h1>${name}</h1><p>${sentences.join(" ")}</p>`;
  const items = listed(pages, (_, at) => `<item id="i${at}" href="c${at}.xhtml"/>`);
  return {
    mimetype: "application/epub+zip",
    "META-INF/container.xml": '<container><rootfiles><rootfile full-path="OPS/a.opf"/></rootfiles></container>',
    "OPS/a.opf": `<package><manifest>${items}</manifest><spine>${listed(pages, (_, at) => `<itemref idref="i${at}"/>`)}</spine></package>`,
    ...Object.fromEntries(pages.map((page, at) => [`OPS/c${at}.xhtml`, chapter(page)])),
  };
}

const openDocument = (kind: string, body: string): Parts => ({
  mimetype: `application/vnd.oasis.opendocument.${kind}`,
  "content.xml": `<office:document-content><office:body>${body}</office:body></office:document-content>`,
});
const paragraphs = ({ sentences }: SourcePage): string => sentences.map((text) => `<text:p>${text}</text:p>`).join("");
const rows = ({ sentences }: SourcePage): string =>
  sentences
    .map((text) => `<table:table-row><table:table-cell><text:p>${text}</text:p></table:table-cell></table:table-row>`)
    .join("");
const openSlides = (pages: readonly SourcePage[]): Parts =>
  openDocument(
    "presentation",
    `<office:presentation>${listed(pages, (page) => `<draw:page draw:name="${page.name}">${paragraphs(page)}</draw:page>`)}</office:presentation>`,
  );
const openSheets = (pages: readonly SourcePage[]): Parts =>
  openDocument(
    "spreadsheet",
    `<office:spreadsheet>${listed(pages, (page) => `<table:table table:name="${page.name}">${rows(page)}</table:table>`)}</office:spreadsheet>`,
  );

/** By the ends of their names. Whether a page's name is told with its number. */
export const pagedFormats: Readonly<
  Record<string, { readonly named: boolean; readonly make: (pages: readonly SourcePage[]) => Promise<Uint8Array> }>
> = {
  pdf: { named: false, make: async (pages) => pdfOf(pages.map(({ sentences }) => pdfPage(...sentences))) },
  pptx: { named: false, make: (pages) => archiveOf(slides(pages)) },
  xlsx: { named: true, make: (pages) => archiveOf(sheets(pages)) },
  epub: { named: true, make: (pages) => archiveOf(book(pages)) },
  odp: { named: true, make: (pages) => archiveOf(openSlides(pages)) },
  ods: { named: true, make: (pages) => archiveOf(openSheets(pages)) },
};
