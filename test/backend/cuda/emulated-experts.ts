/** Experts as kernels/cuda/experts has them, in plain loops. */
import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import { widenMxfp4 } from "../../../worker/model/stored-form.ts";
import { widenedWeights } from "./emulated-e4m3.ts";
import type { Values } from "./emulated-heads.ts";
import type { EmulatedMemory } from "./emulated-memory.ts";

const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;
const number = (value: unknown): number => Number(value);

type Form = "b16" | "e4m3" | "mx4";
type Emulation = (memory: EmulatedMemory, values: Values, grid: readonly number[]) => void;

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
/** By their numbers (activation.cuh). */
export const gatedActivations: readonly ((gate: number, up: number) => number)[] = [
  (gate, up) => gate * sigmoid(gate) * up,
  (gate, up) => 0.5 * gate * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (gate + 0.044715 * gate ** 3))) * up,
  (gate, up) => {
    const cut = Math.min(gate, 7);
    return cut * sigmoid(1.702 * cut) * (Math.min(Math.max(up, -7), 7) + 1);
  },
];

/** A row's experts, best first, and their weights. */
function routesOf(scores: Float32Array, perToken: number, normalised: boolean) {
  const rankOf = (expert: number) => (Number.isNaN(scores[expert]) ? Number.NEGATIVE_INFINITY : scores[expert]);
  const best = Array.from(scores.keys()).sort((a, b) => rankOf(b) - rankOf(a) || a - b);
  const exponentials = best.map((expert) => Math.exp(scores[expert] - scores[best[0]]));
  const sum = exponentials.slice(0, normalised ? perToken : best.length).reduce((total, x) => total + x, 0);
  return best.slice(0, perToken).map((expert, rank) => ({ expert, factor: exponentials[rank] / sum }));
}

function putRoutes(memory: EmulatedMemory, at: number, routes: ReturnType<typeof routesOf>, to: Values): void {
  const [chosen, factors] = to;
  for (const [rank, { expert, factor }] of routes.entries()) {
    memory.int32(buffer(chosen))[at + rank] = expert;
    memory.float32(buffer(factors))[at + rank] = factor;
  }
}

const biasOf = (memory: EmulatedMemory, bias: unknown, count: number): Float32Array =>
  bias === null ? new Float32Array(count) : memory.bfloat16(buffer(bias)).row(0, count);

export const emulatedRoutes: Emulation = (memory, values, [grid]) => {
  const [logits, bias, rowCount, expertCount, perToken, normalised, chosen, factors] = values;
  const [experts, most, rows] = [number(expertCount), number(perToken), memory.int32(buffer(rowCount))[0]];
  if (grid * 4 < rows) throw new RangeError(`a grid of ${grid} for ${rows} rows`);
  const added = biasOf(memory, bias, experts);
  for (let row = 0; row < rows; row++) {
    const given = memory.float32(buffer(logits)).subarray(row * experts, (row + 1) * experts);
    const routes = routesOf(
      given.map((x, expert) => x + added[expert]),
      most,
      number(normalised) === 1,
    );
    putRoutes(memory, row * most, routes, [chosen, factors]);
  }
};

export const emulatedRoute: Emulation = (memory, values, [grid]) => {
  const [input, weights, inWidth, squares, squareCount, epsilon, bias, experts, perToken, normalised] = values;
  const [logits, arrivals, chosen, factors, tiles, order] = values.slice(10);
  const [width, count] = [number(inWidth), number(experts)];
  if (grid * 4 < count) throw new RangeError(`a grid of ${grid} for ${count} experts`);
  if (memory.int32(buffer(arrivals))[0] !== 0) throw new RangeError("arrivals are left from the launch before");
  const factor = normFactor(memory, squares, squareCount, epsilon, width);
  const x = memory.bfloat16(buffer(input)).row(0, width);
  const scores = memory.float32(buffer(logits)).subarray(0, count);
  for (let expert = 0; expert < count; expert++) {
    scores[expert] = product(memory.bfloat16(buffer(weights)).row(expert * width, width), 0, x) * factor;
  }
  const added = biasOf(memory, bias, count);
  const routes = routesOf(
    scores.map((score, expert) => score + added[expert]),
    number(perToken),
    number(normalised) === 1,
  );
  putRoutes(memory, 0, routes, [chosen, factors]);
  for (const [rank, { expert }] of routes.entries()) {
    memory.int32(buffer(tiles)).set([expert, rank, 1, 0], 4 * rank);
    memory.int32(buffer(order))[rank] = rank;
  }
};

