import { describe, expect, test } from "bun:test";
import { Progress } from "../../gateway/cli/support/progress.ts";
import { textTable } from "../../gateway/cli/support/text-table.ts";

function progressOn(isTTY: boolean) {
  const written: string[] = [];
  const progress = new Progress("work", { isTTY, write: (text) => written.push(text) });
  return { progress, written };
}

describe("Progress", () => {
  test("redraws one line on a terminal and ends it", () => {
    const { progress, written } = progressOn(true);
    for (const done of [0, 1, 2]) progress.update(done, 2, "files");
    progress.finish();
    expect(written).toHaveLength(4);
    expect(written[1]).toBe(`\r\x1b[Kwork ${"█".repeat(15)}${"░".repeat(15)} 1/2  files`);
    expect(written[2]).toContain("█".repeat(30));
    expect(written[3]).toBe("\n");
  });

  test("writes a line a tenth elsewhere", () => {
    const { progress, written } = progressOn(false);
    for (let done = 0; done <= 1_000; done++) progress.update(done, 1_000);
    progress.finish();
    expect(written).toHaveLength(11);
    expect(written.at(-1)).toEndWith("1000/1000\n");
  });

  test("nothing to do is done", () => {
    const { progress, written } = progressOn(false);
    progress.update(0, 0);
    expect(written[0]).toContain("█".repeat(30));
  });
});

describe("textTable", () => {
  test("aligns text left and figures right", () => {
    const table = textTable(
      ["name", "ms"],
      [
        ["a", "1.25"],
        ["longer", "10"],
      ],
    );
    expect(table.split("\n")).toEqual(["name      ms", "──────  ────", "a       1.25", "longer    10"]);
  });

  test("a table of no rows is its header", () => {
    expect(textTable(["a", "b"], [])).toBe("a  b\n─  ─");
  });
});
