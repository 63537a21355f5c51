/**
 * A document's Markdown as HTML. HTML within it stands there as text, so that a document is nothing but a document;
 * links lead to other pages or to http(s) addresses, and pictures are those that lie beside the documents.
 */
import { Marked, type Token, type Tokens } from "marked";
import { anchorOf, escaped } from "./html.ts";

export interface Heading {
  readonly anchor: string;
  readonly title: string;
  /** 1 to 6. */
  readonly depth: number;
}

/** The text below a heading, up to the next one: what a search finds. */
export interface Section extends Heading {
  readonly text: string;
}

export interface RenderedPage {
  readonly html: string;
  readonly sections: readonly Section[];
}

export interface LinkTargets {
  /** undefined: the link's text stands without a link. */
  link(href: string): string | undefined;
  /** Address of a picture; undefined: its description stands in its place. */
  picture(href: string): string | undefined;
}

export function renderMarkdown(source: string, targets: LinkTargets): RenderedPage {
  const marked = new Marked({ gfm: true });
  const tokens = marked.lexer(source);
  const sections = sectionsOf(tokens);
  // Headings come in the order in which they were collected.
  const anchors = sections.map(({ anchor }) => anchor).values();
  marked.use({
    renderer: {
      html: ({ text }) => escaped(text),
      heading({ tokens: inline, depth }) {
        const anchor = escaped(anchors.next().value ?? "");
        const title = this.parser.parseInline(inline);
        const self = `<a class="anchor" href="#${anchor}" aria-label="Link to this part">#</a>`;
        return `<h${depth} id="${anchor}">${title}${depth === 1 ? "" : ` ${self}`}</h${depth}>\n`;
      },
      code: ({ text }) => `<pre tabindex="0"><code>${escaped(text)}</code></pre>\n`,
      table(token) {
        const { header, rows } = token;
        const row = (cells: readonly Tokens.TableCell[]): string => `<tr>${cells.map(cellOf).join("")}</tr>`;
        const cellOf = ({ tokens: inline, header: isHead, align }: Tokens.TableCell): string => {
          const tag = isHead ? "th" : "td";
          const side = align === "right" ? ' class="number"' : "";
          const scope = isHead ? ' scope="col"' : "";
          return `<${tag}${scope}${side}>${this.parser.parseInline(inline)}</${tag}>`;
        };
        const body = rows.map(row).join("\n");
        return `<div class="table" tabindex="0" role="region" aria-label="Table"><table><thead>${row(header)}</thead><tbody>${body}</tbody></table></div>\n`;
      },
      link({ href, tokens: inline }) {
        const text = this.parser.parseInline(inline);
        const target = targets.link(href);
        return target === undefined ? text : `<a href="${escaped(target)}">${text}</a>`;
      },
      image({ href, text }) {
        const address = targets.picture(href);
        return address === undefined ? escaped(text) : `<img src="${escaped(address)}" alt="${escaped(text)}">`;
      },
    },
  });
  return { html: marked.parser(tokens), sections };
}

function sectionsOf(tokens: readonly Token[]): readonly Section[] {
  const sections: { anchor: string; title: string; depth: number; text: string }[] = [];
  const used = new Map<string, number>();
  for (const token of tokens) {
    if (token.type === "heading") {
      const { depth, tokens: inline = [] } = token as Tokens.Heading;
      const title = plainText(inline);
      const anchor = anchorOf(title);
      const times = used.get(anchor) ?? 0;
      used.set(anchor, times + 1);
      sections.push({ anchor: times === 0 ? anchor : `${anchor}-${times}`, title, depth, text: "" });
      continue;
    }
    const section = sections.at(-1);
    if (section !== undefined) section.text = `${section.text} ${plainText([token])}`.trim();
  }
  return sections;
}

/** What a reader sees of the tokens, in one line. */
function plainText(tokens: readonly Token[]): string {
  const parts: string[] = [];
  const visit = (token: Token): void => {
    if (token.type === "table") {
      const { header, rows } = token as Tokens.Table;
      for (const cell of [header, ...rows].flat()) parts.push(plainText(cell.tokens), " ");
    } else if (token.type === "list") {
      for (const item of (token as Tokens.List).items) visit(item);
    } else if ("tokens" in token && token.tokens !== undefined) {
      for (const inner of token.tokens) visit(inner);
    } else if ("text" in token && typeof token.text === "string") {
      parts.push(token.text);
    }
    if (isBlock(token)) parts.push(" ");
  };
  for (const token of tokens) visit(token);
  return parts.join("").replace(/\s+/g, " ").trim();
}

const isBlock = ({ type }: Token): boolean =>
  ["paragraph", "list_item", "table", "code", "heading", "blockquote", "space", "br"].includes(type);
