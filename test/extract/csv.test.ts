import { describe, expect, test } from "bun:test";
import { csvText } from "../../gateway/extract/csv.ts";
import { fc } from "../support/fast-check.ts";

const bytesOf = (text: string): Uint8Array => new TextEncoder().encode(text);
const text = (csv: string | Uint8Array, kind: "csv" | "tsv" = "csv", maxTextChars = 100_000) =>
  csvText(typeof csv === "string" ? bytesOf(csv) : csv, { kind, maxTextChars });

describe("CSV to text", () => {
  test("each row names its columns, in one line, without its empty cells", () => {
    expect(text('name,age,note\nAnn,7,"likes ""cats"",\n  and dogs."\nTom,,\n\n,8,\n')).toBe(
      'name: Ann | age: 7 | note: likes "cats", and dogs.\nname: Tom\nage: 8',
    );
    expect(text("a,,c\n1,2,3,4\n")).toBe("a: 1 | 2 | c: 3 | 4");
  });

  test("a table whose first row has numbers, or a name twice, has no names; a table of names alone is its names", () => {
    expect(text("Ann,7\nTom,8")).toBe("Ann | 7\nTom | 8");
    expect(text("x,x\n1,2")).toBe("x | x\n1 | 2");
    expect(text("1.5,-3 %\nx,y")).toBe("1.5 | -3 %\nx | y");
    expect(text("name,age")).toBe("name | age");
    expect(text("")).toBe("");
    expect(text(",,\n,,\n")).toBe("");
  });

  test("the delimiter is the one that the first line has most of, tabs where the name says so", () => {
    for (const sign of [",", ";", "\t", "|"]) {
      expect(text(`name${sign}"a,a;b"${sign}age\r\nAnn${sign}x${sign}7\r\n`)).toBe("name: Ann | a,a;b: x | age: 7");
    }
    expect(text("name, first\tage\nAnn\t7", "tsv")).toBe("name, first: Ann | age: 7");
  });

  test("a quotation mark within a cell is text; one that is never closed is refused with its line", () => {
    expect(text('size,name\n5" pipe,a\n')).toBe('size: 5" pipe | name: a');
    expect(() => text('a,b\n1,2\n3,"4\n5,6\n')).toThrow(/not valid CSV near line \d: a quotation mark/);
  });

  test("UTF-16 with a mark, as spreadsheets write it, is read; other bytes that are no UTF-8 are refused", () => {
    expect(text(Buffer.from("\ufeffStraße\tn\nHöhe\t1", "utf16le"))).toBe("Straße: Höhe | n: 1");
    expect(text("\ufeffname,age\nAnn,7")).toBe("name: Ann | age: 7");
    expect(() => text(Buffer.from("name\nJos\xe9", "latin1"))).toThrow("not valid UTF-8");
    expect(() => text("a,b\n1,\0")).toThrow("NUL");
  });

  test("a million columns, a long name in each row, and too much text are refused", () => {
    expect(() => text(`${"a,".repeat(1_000_000)}b\n`)).toThrow("more than 16384 columns");
    expect(() => text(`${"n".repeat(5_000)},b\n${"x,y\n".repeat(5_000)}`)).toThrow("more than 100000 characters");
    expect(text(`${"n".repeat(5_000)},b\nx,y`)).toBe(`${"n".repeat(80)}: x | b: y`);
    expect(() => text("x,y\n1,2\n", "csv", 5)).toThrow("more than 5 characters");
  });

  test("any cells that a writer quotes come back, in order", () => {
    const cell = fc.stringMatching(/^[a-z",;\n]{0,8}$/);
    fc.assert(
      fc.property(fc.array(fc.tuple(cell, cell, cell), { maxLength: 8 }), (rows) => {
        const quoted = rows.map((row) => row.map((one) => `"${one.replaceAll('"', '""')}"`).join(","));
        const shown = rows.flatMap((row) => {
          const cells = row.map((one) => one.replace(/\s+/g, " ").trim());
          const named = cells.map((one, at) => (one === "" ? "" : `c${at}: ${one}`)).filter((one) => one !== "");
          return named.length === 0 ? [] : [named.join(" | ")];
        });
        expect(text(["c0,c1,c2", ...quoted].join("\n"))).toBe(shown.length === 0 ? "c0 | c1 | c2" : shown.join("\n"));
      }),
    );
  });
});