/** The factor of an RMSNorm that is left to do; 1: none is. */
function normFactor(
  memory: EmulatedMemory,
  squares: unknown,
  squareCount: unknown,
  epsilon: unknown,
  width: number,
): number {
  if (squares === null) return 1;
  const sums = memory.float32(buffer(squares)).subarray(0, number(squareCount));
  return 1 / Math.sqrt(sums.reduce((sum, x) => sum + x, 0) / width + number(epsilon));
}

export const emulatedGroups: Emulation = (memory, values, [grid]) => {
  const [chosen, rowCount, perToken, expertCount, tileRows, tileCount, order, tiles] = values;
  const [experts, size] = [number(expertCount), number(tileRows)];
  if (grid !== experts) throw new RangeError(`a grid of ${grid} for ${experts} experts`);
  const assignments = memory.int32(buffer(rowCount))[0] * number(perToken);
  const given = memory.int32(buffer(chosen)).subarray(0, assignments);
  const sorted = Array.from(given.keys()).sort((a, b) => given[a] - given[b] || a - b);
  memory.int32(buffer(order)).set(sorted);
  const table = memory.int32(buffer(tiles)).subarray(0, 4 * number(tileCount));
  for (let tile = 0; tile < number(tileCount); tile++) table[4 * tile + 2] = 0;
  let start = 0;
  for (let expert = 0; expert < experts; expert++) {
    const end = start + given.filter((other) => other === expert).length;
    const firstTile = Math.floor(start / size) + Math.min(expert, start);
    for (let first = start, tile = firstTile; first < end; first += size, tile++) {
      if (4 * tile >= table.length || table[4 * tile + 2] > 0) throw new RangeError(`no place for tile ${tile}`);
      table.set([expert, first, Math.min(size, end - first), 0], 4 * tile);
    }
    // What stands between is named too.
    const endTile = expert + 1 === experts ? number(tileCount) : Math.floor(end / size) + Math.min(expert + 1, end);
    for (let tile = firstTile; tile < endTile; tile++) {
      if (table[4 * tile + 2] === 0) table.set([expert, start + (tile - firstTile) * size, 0, 0], 4 * tile);
    }
    start = end;
  }
};

/** A list of assignments of one expert. */
interface Tile {
  readonly expert: number;
  readonly first: number;
  readonly count: number;
}

function tilesOf(memory: EmulatedMemory, tiles: unknown, [, count]: readonly number[], most: number): Tile[] {
  const words = memory.int32(buffer(tiles));
  return Array.from({ length: count }, (_, i) => {
    const [expert, first, rows] = words.subarray(4 * i, 4 * i + 3);
    if (rows > most) throw new RangeError(`a tile of ${rows} assignments`);
    return { expert, first, count: rows };
  }).filter((tile) => tile.count > 0);
}

/** Rows of a matrix of a form, from its weights to inShift, widened. */
function weightRows(memory: EmulatedMemory, form: Form, given: Values, width: number) {
  const [weights, scales] = given;
  return (firstRow: number, rows: number): Float32Array => {
    if (form === "b16") return memory.bfloat16(buffer(weights)).row(firstRow * width, rows * width);
    if (form === "mx4") {
      const blocks = (firstRow * width) / 32;
      const count = (rows * width) / 32;
      return widenMxfp4({
        blocks: memory.uint8(buffer(weights)).subarray(16 * blocks, 16 * (blocks + count)),
        scales: memory.uint8(buffer(scales)).subarray(blocks, blocks + count),
      });
    }
    return widenedWeights(memory, [...given.slice(0, 5), width], firstRow + rows).subarray(firstRow * width);
  };
}

function product(weights: Float32Array, row: number, x: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += weights[row * x.length + i] * x[i];
  return sum;
}

interface Gated {
  readonly input: unknown;
  readonly bias: unknown;
  readonly order: unknown;
  readonly perToken: unknown;
  readonly width: number;
  readonly ffn: number;
  readonly gateStep: unknown;
  readonly upOffset: unknown;
  readonly activation: unknown;
  readonly out: unknown;
  /** The factor of a row's RMSNorm. */
  readonly factor: number;
}

function gate(memory: EmulatedMemory, tiles: readonly Tile[], rowsAt: ReturnType<typeof weightRows>, of: Gated): void {
  const { width, ffn, factor } = of;
  const [step, offset] = [number(of.gateStep), number(of.upOffset)];
  for (const { expert, first, count } of tiles) {
    const weights = rowsAt(expert * 2 * ffn, 2 * ffn);
    const bias = of.bias === null ? undefined : memory.bfloat16(buffer(of.bias)).row(expert * 2 * ffn, 2 * ffn);
    for (let i = first; i < first + count; i++) {
      const row = Math.floor(memory.int32(buffer(of.order))[i] / number(of.perToken));
      const x = memory.bfloat16(buffer(of.input)).row(row * width, width);
      for (let o = 0; o < ffn; o++) {
        const [g, u] = [o * step, o * step + offset];
        const gateOf = product(weights, g, x) * factor + (bias?.[g] ?? 0);
        const upOf = product(weights, u, x) * factor + (bias?.[u] ?? 0);
        memory.bfloat16(buffer(of.out)).set(i * ffn + o, gatedActivations[number(of.activation)](gateOf, upOf));
      }
    }
  }
}

