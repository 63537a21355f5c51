/** DOCX to text by mammoth. First the archive is unpacked once, and the result dropped, to measure its size. */
import { Readable } from "node:stream";
import JSZip from "jszip";
import mammoth from "mammoth";
import { htmlText } from "./html.ts";
import { type ExtractJob, Refused } from "./protocol.ts";

/** @throws Refused */
export async function docxText(bytes: Uint8Array, job: ExtractJob): Promise<string> {
  await checkArchive(bytes, job);
  const { value } = await mammoth.convertToHtml(
    { buffer: Buffer.from(bytes) },
    { includeEmbeddedStyleMap: false, convertImage: mammoth.images.imgElement(() => Promise.resolve({ src: "" })) },
  );
  return htmlText(value, job);
}

/** The sizes that the archive declares may be wrong, so the unpacked bytes are counted. @throws Refused */
async function checkArchive(bytes: Uint8Array, { maxParts, maxUnpackedBytes }: ExtractJob): Promise<void> {
  const archive = await JSZip.loadAsync(bytes).catch(() => {
    throw new Refused("The file is a damaged ZIP archive.");
  });
  const parts = Object.values(archive.files);
  if (parts.length > maxParts) throw new Refused(`The file unpacks to more than ${maxParts} parts.`);
  let byteCount = 0;
  for (const part of parts) {
    for await (const piece of new Readable().wrap(part.nodeStream())) {
      byteCount += (piece as Uint8Array).byteLength;
      if (byteCount > maxUnpackedBytes) {
        throw new Refused(`The file unpacks to more than ${maxUnpackedBytes} bytes.`);
      }
    }
  }
  if (!(await isDocx(archive))) throw new Refused("The file is a ZIP archive, but no DOCX document.");
}

/**
 * Whether the archive is a Word document. Most programs name its main part word/document.xml, but only the part's type
 * decides.
 */
async function isDocx(archive: JSZip): Promise<boolean> {
  const types = await archive.file("[Content_Types].xml")?.async("string");
  if (types === undefined) return false;
  if (archive.file("word/document.xml") !== null) return true;
  const named = types.match(/<Override\b[^<>]*>/g)?.find((part) => part.includes(mainType));
  const name = named === undefined ? undefined : /PartName="\/([^"]+)"/.exec(named)?.[1];
  return name !== undefined && archive.file(name) !== null;
}

const mainType = "wordprocessingml.document.main+xml";
