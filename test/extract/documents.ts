/** Small PDF and DOCX documents, made here. */
import { deflateSync } from "node:zlib";
import JSZip from "jszip";

/** One stream of drawing operators a page. */
export function pdfOf(pages: readonly (string | Uint8Array)[], trailer = ""): Uint8Array {
  const objects: (string | Uint8Array)[] = [];
  const kids = pages.map((_, index) => `${4 + index * 2} 0 R`).join(" ");
  objects.push("<< /Type /Catalog /Pages 2 0 R >>");
  objects.push(`<< /Type /Pages /Kids [${kids}] /Count ${pages.length} >>`);
  objects.push("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>");
  for (const [index, page] of pages.entries()) {
    const contents = `/Contents ${5 + index * 2} 0 R /Resources << /Font << /F1 3 0 R >> >>`;
    objects.push(`<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] ${contents} >>`);
    const bytes = typeof page === "string" ? deflateSync(page) : page;
    const head = `<< /Length ${bytes.byteLength} /Filter /FlateDecode >>\nstream\n`;
    objects.push(Buffer.concat([Buffer.from(head), bytes, Buffer.from("\nendstream")]));
  }
  const pieces: Uint8Array[] = [Buffer.from("%PDF-1.7\n")];
  const offsets: number[] = [];
  const length = () => pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  for (const [index, object] of objects.entries()) {
    offsets.push(length());
    pieces.push(Buffer.from(`${index + 1} 0 obj\n`), Buffer.from(object), Buffer.from("\nendobj\n"));
  }
  const start = length();
  const rows = offsets.map((offset) => `${String(offset).padStart(10, "0")} 00000 n \n`).join("");
  const size = objects.length + 1;
  pieces.push(Buffer.from(`xref\n0 ${size}\n0000000000 65535 f \n${rows}`));
  pieces.push(Buffer.from(`trailer\n<< /Size ${size} /Root 1 0 R ${trailer} >>\nstartxref\n${start}\n%%EOF\n`));
  return Buffer.concat(pieces);
}

/** Lines of 12 units, from the top; an empty one leaves a gap. */
export function pdfPage(...lines: readonly string[]): string {
  const shown = lines.map((line, index) => (line === "" ? "" : `1 0 0 1 50 ${750 - index * 14} Tm (${line}) Tj`));
  return `BT /F1 12 Tf ${shown.join("\n")} ET`;
}

const word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main";
const officeDocument = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument";
const mainType = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml";
const relations = "http://schemas.openxmlformats.org/package/2006/relationships";
const contentTypes = "http://schemas.openxmlformats.org/package/2006/content-types";

export const paragraph = (text: string, style?: string): string => {
  const properties = style === undefined ? "" : `<w:pPr><w:pStyle w:val="${style}"/></w:pPr>`;
  return `<w:p>${properties}<w:r><w:t xml:space="preserve">${text}</w:t></w:r></w:p>`;
};

/**
 * @param body what stands in `w:body`
 * @param main the document's own part, as the others name it; some programs call it otherwise than Word
 */
export async function docxOf(
  body: string,
  more: Readonly<Record<string, string | Uint8Array>> = {},
  main = "word/document.xml",
) {
  const archive = new JSZip();
  const overrides = `<Override PartName="/${main}" ContentType="${mainType}"/>`;
  const xmlType = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>';
  archive.file("[Content_Types].xml", `<Types xmlns="${contentTypes}">${xmlType}${overrides}</Types>`);
  const target = `<Relationship Id="r1" Type="${officeDocument}" Target="${main}"/>`;
  archive.file("_rels/.rels", `<Relationships xmlns="${relations}">${target}</Relationships>`);
  archive.file(main, `<w:document xmlns:w="${word}"><w:body>${body}</w:body></w:document>`);
  const names: Readonly<Record<string, string>> = { Heading1: "heading 1", Heading2: "heading 2" };
  const styles = Object.entries(names).map(
    ([id, name]) => `<w:style w:type="paragraph" w:styleId="${id}"><w:name w:val="${name}"/></w:style>`,
  );
  archive.file("word/styles.xml", `<w:styles xmlns:w="${word}">${styles.join("")}</w:styles>`);
  for (const [name, content] of Object.entries(more)) archive.file(name, content);
  return await archive.generateAsync({ type: "uint8array", compression: "DEFLATE", compressionOptions: { level: 1 } });
}
