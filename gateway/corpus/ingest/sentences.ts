/**
 * Cuts text into units that a fragment must not split: sentences, with the blank space after them, and in
 * Markdown headings together with the sentence below. Units are half-open ranges of UTF-16 units that cover
 * the text without gap or overlap.
 *
 * Sentence ends are those of Unicode (UAX #29, Intl.Segmenter), with three corrections: a line break inside a
 * hard-wrapped paragraph ends nothing, nor does a common abbreviation; list items, table rows, and lines of
 * code do end at their line's end. In text of the kind "lines" every line is one unit, whatever sentences it has.
 */
export interface Unit {
  readonly start: number;
  readonly end: number;
  /** The unit begins with a heading, which is a good place for a new fragment. */
  readonly startsSection: boolean;
}

/** What of a string is used here, so that a text need not be one. Places are UTF-16 units. */
export interface LongText {
  readonly length: number;
  slice(start: number, end: number): string;
  indexOf(char: "\n", from: number): number;
}

/** "lines": source code, logs, data and rows of tables, in which each line is a unit. */
export type TextKind = "plain" | "markdown" | "lines";

/** A sentence longer than this is cut whatever its tokens, so that one step has bounded work. */
export const maxSentenceChars = 8_192;
/** A line shorter than this was not broken by a hard wrap. */
const minWrappedLineChars = 40;

/** The kind of a line is decided by this many characters. A longer line is no heading. */
const maxHeadingChars = 200;

