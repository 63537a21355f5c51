/** Tables as files for spreadsheets (RFC 4180). */

/** A spreadsheet takes a cell that begins so for a formula and runs it; an apostrophe makes text of it (OWASP, "CSV Injection"). */
const formula = /^[=+\-@\t\r]/;

export function csvCell(value: string | number | null): string {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const text = formula.test(value) ? `'${value}` : value;
  return /[",\r\n']/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const csvText = (rows: readonly (readonly (string | number | null)[])[]): string =>
  rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");

/** Gives the browser a file to keep. */
export function saveFile(name: string, text: string, type = "text/csv"): void {
  // With its mark at the beginning, spreadsheets read it as UTF-8.
  const url = URL.createObjectURL(new Blob(["\ufeff", text], { type: `${type};charset=utf-8` }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1_000);
}
