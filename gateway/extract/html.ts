/** HTML to text with Markdown's headings, lists and table rows, so that it can be cut where its sections begin. */
import { Parser } from "htmlparser2";
import { markedCharset } from "./charset.ts";
import { type ExtractJob, Refused, tooMuchText } from "./protocol.ts";

const skipped = new Set(["title", "script", "style", "noscript", "template", "svg", "math", "iframe", "select"]);
const headingLevel = /^h([1-6])$/;
const blocks = new Set([
  ...["address", "article", "aside", "blockquote", "body", "center", "dd", "details", "dialog", "div", "dl", "dt"],
  ...["fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "main", "nav", "ol", "p", "pre"],
  ...["section", "summary", "table", "ul"],
]);
const cells = new Set(["td", "th"]);

type TextLimit = Pick<ExtractJob, "maxTextChars">;

export const htmlDocumentText = (bytes: Uint8Array, job: TextLimit): string => pageText(decodeHtml(bytes), job);

/** Which part of a page is read: the elements that are the page's matter (absent: all), without those that are not. */
interface PagePart {
  readonly within?: string;
  readonly without: ReadonlySet<string>;
}

const everything: PagePart = { without: new Set() };
const navigation = new Set(["nav"]);
const frame: PagePart = { without: new Set(["nav", "header", "footer", "aside", "form"]) };
/**
 * Some pages stand in one form, or leave an element open. If less than this share of the text is left without the
 * page's frame, all of it is read.
 */
const leastShareLeft = 0.1;

/**
 * A page's matter: its `main` or its articles where it has any, else what stands beside navigation, header, footer,
 * asides and forms, else everything.
 * @throws Refused
 */
export function pageText(html: string, job: TextLimit): string {
  for (const within of ["main", "article"]) {
    if (!new RegExp(`<${within}\\b`, "i").test(html)) continue;
    const text = htmlText(html, job, { within, without: navigation });
    if (text !== "") return text;
  }
  const whole = htmlText(html, job);
  const text = htmlText(html, job, frame);
  return text.length > whole.length * leastShareLeft ? text : whole;
}

/** Reads the HTML in one pass without building a tree, so that deep nesting does no harm. @throws Refused */
export function htmlText(html: string, { maxTextChars }: TextLimit, { within, without } = everything): string {
  const writer = new TextWriter(maxTextChars);
  let title = "";
  let inTitle = false;
  let skipDepth = 0;
  let withinDepth = 0;
  const isSkipped = (name: string): boolean => skipped.has(name) || without.has(name);
  const isOutside = (): boolean => skipDepth > 0 || (within !== undefined && withinDepth === 0);
  let preDepth = 0;
  let cellDepth = 0;
  // A row of a table stays one line, whatever its cells hold.
  const breakOff = (): void => (cellDepth > 0 ? writer.blank() : writer.paragraph());
  const parser = new Parser({
    onopentagname: (name) => {
      inTitle = name === "title" && skipDepth === 0;
      if (isSkipped(name)) skipDepth += 1;
      if (name === within) withinDepth += 1;
      if (isOutside()) return;
      const level = headingLevel.exec(name)?.[1];
      if (level !== undefined) writer.paragraph(`${"#".repeat(Number(level))} `);
      else if (name === "li") writer.line("- ");
      else if (cells.has(name)) {
        writer.cell();
        cellDepth += 1;
      } else if (name === "tr") writer.row();
      else if (name === "br") writer.lineBreak();
      else if (name === "option") writer.line();
      else if (blocks.has(name)) breakOff();
      if (name === "pre") preDepth += 1;
    },
    ontext: (text) => {
      if (inTitle && title.length < maxTitleChars) title += text;
      if (isOutside()) return;
      if (preDepth > 0) writer.code(text);
      else writer.text(text);
    },
    onclosetag: (name) => {
      inTitle = false;
      const wasOutside = isOutside();
      if (isSkipped(name)) skipDepth = Math.max(0, skipDepth - 1);
      if (name === within) withinDepth = Math.max(0, withinDepth - 1);
      if (wasOutside && (isOutside() || !isSkipped(name))) return;
      if (name === "pre") preDepth = Math.max(0, preDepth - 1);
      if (cells.has(name)) cellDepth = Math.max(0, cellDepth - 1);
      if (name === "li" || name === "tr" || headingLevel.test(name)) writer.endPrefix();
      if (blocks.has(name) || headingLevel.test(name)) breakOff();
    },
  });
  parser.end(html);
  const text = writer.end();
  const heading = title.replace(/\s+/g, " ").trim().slice(0, maxTitleChars);
  return writer.hasTitle || heading === "" || text === "" ? text : `# ${heading}\n\n${text}`;
}

const maxTitleChars = 512;

/** Collapses blank space outside of code, and writes breaks only between texts. */
class TextWriter {
  readonly #maxChars: number;
  readonly #parts: string[] = [];
  #charCount = 0;
  /** The break that is written before the next text. */
  #pending: "" | " " | "\n" | "\n\n" = "";
  /** Blank space within code that is written before the code's next text. */
  #codeBlank = "";
  #prefix = "";
  /** Whether the next cell is the first of its row. */
  #atRow = false;
  /** Whether a heading of the first level was written, with text. */
  hasTitle = false;

  constructor(maxChars: number) {
    this.#maxChars = maxChars;
  }

  /**
   * Begins a paragraph.
   * @param prefix written before the paragraph's text; default: the prefix of a list entry that begins here
   */
  paragraph(prefix = this.#prefix): void {
    this.#pending = "\n\n";
    this.#prefix = prefix;
    this.#codeBlank = "";
  }

  line(prefix = ""): void {
    if (this.#pending !== "\n\n") this.#pending = "\n";
    this.#prefix = prefix;
    this.#codeBlank = "";
  }

  /** Breaks the line, except at the beginning of a list entry, a table cell or a heading. */
  lineBreak(): void {
    if (this.#prefix === "") this.line();
  }

  blank(): void {
    this.#pending ||= " ";
    this.#codeBlank = "";
  }

  row(): void {
    this.line();
    this.#atRow = true;
  }

  /**
   * Begins a cell. A bar is written before each cell but the row's first, also for empty cells, so that the columns
   * stay.
   */
  cell(): void {
    if (!this.#atRow) this.#prefix += "| ";
    this.#atRow = false;
    this.blank();
  }

  /** Call at the end of a heading, a list entry or a row. If it had no text, its prefix is not written. */
  endPrefix(): void {
    this.#prefix = "";
  }

  text(text: string): void {
    const shown = text.replace(/[\s\u00a0]+/g, " ");
    const own = shown.trim();
    if (shown.startsWith(" ")) this.blank();
    if (own === "") return;
    this.#writeNext("", own);
    if (shown.endsWith(" ")) this.#pending = " ";
  }

  /** Text of code. Its blank space stays as it is, except for empty lines at the beginning and the end. */
  code(text: string): void {
    const own = text.trim();
    const start = own === "" ? text.length : text.indexOf(own);
    const blank = this.#codeBlank + text.slice(0, start);
    this.#codeBlank = blank;
    if (own === "") return;
    this.#writeNext(this.#pending === "" ? blank : blank.slice(blank.lastIndexOf("\n") + 1), own);
    this.#codeBlank = text.slice(start + own.length);
  }

  end(): string {
    return this.#parts.join("").trim();
  }

  #writeNext(blank: string, own: string): void {
    this.#write((this.#parts.length === 0 ? "" : this.#pending) + this.#prefix + blank);
    this.#write(own);
    this.hasTitle ||= this.#prefix === "# ";
    this.#pending = "";
    this.#prefix = "";
    this.#codeBlank = "";
  }

  #write(part: string): void {
    if (part === "") return;
    this.#charCount += part.length;
    if (this.#charCount > this.#maxChars) throw tooMuchText(this.#maxChars);
    this.#parts.push(part);
  }
}

/** Decodes HTML by its byte order mark, else by its meta element, else as UTF-8. @throws Refused */
export function decodeHtml(bytes: Uint8Array): string {
  const label = charsetOf(bytes);
  try {
    return new TextDecoder(label as Bun.Encoding, { fatal: label === "utf-8" }).decode(bytes);
  } catch {
    throw new Refused(
      label === "utf-8"
        ? "The file is not valid UTF-8, and names no other character set."
        : "The file names a character set that this server does not know.",
    );
  }
}

function charsetOf(bytes: Uint8Array): string {
  const marked = markedCharset(bytes);
  if (marked !== undefined) return marked;
  const head = Buffer.from(bytes.subarray(0, 4_096)).toString("latin1");
  const named = /<meta\b[^>]{0,512}?charset\s*=\s*["']?\s*([\w.:-]{1,40})/i.exec(head)?.[1]?.toLowerCase();
  // The meta element was found byte by byte, so the file is not UTF-16, even if it says so.
  return named === undefined || named === "utf8" || named.startsWith("utf-16") ? "utf-8" : named;
}
