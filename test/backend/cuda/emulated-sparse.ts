/**
 * What the kernels of rows that choose compute (kernels/cuda/sparse), in plain loops: written from their comments, not
 * from their code. Shadows and scores are rounded as the comments say, so that they have the same bits.
 */
import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import { keyOffset, type Values } from "./emulated-heads.ts";
import { Bfloat16Array, type EmulatedMemory } from "./emulated-memory.ts";

const { fround } = Math;
const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;
const number = (value: unknown): number => Number(value);

const panelTokens = 16;
const [shadowLimit, shadowZero, queryLimit] = [7, 8, 127];
const maxHalf = 65_504;
const panelBytes = (headDim: number): number => (headDim / 2 + 2) * panelTokens;
const finiteHalf = (x: number): number => Math.f16round(Math.min(Math.max(x, -maxHalf), maxHalf));

/** Hd x, rounded to float32 after each sum: pairs that are neighbours first, then pairs two apart, and so on. */
export function transformed(x: ArrayLike<number>): Float32Array {
  const y = Float32Array.from(x);
  for (let start = 0; start < y.length; ) {
    const part = 2 ** Math.floor(Math.log2(y.length - start));
    for (let half = 1; half < part; half *= 2) {
      for (let i = start; i < start + part; i++) {
        if (((i - start) & half) !== 0) continue;
        const [a, b] = [y[i], y[i + half]];
        y[i] = a + b;
        y[i + half] = a - b;
      }
    }
    const factor = fround(1 / fround(Math.sqrt(part)));
    for (let i = start; i < start + part; i++) y[i] = y[i] * factor;
    start += part;
  }
  return y;
}

/** The numbers of a token's shadow, -7 to 7, and its scale. */
export function shadowOf(key: ArrayLike<number>): { readonly numbers: Int32Array; readonly scale: number } {
  const y = transformed(key);
  const greatest = y.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  const scale = y.every(Number.isFinite) ? finiteHalf(fround(greatest / shadowLimit)) : 0;
  const inverse = scale > 0 ? fround(1 / scale) : 0;
  const numbers = Int32Array.from(y, (x) =>
    inverse > 0 ? Math.max(-shadowLimit, Math.min(shadowLimit, roundedEven(fround(x * inverse)))) : 0,
  );
  return { numbers, scale };
}

/** To the nearest whole number, halves to the even one. */
function roundedEven(x: number): number {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 === 0 ? low : low + 1;
}

interface ShadowPlace {
  readonly headDim: number;
  readonly kvHeads: number;
  readonly blockTokens: number;
}

/** The bytes of the panel that has a token, and the token's place in it. */
function panelOf(bytes: Uint8Array, { headDim, kvHeads, blockTokens }: ShadowPlace, slot: number, kvHead: number) {
  const [block, token] = [Math.floor(slot / blockTokens), slot % blockTokens];
  const panel = (block * kvHeads + kvHead) * (blockTokens / panelTokens) + Math.floor(token / panelTokens);
  const size = panelBytes(headDim);
  return { panel: bytes.subarray(panel * size, (panel + 1) * size), token: token % panelTokens };
}

/** Where a dimension's byte is in a panel, and the shift of its four bits. */
function codeAt(headDim: number, token: number, dimension: number) {
  const byte = dimension % (headDim / 2);
  return {
    at: (Math.floor(byte / 16) * panelTokens + token) * 16 + (byte % 16),
    shift: dimension < headDim / 2 ? 0 : 4,
  };
}

function halves(bytes: Uint8Array): Float16Array {
  return new Float16Array(bytes.buffer, bytes.byteOffset, Math.floor(bytes.byteLength / 2));
}

