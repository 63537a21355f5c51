/**
 * Documents of office programs and e-books to text: DOCX by mammoth; the XML of PPTX, OpenDocument and EPUB is turned
 * into HTML, element by element, and read as that; XLSX by its own reader.
 */
import { posix } from "node:path";
import type JSZip from "jszip";
import { elementsOf, openArchive, partOf, readXml, relatedParts } from "./archive.ts";
import { decodeHtml, htmlText } from "./html.ts";
import { type ExtractJob, type PageText, Refused, tooMuchText } from "./protocol.ts";

type Reader = (archive: JSZip, bytes: Uint8Array, job: ExtractJob) => Promise<readonly PageText[]>;

/** @throws Refused */
export async function officePages(bytes: Uint8Array, job: ExtractJob): Promise<readonly PageText[]> {
  const archive = await openArchive(bytes, job);
  const read = await readerOf(archive);
  if (read !== undefined) return await read(archive, bytes, job);
  throw new Refused("The file is a ZIP archive, but no DOCX, PPTX, XLSX, EPUB, ODT, ODS or ODP document.");
}

/** The reader by the parts that an archive has, whatever the file's name. */
async function readerOf(archive: JSZip): Promise<Reader | undefined> {
  const types = await partOf(archive, "[Content_Types].xml");
  if (types !== "") {
    if (archive.file("ppt/presentation.xml") !== null) return slidePages;
    if (archive.file("xl/workbook.xml") !== null) return (await import("./xlsx.ts")).sheetPages;
    return (await isDocx(archive, types)) ? docxPages : undefined;
  }
  if (archive.file("META-INF/container.xml") !== null) return bookPages;
  const isOpenDocument = (await partOf(archive, "mimetype")).startsWith("application/vnd.oasis.opendocument.");
  return isOpenDocument && archive.file("content.xml") !== null ? openDocumentPages : undefined;
}

/**
 * Whether the archive is a Word document. Most programs name its main part word/document.xml, but only the part's type
 * decides.
 */
async function isDocx(archive: JSZip, types: string): Promise<boolean> {
  if (archive.file("word/document.xml") !== null) return true;
  const named = types.match(/<Override\b[^<>]*>/g)?.find((part) => part.includes(mainType));
  const name = named === undefined ? undefined : /PartName="\/([^"]+)"/.exec(named)?.[1];
  return name !== undefined && archive.file(name) !== null;
}

const mainType = "wordprocessingml.document.main+xml";

async function docxPages(_: JSZip, bytes: Uint8Array, job: ExtractJob): Promise<readonly PageText[]> {
  // Imported only for a DOCX: it takes longer to load than most documents take to read.
  const { default: mammoth } = await import("mammoth");
  const { value } = await mammoth.convertToHtml(
    { buffer: Buffer.from(bytes) },
    { includeEmbeddedStyleMap: false, convertImage: mammoth.images.imgElement(() => Promise.resolve({ src: "" })) },
  );
  return [{ text: htmlText(value, job) }];
}

/** How a kind of XML reads as HTML. */
interface HtmlOf {
  /** The HTML elements that stand for XML elements. */
  readonly elements: Readonly<Record<string, string>>;
  /** The elements whose text is shown. */
  readonly shown: ReadonlySet<string>;
  /** Elements without what they hold. */
  readonly skipped: ReadonlySet<string>;
  /** Elements that are pages, and the attribute that names each. */
  readonly pages: Readonly<Record<string, string>>;
}

interface HtmlPart {
  readonly html: string;
  /** Name of the page that the part is; undefined: it is none. */
  readonly page: string | undefined;
}

const openDocument: HtmlOf = {
  elements: {
    ...{ "text:h": "h", "text:p": "p", "text:list": "ul", "text:list-item": "li", "text:line-break": "br" },
    ...{ "table:table": "table", "table:table-row": "tr", "table:table-cell": "td", "draw:page": "section" },
  },
  shown: new Set(["text:p", "text:h"]),
  skipped: new Set(["office:annotation", "text:tracked-changes", "presentation:notes"]),
  pages: { "draw:page": "draw:name" },
};
/** In a text a table stands on a page; in a sheet it is one. */
const openSheets: HtmlOf = { ...openDocument, pages: { "table:table": "table:name" } };

const slide: HtmlOf = {
  elements: { "a:p": "p", "a:br": "br", "a:tbl": "table", "a:tr": "tr", "a:tc": "td" },
  shown: new Set(["a:t"]),
  skipped: new Set(),
  pages: {},
};

