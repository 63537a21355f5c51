/**
 * Curves as SVG: for people who would rather look than read a table. A picture has its own colours and background, so
 * that it is the same in every page, and each series is told by its mark and its name as well as by its colour.
 */

export interface Series {
  readonly name: string;
  /** In order of x. */
  readonly points: readonly (readonly [x: number, y: number])[];
}

export interface Axis {
  readonly label: string;
  /** Lines across the picture and what stands at them; the first and the last are the axis's ends. */
  readonly ticks: readonly (readonly [value: number, text: string])[];
  readonly isLogarithmic: boolean;
}

export interface Plot {
  readonly title: string;
  /** Hardware, model and commit: what the figures are of. */
  readonly source: string;
  readonly x: Axis;
  readonly y: Axis;
  readonly series: readonly Series[];
}

const [width, height] = [720, 420];
const frame = { left: 86, right: 566, top: 56, bottom: 350 };
const colours = ["#0b6e75", "#a3471f", "#5b3f9e", "#7a6a00", "#a1246b"];
const dashes = ["", "7 4", "2 4", "10 3 2 3", "4 4"];
/** Height of a name beside its curve's end. */
const nameHeight = 18;

export function drawPlot(plot: Plot): string {
  const toX = placer(plot.x, frame.left, frame.right);
  const toY = placer(plot.y, frame.bottom, frame.top);
  const curves = plot.series.map((series, index) => curve(series, index, toX, toY));
  const ends = plot.series.map(({ points }) => toY(points.at(-1)?.[1] ?? 0));
  const names = plot.series.map(({ name }, index) => {
    const y = spread(ends)[index] ?? 0;
    return `<text x="${frame.right + 12}" y="${round(y + 4)}" fill="${colours[index % colours.length]}" font-weight="600">${escaped(name)}</text>`;
  });
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-labelledby="title about" font-family="system-ui, sans-serif" font-size="13" fill="#1c2330">`,
    `<title id="title">${escaped(plot.title)}</title><desc id="about">${escaped(spoken(plot))}</desc>`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    `<text x="16" y="28" font-size="16" font-weight="600">${escaped(plot.title)}</text>`,
    ...plot.x.ticks.map(
      ([value, text]) =>
        `<path d="M${toX(value)} ${frame.top}V${frame.bottom}" stroke="#e3e7ec"/><text x="${toX(value)}" y="${frame.bottom + 18}" text-anchor="middle">${escaped(text)}</text>`,
    ),
    ...plot.y.ticks.map(
      ([value, text]) =>
        `<path d="M${frame.left} ${toY(value)}H${frame.right}" stroke="#e3e7ec"/><text x="${frame.left - 8}" y="${round(toY(value) + 4)}" text-anchor="end">${escaped(text)}</text>`,
    ),
    ...curves,
    ...names,
    `<text x="${(frame.left + frame.right) / 2}" y="${frame.bottom + 40}" text-anchor="middle">${escaped(plot.x.label)}</text>`,
    `<text x="16" y="${frame.top - 10}">${escaped(plot.y.label)}</text>`,
    `<text x="16" y="${height - 10}" font-size="11" fill="#4b5566">${escaped(plot.source)}</text>`,
    "</svg>",
  ].join("\n")}\n`;
}

/** Places values of an axis between two edges of the picture. */
function placer({ ticks, isLogarithmic }: Axis, from: number, to: number): (value: number) => number {
  const scale = isLogarithmic ? Math.log : (value: number) => value;
  const [low, high] = [scale(ticks[0]?.[0] ?? 1), scale(ticks.at(-1)?.[0] ?? 1)];
  return (value) => round(from + ((scale(value) - low) / (high - low)) * (to - from));
}

function curve({ points }: Series, index: number, toX: (x: number) => number, toY: (y: number) => number): string {
  const colour = colours[index % colours.length];
  const dash = dashes[index % dashes.length];
  const path = points.map(([x, y], at) => `${at === 0 ? "M" : "L"}${toX(x)} ${toY(y)}`).join("");
  const stroke = `fill="none" stroke="${colour}" stroke-width="2"${dash === "" ? "" : ` stroke-dasharray="${dash}"`}`;
  return `<path d="${path}" ${stroke}/>${points.map(([x, y]) => marks[index % marks.length]?.(toX(x), toY(y), colour ?? "")).join("")}`;
}

type Mark = (x: number, y: number, colour: string) => string;
const polygon =
  (...corners: readonly (readonly [x: number, y: number])[]): Mark =>
  (x, y, colour) =>
    `<path d="M${corners.map(([dx, dy]) => `${round(x + dx)} ${round(y + dy)}`).join("L")}Z" fill="${colour}"/>`;
const marks: readonly Mark[] = [
  (x, y, colour) => `<circle cx="${x}" cy="${y}" r="4" fill="${colour}"/>`,
  polygon([-4, -4], [4, -4], [4, 4], [-4, 4]),
  polygon([0, -5], [5, 4], [-5, 4]),
  polygon([0, -6], [6, 0], [0, 6], [-6, 0]),
  polygon([-5, -4], [5, -4], [0, 5]),
];

/** Heights of names that would stand on each other, moved apart. */
function spread(heights: readonly number[]): readonly number[] {
  const order = heights.map((_, index) => index).sort((a, b) => (heights[a] ?? 0) - (heights[b] ?? 0));
  const placed = [...heights];
  for (const [rank, index] of order.entries()) {
    const above = order[rank - 1];
    if (above === undefined) continue;
    placed[index] = Math.max(placed[index] ?? 0, (placed[above] ?? 0) + nameHeight);
  }
  const over = Math.max(0, Math.max(...placed) - frame.bottom);
  return placed.map((height) => height - over);
}

/** The figures in words, for who does not see the picture. */
const spoken = ({ x, y, series }: Plot): string =>
  `${y.label} by ${x.label}. ${series
    .map(
      ({ name, points }) =>
        `${name}: ${points.map(([at, value]) => `${figureText(value)} at ${figureText(at)}`).join(", ")}`,
    )
    .join(". ")}.`;

const figureText = (value: number): string => String(Number(value.toPrecision(3)));
const round = (value: number): number => Math.round(value * 10) / 10;
const escaped = (text: string): string => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** Ticks at powers of two: 1, 2, 4. */
export const powersOfTwo = (from: number, to: number): readonly (readonly [number, string])[] =>
  Array.from({ length: Math.round(Math.log2(to / from)) + 1 }, (_, at) => {
    const value = from * 2 ** at;
    return [value, value.toLocaleString("en")] as const;
  });

/** Ticks at powers of ten that hold all values. */
export function decades(values: readonly number[], unit: string): readonly (readonly [number, string])[] {
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.ceil(Math.log10(Math.max(...values)));
  return Array.from({ length: high - low + 1 }, (_, at) => {
    const value = 10 ** (low + at);
    return [value, `${value.toLocaleString("en")}${unit}`] as const;
  });
}