export function writeShadow(
  bytes: Uint8Array,
  place: ShadowPlace,
  slot: number,
  kvHead: number,
  key: ArrayLike<number>,
): void {
  const { headDim } = place;
  const { panel, token } = panelOf(bytes, place, slot, kvHead);
  const { numbers, scale } = shadowOf(key);
  numbers.forEach((value, d) => {
    const { at, shift } = codeAt(headDim, token, d);
    panel[at] = (panel[at] & (shift === 0 ? 0xf0 : 0x0f)) | ((value + shadowZero) << shift);
  });
  halves(panel.subarray((headDim / 2) * panelTokens))[token] = scale;
}

export function readShadow(bytes: Uint8Array, place: ShadowPlace, slot: number, kvHead: number) {
  const { headDim } = place;
  const { panel, token } = panelOf(bytes, place, slot, kvHead);
  const numbers = Int32Array.from({ length: headDim }, (_, d) => {
    const { at, shift } = codeAt(headDim, token, d);
    return ((panel[at] >> shift) & 15) - shadowZero;
  });
  return { numbers, scale: halves(panel.subarray((headDim / 2) * panelTokens))[token] };
}

function shadowSlot(memory: EmulatedMemory, slot: number, layers: number, values: Values): void {
  const [kvHeads, blockTokens, layerStride, shadowStride] = values.slice(0, 4).map(number);
  const { headDim } = memory;
  const place = { headDim, kvHeads, blockTokens };
  const pool = memory.bfloat16(buffer(values[4]));
  const shadows = memory.uint8(buffer(values[5]));
  for (let layer = 0; layer < layers; layer++) {
    for (let kvHead = 0; kvHead < kvHeads; kvHead++) {
      const key = pool.row(layer * layerStride + keyOffset(place, slot, kvHead), headDim);
      writeShadow(shadows.subarray(layer * shadowStride), place, slot, kvHead, key);
    }
  }
}

export function emulatedShadowSlots(memory: EmulatedMemory, values: Values, grid: readonly number[]): void {
  const [slots, slotCount, ...rest] = values;
  const count = memory.int32(buffer(slotCount))[0];
  if (count > 8 * grid[0]) throw new RangeError(`a grid of ${grid[0]} for ${count} slots`);
  for (let i = 0; i < count; i++) shadowSlot(memory, memory.int32(buffer(slots))[i], grid[2] ?? 1, rest);
}

export function emulatedShadowBlocks(memory: EmulatedMemory, values: Values, grid: readonly number[]): void {
  const [moved, ...rest] = values;
  const blockTokens = number(rest[1]);
  const blocks = new Int32Array((moved as Uint8Array).slice().buffer).subarray(0, (8 * grid[0]) / blockTokens);
  for (const block of blocks) {
    if (block < 0) continue;
    for (let token = 0; token < blockTokens; token++)
      shadowSlot(memory, block * blockTokens + token, grid[2] ?? 1, rest);
  }
}

const entryFields = [
  ...(["row", "position", "seat", "isFresh", "take", "candidates", "scoreStart", "scoreStride"] as const),
  ...(["firstUnit", "unitCount", "firstSegment", "segmentCount"] as const),
  ...(["tailBlocks", "tailFirst", "tailTokens", "tailOffset"] as const),
] as const;
const unitFields = ["entry", "number", "tokens", "blocks", "firstToken", "offset", "forced", "unused"] as const;
const segmentFields = ["number", "blocks", "firstToken", "offset"] as const;

type Fields<Name extends string> = Record<Name, number>;

function readAll<Name extends string>(words: Int32Array, at: number, count: number, names: readonly Name[]) {
  return Array.from({ length: count }, (_, i) => {
    const values = names.map((name, field) => [name, words[at + i * names.length + field]] as const);
    return Object.fromEntries(values) as Fields<Name>;
  });
}

function planOf(memory: EmulatedMemory, step: unknown, choicePlace: unknown) {
  const words = memory.int32(buffer(step));
  const [place] = memory.int32(buffer(choicePlace));
  if (place === 0) return { words, entries: [], units: [] };
  const [entryCount, entriesAt, unitCount, unitsAt] = words.subarray(place, place + 4);
  const entries = readAll(words, entriesAt, entryCount, entryFields);
  return { words, entries, units: readAll(words, unitsAt, unitCount, unitFields) };
}
type Entry = ReturnType<typeof planOf>["entries"][number];

