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

interface Line {
  readonly start: number;
  /** The offset after the line break. */
  readonly end: number;
  readonly kind: LineKind;
}

export function* sentenceUnits(text: string, kind: TextKind): Generator<Unit> {
  for (const unit of sentenceSteps(text, kind)) if (unit !== undefined) yield unit;
}

/** Yields the units, and undefined where a stretch of text was scanned without finding the end of a unit. */
export function sentenceSteps(text: string, kind: TextKind): Generator<Unit | undefined> {
  return kind === "lines" ? lineSteps(text) : proseSteps(text, kind);
}

/**
 * Each line with the empty lines after it. An unindented line after an empty one, such as the beginning of a function,
 * is a good place for a new fragment.
 */
function* lineSteps(text: string): Generator<Unit | undefined> {
  let afterBlank = false;
  for (let start = 0, stepEnd = maxSentenceChars; start < text.length; ) {
    const newline = text.indexOf("\n", start);
    let end = newline === -1 ? text.length : newline + 1;
    if (end - start > maxSentenceChars) end = withoutHalfCharacter(text, start, start + maxSentenceChars);
    const lineEnd = end;
    while (text[end] === "\n" || text.startsWith("\r\n", end)) {
      end += text[end] === "\n" ? 1 : 2;
      if (end - lineEnd > maxSentenceChars) break;
    }
    yield { start, end, startsSection: afterBlank && /\S/.test(text[start] ?? "") };
    afterBlank = end > lineEnd;
    start = end;
    if (start < stepEnd) continue;
    stepEnd = start + maxSentenceChars;
    yield undefined;
  }
}

function* proseSteps(text: string, kind: TextKind): Generator<Unit | undefined> {
  // The unit that may still grow: blank space is added to it. If it holds only headings and blank space so far, the
  // next sentence is added to it too.
  let open: Unit | undefined;
  let wantsSentence = false;
  for (const block of blocksOf(linesOf(text, kind), text)) {
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
    for (const [start, end] of sentencesOf(text, block.start, block.end)) {
      if (open !== undefined && !wantsSentence) yield open;
      open = wantsSentence && open !== undefined ? { ...open, end } : { start, end, startsSection: false };
      wantsSentence = false;
    }
  }
  if (open !== undefined) yield open;
}

function* linesOf(text: string, textKind: TextKind): Generator<Line> {
  let inCode = false;
  for (let start = 0; start < text.length; ) {
    const newline = text.indexOf("\n", start);
    const end = newline === -1 ? text.length : newline + 1;
    const head = text.slice(start, Math.min(end, start + maxHeadingChars)).trimEnd();
    const isFence = textKind === "markdown" && fence.test(head);
    let kind: LineKind = "prose";
    if (isFence || inCode) kind = "own";
    else if (head === "" && end - start <= maxHeadingChars) kind = "blank";
    else if (textKind === "markdown" && end - start <= maxHeadingChars && heading.test(head)) kind = "heading";
    else if (ownLine.test(head)) kind = "own";
    if (isFence) inCode = !inCode;
    yield { start, end, kind };
    start = end;
  }
}

/**
 * Joins the lines of a hard-wrapped paragraph; every other line is a block of its own. Yields undefined within a long
 * paragraph or much blank space, so that other work can run.
 */
function* blocksOf(lines: Iterable<Line>, text: string): Generator<Line | undefined> {
  let open: Line | undefined;
  let lastLineChars = 0;
  let stepEnd = maxSentenceChars;
  for (const line of lines) {
    if (line.start >= stepEnd) {
      stepEnd = line.start + maxSentenceChars;
      yield undefined;
    }
    const wraps = lastLineChars >= minWrappedLineChars && line.kind === "prose" && startsAsProse(text, line.start);
    if (open !== undefined && (open.kind === "prose" || open.kind === "own") && wraps) {
      open = { ...open, end: line.end };
    } else {
      if (open !== undefined) yield open;
      open = line;
    }
    lastLineChars = line.end - line.start;
  }
  if (open !== undefined) yield open;
}

function startsAsProse(text: string, start: number): boolean {
  return /^\s*[\p{L}\p{N}"'“‘«(]/u.test(text.slice(start, start + 16));
}

/**
 * The sentence ranges of a block. A window moves over the block, so that even megabytes of text cost only short steps.
 */
function* sentencesOf(text: string, start: number, end: number): Generator<readonly [number, number]> {
  let at = start;
  while (at < end) {
    const windowEnd = withoutHalfCharacter(text, at, Math.min(at + maxSentenceChars, end));
    const ranges = mergeAbbreviations(text, at, segment(text, at, windowEnd));
    // The window may have cut the last sentence, so the next window begins at that sentence's start.
    const complete = windowEnd === end || ranges.length === 1 ? ranges : ranges.slice(0, -1);
    for (const range of complete) {
      yield range;
      at = range[1];
    }
  }
}

/**
 * A sentence ends after one of these and nowhere else (UAX #29, rules SB4 and SB8 to SB11; what separates paragraphs is
 * replaced first). The full stops that are no Sentence_Terminal in every version of Unicode are named.
 */
const sentenceEnd = /[\p{Sentence_Terminal}.\u2024\uFE52\uFF0E]/u;

function segment(text: string, start: number, end: number): (readonly [number, number])[] {
  // Each line break becomes a space, since it is one within a wrapped paragraph. The length stays the same, and so do
  // the offsets.
  const flat = text.slice(start, end).replace(/[\r\n\u0085\u2028\u2029]/g, " ");
  // Items of lists and cells of tables mostly have no end of a sentence. The segmenter takes a microsecond and a
  // kilobyte of garbage to find none.
  if (!sentenceEnd.test(flat)) return [[start, end]];
  return Array.from(
    segmenter.segment(flat),
    (part) => [start + part.index, start + part.index + part.segment.length] as const,
  );
}

function mergeAbbreviations(
  text: string,
  start: number,
  ranges: readonly (readonly [number, number])[],
): (readonly [number, number])[] {
  const merged: (readonly [number, number])[] = [];
  let from = start;
  for (const [, end] of ranges) {
    const tail = text.slice(Math.max(from, end - 24), end);
    if (abbreviation.test(tail) && end !== ranges.at(-1)?.[1]) continue;
    merged.push([from, end]);
    from = end;
  }
  return merged;
}

/** Returns `end`, or one less where the cut would split a surrogate pair. */
export function withoutHalfCharacter(text: string, start: number, end: number): number {
  if (end >= text.length || end - start < 2) return end;
  const isHigh = (text.charCodeAt(end - 1) & 0xfc00) === 0xd800;
  const isLow = (text.charCodeAt(end) & 0xfc00) === 0xdc00;
  return isHigh && isLow ? end - 1 : end;
}
