import { expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Parser } from "htmlparser2";
import { readText, repositoryRoot } from "../../support/import-graph.ts";
import { pictureOf, readResult } from "./picture.ts";
import { storedPictures } from "./pictures.ts";
import { decades, drawPlot, type Plot, powersOfTwo } from "./plot.ts";

test("every picture of the documents is what its stored result draws, and every one is shown", () => {
  const pictures = [...new Bun.Glob("docs/pictures/*").scanSync(repositoryRoot)];
  expect(pictures.toSorted()).toEqual(storedPictures.map(({ picture }) => picture).toSorted());
  const page = readText("docs/measurements.md");
  for (const { picture, result, bench } of storedPictures) {
    const drawn = pictureOf(bench, readResult(join(repositoryRoot, result), bench.name));
    const remedy = `bun run bench ${bench.name} --plot ${picture} --results ${result}`;
    expect(readText(picture) === drawn, remedy).toBe(true);
    expect(page).toContain(`](${picture.replace("docs/", "")})`);
  }
});

const plot: Plot = {
  title: "<script>&",
  source: '"',
  x: { label: "x", ticks: powersOfTwo(1, 4), isLogarithmic: true },
  y: { label: "y", ticks: decades([0.5, 90], " ms"), isLogarithmic: true },
  series: [
    {
      name: "a<b",
      points: [
        [1, 1],
        [4, 100],
      ],
    },
    {
      name: "second",
      points: [
        [1, 10],
        [4, 100],
      ],
    },
  ],
};

/** Every element with its attributes. */
function elementsOf(svg: string): readonly (readonly [name: string, attributes: Record<string, string>])[] {
  const found: [string, Record<string, string>][] = [];
  const parser = new Parser(
    { onopentag: (name, attributes) => void found.push([name, attributes]) },
    { xmlMode: true },
  );
  parser.end(svg);
  return found;
}

test("values stand where the axes say, and texts are texts", () => {
  const elements = elementsOf(drawPlot(plot));
  expect([...new Set(elements.map(([name]) => name))].toSorted()).toEqual([
    "circle",
    "desc",
    "path",
    "rect",
    "svg",
    "text",
    "title",
  ]);
  const circles = elements.filter(([name]) => name === "circle").map(([, { cx, cy }]) => [Number(cx), Number(cy)]);
  // From 0.1 to 100 ms there are three decades: 1 is one of them up, 100 at the top.
  expect(circles).toEqual([
    [86, 252],
    [566, 56],
  ]);
  expect(drawPlot(plot)).toContain("a&#60;b");
  // What the curves say stands there in words too.
  expect(drawPlot(plot)).toContain("a&#60;b: 1 at 1, 100 at 4. second: 10 at 1, 100 at 4.");
});

test("names of curves that end at the same height do not stand on each other", () => {
  const heights = [...drawPlot(plot).matchAll(/<text x="578" y="([\d.]+)"/g)].map(([, y]) => Number(y));
  expect(heights).toHaveLength(2);
  expect(Math.abs((heights[0] ?? 0) - (heights[1] ?? 0))).toBeGreaterThanOrEqual(18);
});

test("ticks hold all values", () => {
  expect(decades([0.5, 90], "").map(([value]) => value)).toEqual([0.1, 1, 10, 100]);
  expect(powersOfTwo(1, 8).map(([value]) => value)).toEqual([1, 2, 4, 8]);
});

test("what is no result of the benchmark is refused by name", () => {
  const folder = mkdtempSync(join(tmpdir(), "spangate-plot-"));
  try {
    const file = join(folder, "a.json");
    expect(() => readResult(file, "rag")).toThrow("cannot be read");
    writeFileSync(file, "{}");
    expect(() => readResult(file, "rag")).toThrow("is no result");
    expect(() => readResult(join(repositoryRoot, "test/bench/results/rag.json"), "needle")).toThrow("a result of rag");
    const result = readResult(join(repositoryRoot, "test/bench/results/rag.json"), "rag");
    expect(() => pictureOf({ name: "rag" }, result)).toThrow("no curve");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