const slotOf = (words: Int32Array, blocks: number, token: number, blockTokens: number): number =>
  words[blocks + Math.floor(token / blockTokens)] * blockTokens + (token % blockTokens);

/** A query after rotation and transform, in 8 bits, and what a product with it is worth. */
function roundedQuery(q: Float32Array, scaleLog2: number) {
  const y = transformed(q);
  const greatest = y.every(Number.isFinite) ? y.reduce((most, x) => Math.max(most, Math.abs(x)), 0) : 0;
  const inverse = greatest > 0 ? fround(queryLimit / greatest) : 0;
  const isZero = !(inverse > 0) || !Number.isFinite(inverse);
  return {
    numbers: Int32Array.from(y, (x) => (isZero ? 0 : roundedEven(fround(x * inverse)))),
    factor: isZero ? 0 : fround(fround(greatest / queryLimit) * fround(scaleLog2)),
  };
}

/** Query heads of a KV head that scores and parts have places for: four at a time. */
const scoredHeads = (group: number): number => Math.ceil(group / 4) * 4;

/** Index of a score: [kvHeads][heads / 4][scoreStride][4] behind those of the entries before. */
function scoreAt(
  { scoreStart, scoreStride }: Entry,
  kvHeads: number,
  scored: number,
  kvHead: number,
  head: number,
  token: number,
): number {
  const pass = (kvHead * scored) / 4 + Math.floor(head / 4);
  return scoreStart * kvHeads * scored + (pass * scoreStride + token) * 4 + (head % 4);
}

export function emulatedScoreShadows(memory: EmulatedMemory, values: Values): void {
  const [qkv, step, choicePlace, rotations, shadows] = values;
  const [queryHeads, kvHeads, rotaryDim, blockShift, scaleLog2] = values.slice(5, 10).map(number);
  const [scores, parts, counts] = values.slice(10);
  const { headDim } = memory;
  const [group, blockTokens] = [queryHeads / kvHeads, 2 ** blockShift];
  const { words, entries, units } = planOf(memory, step, choicePlace);
  if (counts !== null) {
    const totals = new BigUint64Array(memory.bytes, buffer(counts).pointer, buffer(counts).byteLength / 8);
    for (const { seat, isFresh } of entries) if (isFresh !== 0) totals[seat] = 0n;
  }
  const out = halves(memory.uint8(buffer(scores)));
  const sums = memory.float32(buffer(parts));
  const bytes = memory.uint8(buffer(shadows));
  const place = { headDim, kvHeads, blockTokens };
  const scored = scoredHeads(group);
  for (const [index, unit] of units.entries()) {
    const entry = entries[unit.entry];
    for (let head = 0; head < kvHeads * scored; head++) {
      if (head % scored < group) continue;
      const [kvHead, own] = [Math.floor(head / scored), head % scored];
      for (let i = 0; i < unit.tokens; i++)
        out[scoreAt(entry, kvHeads, scored, kvHead, own, unit.number + i)] = Number.NEGATIVE_INFINITY;
      sums[index * kvHeads * scored + head] = Number.NEGATIVE_INFINITY;
    }
    for (let head = 0; head < queryHeads; head++) {
      const q = memory.bfloat16(buffer(qkv)).row((entry.row * (queryHeads + 2 * kvHeads) + head) * headDim, headDim);
      if (rotaryDim > 0) rotateRounded(memory, q, buffer(rotations), entry.position - unit.offset, rotaryDim);
      const query = roundedQuery(q, scaleLog2);
      const zs = Float32Array.from({ length: unit.tokens }, (_, i) => {
        const slot = slotOf(words, unit.blocks, unit.firstToken + i, blockTokens);
        const { numbers, scale } = readShadow(bytes, place, slot, Math.floor(head / group));
        const whole = numbers.reduce((sum, x, d) => sum + x * query.numbers[d], 0);
        const z = fround(fround(whole * scale) * query.factor);
        return Math.min(Math.max(z, -maxHalf), maxHalf);
      });
      const [kvHead, own] = [Math.floor(head / group), head % group];
      zs.forEach((z, i) => {
        const at = scoreAt(entry, kvHeads, scored, kvHead, own, unit.number + i);
        out[at] = i < unit.forced ? Number.POSITIVE_INFINITY : finiteHalf(z);
      });
      const greatest = zs.reduce((a, b) => Math.max(a, b));
      const total = zs.reduce((sum, z) => sum + 2 ** (z - greatest), 0);
      sums[(index * kvHeads + kvHead) * scored + own] = greatest + Math.log2(total);
    }
  }
}

