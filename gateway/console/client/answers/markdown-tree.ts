/**
 * What a model wrote, read as Markdown into a tree of the few elements that there may be. Nothing in it is ever read as
 * HTML: that stands as text, pictures as their descriptions, and links lead to http(s) alone.
 */
import { Lexer, type Token, type Tokens } from "marked";

export type Tag =
  | ("p" | "h3" | "hr" | "pre" | "blockquote" | "ul" | "li" | "table" | "thead" | "tbody" | "tr" | "th" | "td")
  | ("strong" | "em" | "del" | "br" | "code");

/** An element with what is in it; a text; the mark of a source. */
export type MarkdownNode =
  | { readonly tag: Tag; readonly children: readonly MarkdownNode[] }
  | { readonly tag: "a"; readonly href: string; readonly children: readonly MarkdownNode[] }
  | { readonly tag: "ol"; readonly start: number; readonly children: readonly MarkdownNode[] }
  | { readonly text: string }
  | { readonly source: number };

/** Stands in a text for the mark of a source, `[1]`; a model's text has none of these signs left. */
const [markBegin, markEnd] = ["\ue000", "\ue001"];
const ownSigns = /[\ue000\ue001]/g;
const markPattern = /\ue000(\d+)\ue001/;

/** Longer texts stand as they are: to read a megabyte as Markdown would hold the page up. */
const mostChars = 200_000;

export interface Mark {
  /** Where it stands in the text, in characters (code points). */
  readonly at: number;
  /** Number of the source, from 1. */
  readonly source: number;
}

/** @returns undefined for a text that is too long to be read */
export function markdownTree(text: string, marks: readonly Mark[] = []): readonly MarkdownNode[] | undefined {
  if (text.length > mostChars) return undefined;
  // The lexer alone: there is no step that makes a string of HTML.
  const tokens = new Lexer({ gfm: true }).lex(withMarks(text.replace(ownSigns, "\ufffd"), marks));
  return blocks(tokens);
}

/** The text with a sign for each mark, which Markdown takes for letters. */
function withMarks(text: string, marks: readonly Mark[]): string {
  if (marks.length === 0) return text;
  const signs = Array.from(text);
  const parts: string[] = [];
  let done = 0;
  for (const { at, source } of marks.toSorted((a, b) => a.at - b.at)) {
    const end = Math.max(done, Math.min(at, signs.length));
    parts.push(signs.slice(done, end).join(""), `${markBegin}${source}${markEnd}`);
    done = end;
  }
  return parts.join("") + signs.slice(done).join("");
}

const element = (tag: Tag, children: readonly MarkdownNode[]): MarkdownNode => ({ tag, children });
const blocks = (tokens: readonly Token[]): readonly MarkdownNode[] => tokens.flatMap(block);
const within = (token: Token): readonly Token[] =>
  "tokens" in token && token.tokens !== undefined ? token.tokens : [];

function block(token: Token): readonly MarkdownNode[] {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      // Answers stand below the page's own headings.
      return [element("h3", inline(within(token)))];
    case "hr":
      return [element("hr", [])];
    case "code":
      return [element("pre", texts((token as Tokens.Code).text))];
    case "blockquote":
      return [element("blockquote", blocks(within(token)))];
    case "list":
      return [listOf(token as Tokens.List)];
    case "table":
      return [tableOf(token as Tokens.Table)];
    default:
      return [element("p", inline(within(token).length > 0 ? within(token) : [token]))];
  }
}

function listOf({ items, ordered, start }: Tokens.List): MarkdownNode {
  const children = items.map(({ tokens }) =>
    element(
      "li",
      tokens.flatMap((token) => (token.type === "text" ? inline(token.tokens ?? [token]) : block(token))),
    ),
  );
  return ordered ? { tag: "ol", start: Number(start) || 1, children } : element("ul", children);
}

function tableOf({ header, rows }: Tokens.Table): MarkdownNode {
  const row = (cells: readonly Tokens.TableCell[], tag: "th" | "td"): MarkdownNode =>
    element(
      "tr",
      cells.map(({ tokens }) => element(tag, inline(tokens))),
    );
  return element("table", [
    element("thead", [row(header, "th")]),
    element(
      "tbody",
      rows.map((cells) => row(cells, "td")),
    ),
  ]);
}

const inline = (tokens: readonly Token[]): readonly MarkdownNode[] => tokens.flatMap(inlineOf);

function inlineOf(token: Token): readonly MarkdownNode[] {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return [element(token.type, inline(within(token)))];
    case "br":
      return [element("br", [])];
    case "codespan":
      return [element("code", texts((token as Tokens.Codespan).text))];
    case "link": {
      const href = safeLink((token as Tokens.Link).href);
      const children = inline(within(token));
      return href === undefined ? children : [{ tag: "a", href, children }];
    }
    case "image":
      return texts((token as Tokens.Image).text);
    default:
      if (within(token).length > 0) return inline(within(token));
      return texts("text" in token ? String(token.text) : token.raw);
  }
}

/** An address of the web; undefined: of another kind, or none. */
export function safeLink(href: string): string | undefined {
  const address = href.replace(/\ue000\d+\ue001/g, "");
  if (!/^https?:\/\//i.test(address) || !URL.canParse(address)) return undefined;
  const { protocol, href: read } = new URL(address);
  return protocol === "https:" || protocol === "http:" ? read : undefined;
}

/** A text with its marks. */
const texts = (text: string): readonly MarkdownNode[] =>
  unescaped(text)
    .split(markPattern)
    .flatMap((part, index): MarkdownNode[] => {
      if (index % 2 === 1) return [{ source: Number(part) }];
      return part === "" ? [] : [{ text: part }];
    });

const entities: Readonly<Record<string, string>> = {
  ...{ "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" },
};
/** Markdown writes these five as HTML does. */
const unescaped = (text: string): string => text.replace(/&(?:amp|lt|gt|quot|#39);/g, (name) => entities[name] ?? name);
