/** XLSX to text: each sheet is a section, each row a list entry that names its columns, as rows of CSV do. */
import type JSZip from "jszip";
import { elementsOf, partOf, readXml, relatedParts } from "./archive.ts";
import { RowWriter } from "./csv.ts";
import { type ExtractJob, type PageText, tooMuchText } from "./protocol.ts";

const workbook = "xl/workbook.xml";
const msPerDay = 86_400_000;
/** Day 25,569 of a sheet is the first of January 1970; sheets that count from 1904 are 1,462 days behind. */
const [epochDay, daysTo1904] = [25_569, 1_462];

/** What all sheets share. */
interface Book {
  readonly strings: readonly string[];
  /** Whether cells of a style show a date, by the style's number. */
  readonly isDate: readonly boolean[];
  readonly firstDay: number;
}

export async function sheetPages(
  archive: JSZip,
  _: Uint8Array,
  { maxTextChars }: ExtractJob,
): Promise<readonly PageText[]> {
  const main = await partOf(archive, workbook);
  const related = await relatedParts(archive, workbook);
  const counts1904 = elementsOf(main, "workbookPr").some(({ date1904 }) => date1904 === "1" || date1904 === "true");
  const book: Book = {
    strings: stringsOf(await partOf(archive, "xl/sharedStrings.xml")),
    isDate: dateStyles(await partOf(archive, "xl/styles.xml")),
    firstDay: epochDay - (counts1904 ? daysTo1904 : 0),
  };
  const pages: PageText[] = [];
  let charCount = 0;
  const seen = new Set<string>();
  for (const [index, { name = "", "r:id": id = "" }] of elementsOf(main, "sheet").entries()) {
    const path = related.get(id) ?? "";
    if (seen.has(path)) continue;
    seen.add(path);
    const rows = sheetRows(await partOf(archive, path), book, maxTextChars);
    if (rows === "") continue;
    const text = `# ${name}\n\n${rows}`;
    charCount += text.length;
    if (charCount > maxTextChars) throw tooMuchText(maxTextChars);
    pages.push({ text, page: { number: index + 1, name } });
  }
  return pages;
}

/** The shared strings. Text that tells how another is pronounced is left out. */
function stringsOf(xml: string): readonly string[] {
  const strings: string[] = [];
  let text = "";
  let isText = false;
  let inPhonetic = false;
  readXml(xml, {
    open: (name) => {
      if (name === "si") text = "";
      if (name === "rPh") inPhonetic = true;
      isText = name === "t" && !inPhonetic;
    },
    text: (part) => {
      if (isText) text += part;
    },
    close: (name) => {
      isText = false;
      if (name === "rPh") inPhonetic = false;
      if (name === "si") strings.push(text);
    },
  });
  return strings;
}

/** Formats 14 to 22, 27 to 36, 45 to 47 and 50 to 58 are dates and times; others are by the letters of their codes. */
function dateStyles(xml: string): readonly boolean[] {
  const codes = new Map(
    elementsOf(xml, "numFmt").map(({ numFmtId = "", formatCode = "" }) => [
      numFmtId,
      /[ymdhs]/i.test(formatCode.replace(/"[^"]*"|\\.|\[[^\]]*\]|General/g, "")),
    ]),
  );
  const styles: boolean[] = [];
  let inCells = false;
  readXml(xml, {
    open: (name, { numFmtId = "" }) => {
      if (name === "cellXfs") inCells = true;
      const isBuiltIn = /^(?:1[4-9]|2[0-27-9]|3[0-6]|4[5-7]|5[0-8])$/.test(numFmtId);
      if (name === "xf" && inCells) styles.push(codes.get(numFmtId) ?? isBuiltIn);
    },
    close: (name) => {
      if (name === "cellXfs") inCells = false;
    },
  });
  return styles;
}

function sheetRows(xml: string, book: Book, maxTextChars: number): string {
  const rows = new RowWriter(maxTextChars, "- ");
  let row: string[] = [];
  let cell: Readonly<Record<string, string>> = {};
  let value = "";
  let isValue = false;
  readXml(xml, {
    open: (name, attributes) => {
      if (name === "row") row = [];
      if (name === "c") [cell, value] = [attributes, ""];
      isValue = name === "v" || name === "t";
    },
    text: (part) => {
      if (isValue) value += part;
    },
    close: (name) => {
      isValue = false;
      if (name === "c") {
        const column = columnOf(cell.r) ?? row.length;
        while (row.length < column) row.push("");
        row[column] = shownValue(cell, value, book);
      } else if (name === "row") rows.add(row);
    },
  });
  return rows.text();
}

/** "B7" is in column 1. No sheet has more than three letters. */
function columnOf(reference = ""): number | undefined {
  const letters = /^[A-Z]{1,3}(?=\d)/.exec(reference)?.[0];
  if (letters === undefined) return undefined;
  return [...letters].reduce((sum, letter) => sum * 26 + letter.charCodeAt(0) - 64, 0) - 1;
}

function shownValue({ t = "n", s = "0" }: Readonly<Record<string, string>>, value: string, book: Book): string {
  if (t === "s") return book.strings[Number(value)] ?? "";
  if (t === "b") return value === "1" ? "TRUE" : "FALSE";
  if (t !== "n" || value.trim() === "" || !Number.isFinite(Number(value))) return value;
  if (book.isDate[Number(s)]) return dateOf(Number(value), book.firstDay);
  // Sheets have 15 digits; the file has the digits of the binary number.
  return String(Number(Number(value).toPrecision(15)));
}

function dateOf(day: number, firstDay: number): string {
  const ms = Math.round(((day - firstDay) * msPerDay) / 1_000) * 1_000;
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(day);
  const [dayText = "", time = ""] = date.toISOString().slice(0, 19).split("T");
  if (day < 1) return time;
  return time === "00:00:00" ? dayText : `${dayText} ${time}`;
}
