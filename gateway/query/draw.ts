import type { Query } from "./ir.ts";
import { type Labels, outlineOf, type Row } from "./outline.ts";

const rowHeight = 26;
const indent = 24;
const boxHeight = 20;
const charWidth = 7.3;
const margin = 12;

const fills: Readonly<Record<Row["kind"], string>> = {
  message: "#f4f4f5",
  fragment: "#dcfce7",
  retrieved: "#dcfce7",
  retrieve: "#dcfce7",
  augment: "#dcfce7",
  generate: "#dbeafe",
  repeat: "#dbeafe",
  map: "#dbeafe",
  chat: "#dbeafe",
  plus: "#fef3c7",
  seq: "#ffffff",
  cross: "#ffffff",
  par: "#ffffff",
  zip: "#ffffff",
  monad: "#f3e8ff",
  more: "#ffffff",
};

/**
 * Draws the query as a standalone SVG image: a box for each node under its parent, coloured by its kind. The image has
 * no scripts or links, and is valid XML whatever the texts contain.
 * @param labels what to write beside a node: its tokens, its key, whether it is cached
 */
export function drawSvg(query: Query, labels?: Labels): string {
  const rows = outlineOf(query, labels);
  const width = Math.ceil(Math.max(...rows.map(rightEdge)) + margin);
  const height = rows.length * rowHeight + 2 * margin;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    `<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12" stroke-width="1">`,
    ...linesOf(rows),
    ...rows.map(boxOf),
    "</g>",
    "</svg>",
  ].join("\n");
}

const leftEdge = ({ depth }: Row) => margin + depth * indent;
const boxWidth = ({ text }: Row) => Math.ceil([...text].length * charWidth + 16);
const rightEdge = (row: Row) =>
  leftEdge(row) + boxWidth(row) + (row.label === undefined ? 0 : 8 + [...row.label].length * charWidth);
const middle = (index: number) => margin + index * rowHeight + boxHeight / 2;

/** Lines from each row's left edge to the stem of its parent, which is the last row above it that is one level up. */
function linesOf(rows: readonly Row[]): string[] {
  const lastAtDepth: number[] = [];
  return rows.flatMap((row, index) => {
    lastAtDepth[row.depth] = index;
    const parent = lastAtDepth[row.depth - 1];
    if (row.depth === 0 || parent === undefined) return [];
    const stem = leftEdge(row) - indent / 2;
    const top = middle(parent) + boxHeight / 2;
    return [`<path d="M${stem} ${top}V${middle(index)}H${leftEdge(row)}" fill="none" stroke="#a1a1aa"/>`];
  });
}

function boxOf(row: Row, index: number): string {
  const x = leftEdge(row);
  const y = middle(index) - boxHeight / 2;
  const baseline = middle(index) + 4;
  const box = `<rect x="${x}" y="${y}" width="${boxWidth(row)}" height="${boxHeight}" rx="4" fill="${fills[row.kind]}" stroke="#71717a"/>`;
  const text = `<text x="${x + 8}" y="${baseline}" fill="#18181b" xml:space="preserve">${escapeXml(row.text)}</text>`;
  if (row.label === undefined) return box + text;
  return `${box + text}<text x="${x + boxWidth(row) + 8}" y="${baseline}" fill="#52525b" xml:space="preserve">${escapeXml(row.label)}</text>`;
}

/** Escapes five characters. Rows hold no control characters and no lone surrogates. */
function escapeXml(text: string): string {
  const names: Readonly<Record<string, string>> = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&apos;",
  };
  return text.replace(/[&<>"']/g, (char) => names[char] ?? char);
}

/**
 * Draws the query as a tree of lines, for terminals. Long texts and large trees are cut.
 * @param labels what to write beside a node: its tokens, its key, whether it is cached
 */
export const drawText = (query: Query, labels?: Labels): string => outlineOf(query, labels).map(lineOf).join("\n");

function lineOf({ continues, text, label }: Row): string {
  const stems = continues.slice(0, -1).map((isOpen) => (isOpen ? "│  " : "   "));
  const branch = continues.length === 0 ? "" : continues.at(-1) ? "├─ " : "└─ ";
  return `${stems.join("")}${branch}${text}${label === undefined ? "" : `  (${label})`}`;
}