/** As Rotations.rotate, but each product and each sum is rounded. */
function rotateRounded(memory: EmulatedMemory, q: Float32Array, table: DeviceBuffer, position: number, dim: number) {
  const turn = new Float32Array(memory.bytes, table.pointer + position * dim * 4, dim);
  const half = dim / 2;
  for (let i = 0; i < half; i++) {
    const [x, y, cos, sin] = [q[i], q[i + half], turn[2 * i], turn[2 * i + 1]];
    q[i] = fround(x * cos) - fround(y * sin);
    q[i + half] = fround(y * cos) + fround(x * sin);
  }
}

/** How many thread blocks of a launch share a list, of each kernel that chooses. */
export const emulatedAttendChoices = {
  attend_choice_1: emulatedAttendChoice(1),
  attend_choice_2: emulatedAttendChoice(2),
  attend_choice_4: emulatedAttendChoice(4),
  attend_choice_8: emulatedAttendChoice(8),
} as const;

function emulatedAttendChoice(listBlocks: number) {
  return (memory: EmulatedMemory, values: Values, [grid]: readonly number[]): void => {
    const { entries } = planOf(memory, values[1], values[2]);
    const kvHeads = number(values[6]);
    if (listBlocks * entries.length * kvHeads > grid)
      throw new RangeError(`a grid of ${grid} for ${entries.length} rows`);
    chooseTokens(memory, values);
    attendChosen(memory, values);
  };
}

function chooseTokens(memory: EmulatedMemory, values: Values): void {
  const [, step, choicePlace] = values;
  const [queryHeads, kvHeads, , blockTokens, listStride] = values.slice(5, 10).map(number);
  const [parts, scores, lists, counts] = values.slice(11);
  const { words, entries } = planOf(memory, step, choicePlace);
  const group = queryHeads / kvHeads;
  const totals = new BigUint64Array(memory.bytes, buffer(counts).pointer, buffer(counts).byteLength / 8);
  const out = memory.int32(buffer(lists));
  for (const [index, entry] of entries.entries()) {
    if (entry.take > listStride) throw new RangeError(`a list of ${entry.take} tokens of at most ${listStride}`);
    for (let kvHead = 0; kvHead < kvHeads; kvHead++) {
      const ranks = ranksOf(memory, entry, kvHead, group, { kvHeads, parts, scores });
      const chosen = Array.from(ranks.keys())
        .sort((a, b) => ranks[a] - ranks[b] || a - b)
        .slice(0, entry.take)
        .sort((a, b) => a - b);
      const at = (index * kvHeads + kvHead) * listStride;
      const segments = readAll(words, entry.firstSegment, entry.segmentCount, segmentFields);
      chosen.forEach((token, i) => {
        const own = segments.findLast((segment) => segment.number <= token);
        if (own === undefined) throw new RangeError(`token ${token} is in no segment`);
        const slot = slotOf(words, own.blocks, own.firstToken + token - own.number, blockTokens);
        out.set([slot, own.offset], 2 * (at + i));
      });
      totals[entry.seat] += 1n;
    }
  }
}

