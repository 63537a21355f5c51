/** DOCX -> text by mammoth, after the archive was unpacked once into nothing, to see how large it is. */
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

/** What the archive says of its sizes may be wrong, so it is counted. @throws Refused */
async function checkArchive(bytes: Uint8Array, { maxParts, maxUnpackedBytes }: ExtractJob): Promise<void> {
  const archive = await JSZip.loadAsync(bytes).catch(() => {
    throw new Refused("The file is a damaged ZIP archive.");
  });
  const parts = Object.values(archive.files);
  if (parts.length > maxParts) throw new Refused(`The file unpacks to more than ${maxParts} parts.`);
  if (archive.file("word/document.xml") === null || archive.file("[Content_Types].xml") === null) {
    throw new Refused("The file is a ZIP archive, but no DOCX document.");
  }
  let byteCount = 0;
  for (const part of parts) {
    for await (const piece of new Readable().wrap(part.nodeStream())) {
      byteCount += (piece as Uint8Array).byteLength;
      if (byteCount > maxUnpackedBytes) {
        throw new Refused(`The file unpacks to more than ${maxUnpackedBytes} bytes.`);
      }
    }
  }
}