const segmenter = new Intl.Segmenter("en", { granularity: "sentence" });
const abbreviation =
  /(?:^|[\s(["'])(?:Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|No|Nr|Fig|Eq|Sec|Ch|Vol|pp?|vs|cf|al|e\.g|i\.e|\p{Lu})\.\s+$/u;
const heading = /^ {0,3}#{1,6}(?:\s|$)/;
const fence = /^ {0,3}(?:```|~~~)/;
/** Matches a list item, a quote, a table row, indented code, or a rule. */
const ownLine = /^(?:\s*(?:[-*+•]|\d{1,9}[.)])\s|\s*[>|]| {4}|\t| {0,3}(?:[-*_=] *){3,}$)/;

type LineKind = "blank" | "heading" | "own" | "prose";

interface Range {
  readonly start: number;
  readonly end: number;
}

/** A line with its break, or several that belong together. */
interface Line extends Range {
  readonly kind: LineKind;
}

export function* sentenceUnits(text: LongText, kind: TextKind): Generator<Unit> {
  for (const unit of sentenceSteps(text, kind)) if (unit !== undefined) yield unit;
}

/** Yields the units, and undefined where a stretch of text was scanned without finding the end of a unit. */
export function sentenceSteps(text: LongText, kind: TextKind): Generator<Unit | undefined> {
  return kind === "lines" ? lineSteps(text) : proseSteps(text, kind);
}

/**
 * Each line with the empty lines after it. An unindented line after an empty one, such as the beginning of a function,
 * is a good place for a new fragment.
 */
function* lineSteps(text: LongText): Generator<Unit | undefined> {
  let afterBlank = false;
  let lineBreak = -1;
  for (let start = 0, stepEnd = maxSentenceChars; start < text.length; ) {
    // A line that is cut has one break, which is looked for once.
    if (lineBreak < start) lineBreak = text.indexOf("\n", start);
    if (lineBreak < 0) lineBreak = text.length;
    let lineEnd = Math.min(lineBreak + 1, text.length);
    if (lineEnd - start > maxSentenceChars) lineEnd = withoutHalfCharacter(text, start, start + maxSentenceChars);
    const end = lineEnd + emptyLinesAt(text, lineEnd);
    yield { start, end, startsSection: afterBlank && /\S/.test(text.slice(start, start + 1)) };
    afterBlank = end > lineEnd;
    start = end;
    if (start < stepEnd) continue;
    stepEnd = start + maxSentenceChars;
    yield undefined;
  }
}

/** Characters of the empty lines that begin there; of many about as many as a sentence may have. */
function emptyLinesAt(text: LongText, start: number): number {
  const isBreak = (part: string, at: number): boolean => part[at] === "\n" || part.startsWith("\r\n", at);
  // Mostly there is none, and a longer part of the text need not be copied.
  if (!isBreak(text.slice(start, start + 2), 0)) return 0;
  const part = text.slice(start, start + maxSentenceChars + 2);
  let chars = 0;
  while (chars <= maxSentenceChars && isBreak(part, chars)) chars += part[chars] === "\n" ? 1 : 2;
  return chars;
}

function* proseSteps(text: LongText, kind: TextKind): Generator<Unit | undefined> {
  // The unit that may still grow: blank space is added to it. If it holds only headings and blank space so far, the
  // next sentence is added to it too.
  let open: Unit | undefined;
  let wantsSentence = false;
  for (const block of blocksOf(text, kind)) {
    if (block === undefined) {
      yield undefined;
      continue;
    }
    if (
      open !== undefined &&
      (open.end - open.start > maxSentenceChars || (block.kind === "heading" && !wantsSentence))
    ) {
      yield open;
      open = undefined;
    }
    if (block.kind === "blank" || block.kind === "heading") {
      const isHeading = block.kind === "heading";
      wantsSentence ||= isHeading || open === undefined;
      open = {
        start: open?.start ?? block.start,
        end: block.end,
        startsSection: isHeading || (open?.startsSection ?? false),
      };
      continue;
    }
    for (const { start, end } of isOneSentence(text, block) ? [block] : sentencesOf(text, block)) {
      if (open !== undefined && !wantsSentence) yield open;
      open = wantsSentence && open !== undefined ? { ...open, end } : { start, end, startsSection: false };
      wantsSentence = false;
    }
  }
  if (open !== undefined) yield open;
}

/** @param head the line's first characters, without blank space at its end */
function lineKindOf(head: string, chars: number, textKind: TextKind): LineKind {
  const mayBeHeading = chars <= maxHeadingChars;
  if (head === "" && mayBeHeading) return "blank";
  if (textKind === "markdown" && mayBeHeading && heading.test(head)) return "heading";
  return ownLine.test(head) ? "own" : "prose";
}

/**
 * Joins the lines of a hard-wrapped paragraph; every other line is a block of its own. Yields undefined within a long
 * paragraph or much blank space, so that other work can run.
 */
function* blocksOf(text: LongText, textKind: TextKind): Generator<Line | undefined> {
  let open: Line | undefined;
  let lastLineChars = 0;
  let stepEnd = maxSentenceChars;
  let inCode = false;
  for (let start = 0, end = 0; start < text.length; start = end) {
    const newline = text.indexOf("\n", start);
    end = newline === -1 ? text.length : newline + 1;
    const head = text.slice(start, Math.min(newline === -1 ? end : newline, start + maxHeadingChars)).trimEnd();
    const isFence = textKind === "markdown" && fence.test(head);
    const kind = isFence || inCode ? "own" : lineKindOf(head, end - start, textKind);
    if (isFence) inCode = !inCode;
    if (start >= stepEnd) {
      stepEnd = start + maxSentenceChars;
      yield undefined;
    }
    const wraps = lastLineChars >= minWrappedLineChars && kind === "prose" && startsAsProse(text, start);
    if (open !== undefined && (open.kind === "prose" || open.kind === "own") && wraps) {
      open = { ...open, end };
    } else {
      if (open !== undefined) yield open;
      open = { start, end, kind };
    }
    lastLineChars = end - start;
  }
  if (open !== undefined) yield open;
}

const proseStart = /^\s*[\p{L}\p{N}"'“‘«(]/u;
const startsAsProse = (text: LongText, start: number): boolean => proseStart.test(text.slice(start, start + 16));

/**
 * A sentence ends after one of these and nowhere else (UAX #29, rules SB4 and SB8 to SB11; what separates paragraphs is
 * replaced first). The full stops that are no Sentence_Terminal in every version of Unicode are named.
 */
const sentenceEnd = /[\p{Sentence_Terminal}.\u2024\uFE52\uFF0E]/u;
const lineBreaks = /[\r\n\u0085\u2028\u2029]/g;

/**
 * Items of lists and cells of tables mostly have no end of a sentence. To look for their sentences would make a kilobyte
 * of garbage for each, and a file can have a million.
 */
const isOneSentence = (text: LongText, { start, end }: Range): boolean =>
  end - start <= maxSentenceChars && !sentenceEnd.test(text.slice(start, end));

/**
 * The sentences of a block. A window moves over the block, so that even megabytes of text cost only short steps.
 */
function* sentencesOf(text: LongText, { start, end }: Range): Generator<Range> {
  let at = start;
  while (at < end) {
    const windowEnd = withoutHalfCharacter(text, at, Math.min(at + maxSentenceChars, end));
    const ranges = mergeAbbreviations(text, at, segment(text, at, windowEnd));
    // The window may have cut the last sentence, so the next window begins at that sentence's start.
    const complete = windowEnd === end || ranges.length === 1 ? ranges : ranges.slice(0, -1);
    for (const range of complete) {
      yield range;
      at = range.end;
    }
  }
}

function segment(text: LongText, start: number, end: number): readonly Range[] {
  // Each line break becomes a space, since it is one within a wrapped paragraph. The length stays the same, and so do
  // the offsets.
  const flat = text.slice(start, end).replace(lineBreaks, " ");
  if (!sentenceEnd.test(flat)) return [{ start, end }];
  return Array.from(segmenter.segment(flat), (part) => {
    return { start: start + part.index, end: start + part.index + part.segment.length };
  });
}

function mergeAbbreviations(text: LongText, start: number, ranges: readonly Range[]): readonly Range[] {
  const merged: Range[] = [];
  let from = start;
  for (const { end } of ranges) {
    const tail = text.slice(Math.max(from, end - 24), end);
    if (abbreviation.test(tail) && end !== ranges.at(-1)?.end) continue;
    merged.push({ start: from, end });
    from = end;
  }
  return merged;
}

/** Returns `end`, or one less where the cut would split a surrogate pair. */
export function withoutHalfCharacter(text: LongText, start: number, end: number): number {
  if (end >= text.length || end - start < 2) return end;
  const around = text.slice(end - 1, end + 1);
  const isHigh = (around.charCodeAt(0) & 0xfc00) === 0xd800;
  const isLow = (around.charCodeAt(1) & 0xfc00) === 0xdc00;
  return isHigh && isLow ? end - 1 : end;
}