interface Scored {
  readonly kvHeads: number;
  readonly parts: unknown;
  readonly scores: unknown;
}

/** Less is better: 0 for a forced token, else one more than the bits of the score as float16 without its sign. */
function ranksOf(memory: EmulatedMemory, entry: Entry, kvHead: number, group: number, given: Scored): Uint16Array {
  const { kvHeads, parts, scores } = given;
  const scored = scoredHeads(group);
  const [sums, z] = [memory.float32(buffer(parts)), halves(memory.uint8(buffer(scores)))];
  const logs = Array.from({ length: group }, (_, h) => {
    const own = Array.from({ length: entry.unitCount }, (_, u) => {
      return sums[((entry.firstUnit + u) * kvHeads + kvHead) * scored + h];
    });
    const greatest = Math.max(...own);
    return fround(greatest + Math.log2(own.reduce((sum, log) => sum + 2 ** (log - greatest), 0)));
  });
  return Uint16Array.from({ length: entry.candidates }, (_, token) => {
    const zs = logs.map((_log, h) => z[scoreAt(entry, kvHeads, scored, kvHead, h, token)]);
    const score = Math.max(...logs.map((log, h) => fround(zs[h] - log)));
    return score === Number.POSITIVE_INFINITY ? 0 : (halfBits(finiteHalf(score)) & 0x7fff) + 1;
  });
}

function halfBits(x: number): number {
  return new Uint16Array(Float16Array.of(x).buffer)[0];
}

function attendChosen(memory: EmulatedMemory, values: Values): void {
  const [qkv, step, choicePlace, rotations, pool] = values;
  const [queryHeads, kvHeads, rotaryDim, blockTokens, listStride, scaleLog2] = values.slice(5, 11).map(number);
  const lists = values[13];
  const { headDim } = memory;
  const { words, entries } = planOf(memory, step, choicePlace);
  const [data, out] = [memory.bfloat16(buffer(qkv)), memory.bfloat16(buffer(values[15]))];
  const kv = memory.bfloat16(buffer(pool));
  const place = { kvHeads, headDim, blockTokens };
  const rounded = new Bfloat16Array(new Uint16Array(headDim));
  for (const [index, entry] of entries.entries()) {
    const tokens = entry.take + entry.tailTokens;
    for (let head = 0; head < queryHeads; head++) {
      const kvHead = Math.floor((head * kvHeads) / queryHeads);
      const list = memory.int32(buffer(lists)).subarray(2 * (index * kvHeads + kvHead) * listStride);
      const read = Array.from({ length: tokens }, (_, i): readonly [slot: number, offset: number] =>
        i < entry.take
          ? [list[2 * i], list[2 * i + 1]]
          : [slotOf(words, entry.tailBlocks, entry.tailFirst + i - entry.take, blockTokens), entry.tailOffset],
      );
      const scores = read.map(([slot, offset]) => {
        const q = data.row((entry.row * (queryHeads + 2 * kvHeads) + head) * headDim, headDim);
        if (rotaryDim > 0) rotateRounded(memory, q, buffer(rotations), entry.position - offset, rotaryDim);
        rounded.setRow(0, q);
        rounded.row(0, headDim).forEach((x, d) => {
          q[d] = x;
        });
        const k = kv.row(keyOffset(place, slot, kvHead), headDim);
        return q.reduce((sum, x, d) => sum + x * k[d], 0) * scaleLog2;
      });
      const greatest = Math.max(...scores);
      const weights = scores.map((score) => 2 ** (score - greatest));
      const sum = weights.reduce((a, b) => a + b, 0);
      const result = new Float32Array(headDim);
      read.forEach(([slot], i) => {
        const v = kv.row(keyOffset(place, slot, kvHead) + blockTokens * headDim, headDim);
        for (let d = 0; d < headDim; d++) result[d] += (weights[i] / sum) * v[d];
      });
      out.setRow((entry.row * queryHeads + head) * headDim, result);
    }
  }
}