/** Each page is a part of its own, and so is what stands between pages. */
function htmlOfXml(xml: string, { elements, shown, skipped, pages }: HtmlOf): readonly HtmlPart[] {
  const made: HtmlPart[] = [];
  let parts: string[] = [];
  let page: string | undefined;
  let pageDepth = 0;
  const endPart = (next?: string): void => {
    if (parts.length > 0 || page !== undefined) made.push({ html: parts.join(""), page });
    [parts, page] = [[], next];
  };
  /** The HTML of each open element that has any. A heading's level is known only where it opens. */
  const open: string[] = [];
  let shownDepth = 0;
  let skipDepth = 0;
  let isTitle = false;
  readXml(xml, {
    open: (name, attributes) => {
      const named = Object.hasOwn(pages, name) ? pages[name] : undefined;
      if (named !== undefined && ++pageDepth === 1) endPart(attributes[named] ?? "");
      if (skipped.has(name)) skipDepth += 1;
      if (shown.has(name)) shownDepth += 1;
      if (name === "p:ph") isTitle = /^(?:title|ctrTitle)$/.test(attributes.type ?? "");
      // Blank space and tabs are elements in OpenDocument.
      if (name === "text:s" || name === "text:tab") parts.push(" ");
      const element = Object.hasOwn(elements, name) ? elements[name] : undefined;
      if (element === undefined) return;
      const level = Math.min(Math.max(Math.trunc(Number(attributes["text:outline-level"] ?? 1)) || 1, 1), 6);
      const html = element === "h" ? `h${level}` : name === "a:p" && isTitle ? "h2" : element;
      open.push(html);
      if (skipDepth === 0) parts.push(`<${html}>`);
    },
    text: (text) => {
      if (shownDepth > 0 && skipDepth === 0) parts.push(Bun.escapeHTML(text));
    },
    close: (name) => {
      if (name === "p:sp") isTitle = false;
      if (Object.hasOwn(elements, name)) {
        const html = open.pop();
        if (skipDepth === 0) parts.push(`</${html}>`);
      }
      if (shown.has(name)) shownDepth -= 1;
      if (skipped.has(name)) skipDepth -= 1;
      if (Object.hasOwn(pages, name) && --pageDepth === 0) endPart();
    },
  });
  endPart();
  return made;
}

async function openDocumentPages(archive: JSZip, _: Uint8Array, job: ExtractJob): Promise<readonly PageText[]> {
  if (elementsOf(await partOf(archive, "META-INF/manifest.xml"), "manifest:encryption-data").length > 0) {
    throw new Refused("The file is protected by a password.");
  }
  const xml = await partOf(archive, "content.xml");
  let number = 0;
  let charCount = 0;
  return htmlOfXml(xml, xml.includes("<office:spreadsheet") ? openSheets : openDocument).map(({ html, page }) => {
    const text = htmlText(html, job);
    charCount += text.length;
    if (charCount > job.maxTextChars) throw tooMuchText(job.maxTextChars);
    return page === undefined ? { text } : { text, page: { number: ++number, name: page } };
  });
}

/** The slides in the order in which they are shown. */
async function slidePages(archive: JSZip, _: Uint8Array, job: ExtractJob): Promise<readonly PageText[]> {
  const main = "ppt/presentation.xml";
  const related = await relatedParts(archive, main);
  const paths = elementsOf(await partOf(archive, main), "p:sldId").map(({ "r:id": id = "" }) => related.get(id) ?? "");
  return await pagesOf(paths, job, async (path) => {
    const [part] = htmlOfXml(await partOf(archive, path), slide);
    return { text: htmlText(part?.html ?? "", job) };
  });
}

/** The chapters in the order of the book's spine, each named by its first heading. */
async function bookPages(archive: JSZip, _: Uint8Array, job: ExtractJob): Promise<readonly PageText[]> {
  const [root] = elementsOf(await partOf(archive, "META-INF/container.xml"), "rootfile");
  const path = root?.["full-path"] ?? "";
  const contents = await partOf(archive, path);
  const hrefs = new Map(elementsOf(contents, "item").map(({ id = "", href = "" }) => [id, href]));
  const chapters = elementsOf(contents, "itemref").map(({ idref = "" }) => {
    const href = hrefs.get(idref) ?? "";
    return posix.join(posix.dirname(path), URL.canParse(href) ? "" : decodeURI(href));
  });
  return await pagesOf(chapters, job, async (chapter) => {
    const bytes = await archive.file(chapter)?.async("uint8array");
    const text = bytes === undefined ? "" : htmlText(decodeHtml(bytes), job);
    const name = /^#{1,6} (.+)$/m.exec(text)?.[1];
    return { text, ...(name === undefined ? {} : { name }) };
  });
}

/** Each part once, so that a list that names a part a million times is no more text than the part. */
async function pagesOf(
  paths: readonly string[],
  { maxTextChars }: ExtractJob,
  read: (path: string) => Promise<{ readonly text: string; readonly name?: string }>,
): Promise<readonly PageText[]> {
  const pages: PageText[] = [];
  let charCount = 0;
  for (const [index, path] of [...new Set(paths)].entries()) {
    const { text, ...named } = await read(path);
    charCount += text.length + 2;
    if (charCount > maxTextChars + 2) throw tooMuchText(maxTextChars);
    if (text !== "") pages.push({ text, page: { number: index + 1, ...named } });
  }
  return pages;
}
