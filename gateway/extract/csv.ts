/**
 * CSV to text by csv-parse: each row is a line that names its columns, `name: Ann | age: 7`, so that a row says what it
 * means wherever it is read. Cells without text are left out.
 */
import { parse } from "csv-parse/sync";
import { decodeMarked } from "./charset.ts";
import { type ExtractJob, Refused, tooMuchText } from "./protocol.ts";

/** As many as a sheet of Excel has. */
const maxColumns = 16_384;
/** The column's name stands in each row, so a long one is cut. */
const maxNameChars = 80;

/** @throws Refused */
export function csvText(bytes: Uint8Array, { kind, maxTextChars }: Pick<ExtractJob, "kind" | "maxTextChars">): string {
  const rows = new RowWriter(maxTextChars);
  const text = decodeMarked(bytes);
  try {
    parse(text, {
      delimiter: kind === "tsv" ? "\t" : delimiterOf(text),
      relax_quotes: true,
      relax_column_count: true,
      skip_empty_lines: true,
      // Rows are written one by one and not kept.
      on_record: (row: readonly string[]) => {
        rows.add(row);
        return null;
      },
    });
  } catch (error) {
    if (error instanceof Refused) throw error;
    const line = error instanceof Error && "lines" in error ? ` near line ${Number(error.lines)}` : "";
    throw new Refused(`The file is not valid CSV${line}: a quotation mark may be missing.`);
  }
  return rows.text();
}

const delimiters = [",", ";", "\t", "|"];
const maxFirstLineChars = 65_536;

/** The delimiter that the first line has most of, outside of quotation marks: programs write another one by country. */
function delimiterOf(text: string): string {
  const firstLine = /^[\r\n]*([^\r\n]*)/.exec(text.slice(0, maxFirstLineChars))?.[1] ?? "";
  const bare = firstLine.replace(/"[^"]*"/g, "");
  const count = (delimiter: string): number => bare.split(delimiter).length;
  return delimiters.reduce((best, one) => (count(one) > count(best) ? one : best));
}

export class RowWriter {
  readonly #maxChars: number;
  readonly #prefix: string;
  readonly #lines: string[] = [];
  /** The columns' names; undefined before the first row. */
  #names: readonly string[] | undefined;
  /** The row that the names were taken from. It is the text of a table without other rows. */
  #nameLine = "";
  #charCount = 0;

  /** @param prefix stands before each row */
  constructor(maxChars: number, prefix = "") {
    this.#maxChars = maxChars;
    this.#prefix = prefix;
  }

  add(row: readonly string[]): void {
    if (row.length > maxColumns) throw new Refused(`The table has more than ${maxColumns} columns.`);
    const cells = row.map((cell) => cell.replace(/\s+/g, " ").trim());
    if (this.#names === undefined && isHeader(cells)) {
      this.#names = cells.map((cell) => cell.slice(0, maxNameChars));
      this.#nameLine = this.#prefix + cells.filter((cell) => cell !== "").join(" | ");
      return;
    }
    const names = this.#names ?? [];
    this.#names = names;
    const said = cells.map((cell, column) => (cell === "" || !names[column] ? cell : `${names[column]}: ${cell}`));
    const line = said.filter((cell) => cell !== "").join(" | ");
    if (line === "") return;
    this.#charCount += this.#prefix.length + line.length + 1;
    if (this.#charCount > this.#maxChars) throw tooMuchText(this.#maxChars);
    this.#lines.push(this.#prefix + line);
  }

  text(): string {
    return this.#lines.length === 0 ? this.#nameLine : this.#lines.join("\n");
  }
}

/** Whether the first row names the columns: each name is there once, and none is a number. */
function isHeader(cells: readonly string[]): boolean {
  const names = cells.filter((cell) => cell !== "");
  return (
    names.length > 0 && new Set(names).size === names.length && !names.some((name) => /^[-+.,\d\s%€$£]+$/.test(name))
  );
}