export const emulatedGatedExperts =
  (form: Form): Emulation =>
  (memory, values, grid) => {
    const [input, , , , , , bias, tiles, order, perToken, inWidth, ffnSize] = values;
    const [gateStep, upOffset, activation, squares, squareCount, epsilon, out] = values.slice(12);
    const [width, ffn] = [number(inWidth), number(ffnSize)];
    if (grid[0] * 8 < ffn) throw new RangeError(`a grid of ${grid[0]} for ${ffn} outputs`);
    const factor = normFactor(memory, squares, squareCount, epsilon, width);
    const rowsAt = weightRows(memory, form, values.slice(1, 6), width);
    const of = { input, bias, order, perToken, width, ffn, gateStep, upOffset, activation, out, factor };
    gate(memory, tilesOf(memory, tiles, grid, 16), rowsAt, of);
  };

export const emulatedGatedMany: Emulation = (memory, values, grid) => {
  const [input, weights, bias, tiles, order, perToken, inWidth, ffnSize, gateStep, upOffset, activation, out] = values;
  const [width, ffn] = [number(inWidth), number(ffnSize)];
  if (grid[0] * 128 < ffn) throw new RangeError(`a grid of ${grid[0]} for ${ffn} outputs`);
  const rowsAt = weightRows(memory, "b16", [weights], width);
  const of = { input, bias, order, perToken, width, ffn, gateStep, upOffset, activation, out, factor: 1 };
  gate(memory, tilesOf(memory, tiles, grid, 128), rowsAt, of);
};

function down(
  memory: EmulatedMemory,
  tiles: readonly Tile[],
  rowsAt: ReturnType<typeof weightRows>,
  [input, bias, order, width, outputs, out]: readonly [unknown, unknown, unknown, number, number, unknown],
): void {
  for (const { expert, first, count } of tiles) {
    const weights = rowsAt(expert * outputs, outputs);
    const added = bias === null ? undefined : memory.bfloat16(buffer(bias)).row(expert * outputs, outputs);
    for (let i = first; i < first + count; i++) {
      const x = memory.bfloat16(buffer(input)).row(i * width, width);
      const assignment = memory.int32(buffer(order))[i];
      for (let o = 0; o < outputs; o++) {
        memory.bfloat16(buffer(out)).set(assignment * outputs + o, product(weights, o, x) + (added?.[o] ?? 0));
      }
    }
  }
}

export const emulatedDownExperts =
  (form: Form): Emulation =>
  (memory, values, grid) => {
    const [input, , , , , , bias, tiles, order, inWidth, outWidth, out] = values;
    const [width, outputs] = [number(inWidth), number(outWidth)];
    if (grid[0] * 16 < outputs) throw new RangeError(`a grid of ${grid[0]} for ${outputs} outputs`);
    const rowsAt = weightRows(memory, form, values.slice(1, 6), width);
    down(memory, tilesOf(memory, tiles, grid, 16), rowsAt, [input, bias, order, width, outputs, out]);
  };

export const emulatedDownMany: Emulation = (memory, values, grid) => {
  const [input, weights, bias, tiles, order, inWidth, outWidth, out] = values;
  const [width, outputs] = [number(inWidth), number(outWidth)];
  if (grid[0] * 256 < outputs) throw new RangeError(`a grid of ${grid[0]} for ${outputs} outputs`);
  const rowsAt = weightRows(memory, "b16", [weights], width);
  down(memory, tilesOf(memory, tiles, grid, 128), rowsAt, [input, bias, order, width, outputs, out]);
};

export const emulatedWidenE4m3: Emulation = (memory, values) => {
  const [width, rows] = [number(values[5]), number(values[6])];
  const wide = weightRows(memory, "e4m3", values.slice(0, 5), width)(0, rows);
  memory.bfloat16(buffer(values[7])).setRow(0, wide);
};

export const emulatedWidenMx4: Emulation = (memory, [weights, scales, inWidth, rowCount, out]) => {
  const [width, rows] = [number(inWidth), number(rowCount)];
  memory.bfloat16(buffer(out)).setRow(0, weightRows(memory, "mx4", [weights, scales], width)(0, rows));
};
