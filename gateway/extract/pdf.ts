/** PDF to text by pdf.js, page by page. Lines are joined to paragraphs again. */
import { getDocumentProxy } from "unpdf";
import { type ExtractJob, type PageText, Refused, tooMuchText } from "./protocol.ts";

interface TextItem {
  readonly str: string;
  readonly hasEOL: boolean;
  /** Height of the letters, in the page's units; 0 for an empty text. */
  readonly height: number;
  /** [a, b, c, d, x, y]; y rises upwards. */
  readonly transform: readonly number[];
}

/** @throws Refused */
export async function pdfPages(
  bytes: Uint8Array,
  { maxPages, maxTextChars }: ExtractJob,
): Promise<readonly PageText[]> {
  const document = await open(bytes);
  if (document.numPages > maxPages) throw new Refused(`The file has more than ${maxPages} pages.`);
  const pages: PageText[] = [];
  let charCount = 0;
  for (let number = 1; number <= document.numPages; number++) {
    const page = await document.getPage(number);
    const { items } = await page.getTextContent();
    const text = pageText(items.filter((item): item is typeof item & TextItem => "str" in item));
    page.cleanup();
    charCount += text.length;
    if (charCount > maxTextChars) throw tooMuchText(maxTextChars);
    if (text !== "") pages.push({ text, page: { number } });
  }
  if (pages.length === 0) throw new Refused("The file has no text: its pages may be images.");
  return pages;
}

async function open(bytes: Uint8Array): ReturnType<typeof getDocumentProxy> {
  try {
    return await getDocumentProxy(bytes, { stopAtErrors: false, disableFontFace: true, useSystemFonts: false });
  } catch (error) {
    const isLocked = error instanceof Error && error.name === "PasswordException";
    throw new Refused(isLocked ? "The file is protected by a password." : "The file is damaged and cannot be read.");
  }
}

/** Two lines whose distance is more than this many letter heights belong to different paragraphs. */
const paragraphGap = 1.8;

export function pageText(items: readonly TextItem[]): string {
  const parts: string[] = [];
  let last: TextItem | undefined;
  for (const item of items) {
    if (item.str.trim() === "") {
      // Words of one line need a blank between them.
      if (item.str !== "" && parts.length > 0 && !/\s$/.test(parts.at(-1) ?? "")) parts.push(" ");
      continue;
    }
    if (last !== undefined) parts.push(breakBetween(last, item, parts));
    parts.push(item.str);
    last = item;
  }
  return parts
    .join("")
    .replace(/[^\S\n]+/g, " ")
    .replace(/ ?\n ?/g, "\n")
    .trim();
}

/** The break between two texts: nothing within a line, a blank between lines, an empty line between paragraphs. */
function breakBetween(last: TextItem, item: TextItem, parts: string[]): string {
  const height = Math.max(last.height, item.height, 1);
  const drop = (last.transform[5] ?? 0) - (item.transform[5] ?? 0);
  if (Math.abs(drop) < height / 2) return "";
  // The text goes on further up the page: a new column or a box begins.
  if (drop > height * paragraphGap || drop < -height) return "\n\n";
  const end = parts.at(-1) ?? "";
  if (/\p{L}-$/u.test(end) && /^\p{Ll}/u.test(item.str)) {
    // A word was hyphenated at the end of the line.
    parts[parts.length - 1] = end.slice(0, -1);
    return "";
  }
  return /\s$/.test(end) ? "" : " ";
}
