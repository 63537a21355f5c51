/** Makes columns of text: columns whose cells begin with a digit are aligned right, the others left. */
export function textTable(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = header.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => (row[column] ?? "").length)),
  );
  const isFigure = header.map(
    (_, column) => rows.length > 0 && rows.every((row) => /^[-+]?\d|^$|^-$/.test(row[column] ?? "")),
  );
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, column) => (isFigure[column] ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0)))
      .join("  ")
      .trimEnd();
  return [line(header), line(widths.map((width) => "─".repeat(width))), ...rows.map(line)].join("\n");
}
