/** What the CUDA kernels compute, in plain loops: written from the comments in kernels/cuda, not from their code. */
import { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import type { KernelName } from "../../../worker/backend/cuda/device/kernels.ts";
import { mx8BlockBytes, zeroMx8From } from "../../support/gpu-mx8.ts";
import { emulatedAttention } from "./emulated-attention.ts";
import { emulatedFewRows, emulatedQuantizeBlocks, emulatedQuantizeRows, putBytes } from "./emulated-e4m3.ts";
import {
  emulatedDownExperts,
  emulatedDownMany,
  emulatedGatedExperts,
  emulatedGatedMany,
  emulatedGroups,
  emulatedRoute,
  emulatedRoutes,
  emulatedWidenE4m3,
  emulatedWidenMx4,
  gatedActivations,
} from "./emulated-experts.ts";
import { EmulatedPool, keyOffset, Rotations, type Values } from "./emulated-heads.ts";
import {
  emulatedMatvec,
  emulatedMatvecAdd,
  emulatedMatvecE4m3,
  emulatedMatvecE4m3Add,
  emulatedMatvecE4m3Gated,
  emulatedMatvecFloat,
  emulatedMatvecGated,
} from "./emulated-matvec.ts";
import { type Bfloat16Array, EmulatedMemory } from "./emulated-memory.ts";
import { emulatedLogprobs, emulatedSampling } from "./emulated-sampling.ts";
import {
  emulatedAttendChoices,
  emulatedScoreShadows,
  emulatedShadowBlocks,
  emulatedShadowSlots,
} from "./emulated-sparse.ts";

type Emulation = (memory: EmulatedMemory, values: Values, grid: readonly number[]) => void;

const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;
const number = (value: unknown): number => Number(value);

/** Rows that run: the grid covers them, or the launch was too small. */
function activeCount(memory: EmulatedMemory, count: unknown, grid: number): number {
  const active = memory.int32(buffer(count))[0];
  if (active > grid) throw new RangeError(`a grid of ${grid} for ${active} rows`);
  return active;
}

/** The pool itself in place of its tensor map, which names it; a pool in mx8 has none. */
function onMap(memory: EmulatedMemory, [qkv, map, ...rest]: Values): Values {
  if (memory.kvElement === "mx8") return [qkv, map, ...rest];
  const [pointer, byteLength] = memory.int32(buffer(map));
  return [qkv, new DeviceBuffer("pool", pointer, byteLength), ...rest];
}

/** Leaves a row in bfloat16, or with scales in 8 bits (add_rmsnorm.cu). */
function putRow(memory: EmulatedMemory, values: Float32Array, row: number, [out, scales, rowStride]: Values): void {
  if (scales === null) return memory.bfloat16(buffer(out)).setRow(row * values.length, values);
  putBytes(memory, values, row, { bytes: buffer(out), scales: buffer(scales), rowStride: number(rowStride) });
}

function activateRows(memory: EmulatedMemory, [gateUp, ffn, activation]: Values, left: Values, rows: number): void {
  const [from, width] = [memory.bfloat16(buffer(gateUp)), number(ffn)];
  for (let row = 0; row < rows; row++) {
    const next = Float32Array.from({ length: width }, (_, i) => {
      const [gate, up] = [from.get(2 * row * width + i), from.get((2 * row + 1) * width + i)];
      return gatedActivations[number(activation)](gate, up);
    });
    putRow(memory, next, row, left);
  }
}

function normalise(values: Float32Array, weight: Float32Array, epsilon: number, offset = 0): void {
  const mean = values.reduce((sum, x) => sum + x * x, 0) / values.length;
  const factor = 1 / Math.sqrt(mean + epsilon);
  values.forEach((x, i) => {
    values[i] = x * factor * (weight[i] + offset);
  });
}

function projectedHead(
  memory: EmulatedMemory,
  qkv: Bfloat16Array,
  at: number,
  bias: unknown,
  column: number,
  dim: number,
) {
  const values = qkv.row(at, dim);
  if (bias === null) return values;
  const added = memory.bfloat16(buffer(bias)).row(column, dim);
  return values.map((x, i) => x + added[i]);
}

/** What the experts of a row give, times their weights. */
function weightedSum(
  memory: EmulatedMemory,
  delta: DeviceBuffer,
  factors: Float32Array,
  row: number,
  count: number,
  width: number,
): Float32Array {
  const sum = new Float32Array(width);
  for (let choice = row * count; choice < (row + 1) * count; choice++) {
    const values = memory.bfloat16(delta).row(choice * width, width);
    for (let i = 0; i < width; i++) sum[i] += factors[choice] * values[i];
  }
  return sum;
}

/** The blocks of move_blocks.cu that are not passed over, and how many tokens of each. */
function forMovedBlocks(
  moved: unknown,
  count: number,
  visit: (index: number, block: number, tokens: number) => void,
): void {
  const words = new Int32Array((moved as Uint8Array).slice().buffer);
  for (let index = 0; index < count; index++) {
    const block = words[index];
    if (block >= 0) visit(index, block, words[words.length / 2 + index]);
  }
}

const emulations: Readonly<Record<KernelName, Emulation>> = {
  fill_rope_table(memory, [frequencies, half, first, count, factor, out]) {
    const inverse = memory.float32(buffer(frequencies));
    const table = memory.float32(buffer(out));
    const scale = new Float64Array((factor as Uint8Array).slice().buffer)[0];
    for (let n = 0; n < number(count); n++) {
      for (let i = 0; i < number(half); i++) {
        const angle = (number(first) + n) * inverse[i];
        table[2 * (n * number(half) + i)] = Math.cos(angle) * scale;
        table[2 * (n * number(half) + i) + 1] = Math.sin(angle) * scale;
      }
    }
  },
  embed_rows(memory, [table, ids, sampledIds, rowCount, hidden, scale, residual], [grid]) {
    const rows = activeCount(memory, rowCount, grid);
    for (let row = 0; row < rows; row++) {
      const stored = memory.int32(buffer(ids))[row];
      const id = stored < 0 ? memory.int32(buffer(sampledIds))[-1 - stored] : stored;
      const values = memory.bfloat16(buffer(table)).row(id * number(hidden), number(hidden));
      memory.float32(buffer(residual)).set(
        values.map((x) => x * number(scale)),
        row * number(hidden),
      );
    }
  },
  add_rmsnorm(memory, values, [grid]) {
    const [residual, delta, factors, count, deltaBias, deltaNorm, scale] = values;
    const [weight, offset, epsilon, rowCount, hidden] = values.slice(7);
    const width = number(hidden);
    const weights = (of: unknown) => memory.bfloat16(buffer(of)).row(0, width);
    const rows = activeCount(memory, rowCount, grid);
    for (let row = 0; row < rows; row++) {
      const stream = memory.float32(buffer(residual)).subarray(row * width, (row + 1) * width);
      if (delta !== null) {
        const added =
          factors === null
            ? projectedHead(memory, memory.bfloat16(buffer(delta)), row * width, deltaBias, 0, width)
            : weightedSum(memory, buffer(delta), memory.float32(buffer(factors)), row, number(count), width);
        if (deltaNorm !== null) normalise(added, weights(deltaNorm), number(epsilon), number(offset));
        stream.forEach((x, i) => {
          stream[i] = x + added[i] * number(scale);
        });
      }
      const next = stream.slice();
      if (weight !== null) normalise(next, weights(weight), number(epsilon), number(offset));
      putRow(memory, next, row, values.slice(12));
    }
  },
  norm_projections(memory, values, [grid, parts]) {
    const [qkv, qNorm, kNorm, epsilon, rowCount] = values;
    const [q, k, rowWidth] = values.slice(5).map(number);
    if (parts !== 2) throw new RangeError(`a grid of ${parts} for q and k`);
    const data = memory.bfloat16(buffer(qkv));
    for (let row = 0; row < activeCount(memory, rowCount, grid); row++) {
      for (const [at, width, norm] of [
        [0, q, qNorm],
        [q, k, kNorm],
      ] as const) {
        const x = data.row(row * rowWidth + at, width);
        normalise(x, memory.bfloat16(buffer(norm)).row(0, width), number(epsilon));
        data.setRow(row * rowWidth + at, x);
      }
    }
  },
  qkv_finish(memory, values, [grid, gridHeads]) {
    const [qkv, bias, qNorm, kNorm, offset, epsilon, rotations, positions, slots, rowCount] = values;
    const [queryHeads, kvHeads, headDim, rotaryDim, blockTokens] = values.slice(10, 15).map(number);
    const heads = queryHeads + 2 * kvHeads;
    if (gridHeads * 8 < heads) throw new RangeError(`a grid of ${gridHeads} for ${heads} heads`);
    const data = memory.bfloat16(buffer(qkv));
    const kv = new EmulatedPool(memory, buffer(values[15]), { kvHeads, headDim, blockTokens });
    for (let row = 0; row < activeCount(memory, rowCount, grid); row++) {
      const [position, slot] = [memory.int32(buffer(positions))[row], memory.int32(buffer(slots))[row]];
      for (let head = 0; head < heads; head++) {
        const at = (row * heads + head) * headDim;
        const x = projectedHead(memory, data, at, bias, head * headDim, headDim);
        const [isQuery, isKey] = [head < queryHeads, head < queryHeads + kvHeads];
        const norm = isQuery ? qNorm : isKey ? kNorm : null;
        if (norm !== null) normalise(x, memory.bfloat16(buffer(norm)).row(0, headDim), number(epsilon), number(offset));
        if (isKey && !isQuery && rotaryDim > 0) new Rotations(memory, buffer(rotations)).rotate(x, position, rotaryDim);
        const kvHead = (head - queryHeads) % kvHeads;
        if (isQuery) data.setRow(at, x);
        else kv.setRow(slot, kvHead, isKey, x);
      }
    }
  },
  attention_packed: (memory, values) => emulatedAttention(memory, values, 4),
  attention_tiles: (memory, values) => emulatedAttention(memory, values, 8),
  attention_packed_wgmma: (memory, values) => emulatedAttention(memory, onMap(memory, values), 4, true),
  attention_wgmma: (memory, values) => emulatedAttention(memory, onMap(memory, values), 8),
  activate(memory, [gateUp, rowCount, ffn, activation, ...left], [gridX, grid]) {
    const width = number(ffn);
    if (gridX * 256 * 8 < width) throw new RangeError(`a grid of ${gridX} for ${width} values`);
    activateRows(memory, [gateUp, width, activation], left, activeCount(memory, rowCount, grid));
  },
  activate_rows(memory, [gateUp, rowCount, ffn, activation, out, scales], [grid]) {
    activateRows(memory, [gateUp, ffn, activation], [out, scales, 0], activeCount(memory, rowCount, grid));
  },
  cap_logits(memory, [logits, count, cap]) {
    const values = memory.float32(buffer(logits)).subarray(0, number(count));
    values.forEach((x, i) => {
      values[i] = number(cap) * Math.tanh(x / number(cap));
    });
  },
  matvec: (memory, values, grid) => emulatedMatvec(memory, values, grid),
  matvec_float: emulatedMatvecFloat,
  matvec_gated: (memory, values, grid) => emulatedMatvecGated(memory, values, grid),
  matvec_add: (memory, values, grid) => emulatedMatvecAdd(memory, values, grid),
  matvec_e4m3: emulatedMatvecE4m3,
  matvec_e4m3_gated: emulatedMatvecE4m3Gated,
  matvec_e4m3_add: emulatedMatvecE4m3Add,
  quantize_blocks: emulatedQuantizeBlocks,
  quantize_rows: emulatedQuantizeRows,
  few_rows_wgmma_8x1: emulatedFewRows(8, 1),
  few_rows_wgmma_8x2: emulatedFewRows(8, 2),
  few_rows_wgmma_8x4: emulatedFewRows(8, 4),
  few_rows_wgmma_16x1: emulatedFewRows(16, 1),
  few_rows_wgmma_16x2: emulatedFewRows(16, 2),
  few_rows_wgmma_16x4: emulatedFewRows(16, 4),
  few_rows_wgmma_32x1: emulatedFewRows(32, 1),
  few_rows_wgmma_32x2: emulatedFewRows(32, 2),
  few_rows_wgmma_32x4: emulatedFewRows(32, 4),
  few_rows_wgmma_64x1: emulatedFewRows(64, 1),
  few_rows_wgmma_64x2: emulatedFewRows(64, 2),
  few_rows_wgmma_64x4: emulatedFewRows(64, 4),
  route_rows: emulatedRoutes,
  route_row: emulatedRoute,
  group_rows: emulatedGroups,
  experts_gated_b16: emulatedGatedExperts("b16"),
  experts_gated_e4m3: emulatedGatedExperts("e4m3"),
  experts_gated_mx4: emulatedGatedExperts("mx4"),
  experts_gated_wgmma: emulatedGatedMany,
  experts_down_b16: emulatedDownExperts("b16"),
  experts_down_e4m3: emulatedDownExperts("e4m3"),
  experts_down_mx4: emulatedDownExperts("mx4"),
  experts_down_wgmma: emulatedDownMany,
  widen_e4m3: emulatedWidenE4m3,
  widen_mx4: emulatedWidenMx4,
  sample_rows: emulatedSampling,
  logprobs: emulatedLogprobs,
  gather_rows(memory, [source, rows, rowCount, rowBytes, target], [grid]) {
    const size = number(rowBytes);
    for (let i = 0; i < activeCount(memory, rowCount, grid); i++) {
      const from = memory.int32(buffer(rows))[i] * size;
      memory.uint8(buffer(target)).set(memory.uint8(buffer(source)).subarray(from, from + size), i * size);
    }
  },
  copy_tokens(memory, values, [grid, layers]) {
    const [sources, targets, deltas, count, layerRotates, ...tables] = values;
    const [kvHeads, headDim, rotaryDim, blockTokens, stride] = values.slice(9, 14).map(number);
    const kv = memory.bfloat16(buffer(values[14]));
    const place = { kvHeads, headDim, blockTokens };
    // Sixteen tokens a thread block.
    for (let i = 0; i < activeCount(memory, count, 16 * grid); i++) {
      const at = (list: unknown) => memory.int32(buffer(list))[i];
      for (let layer = 0; layer < layers; layer++) {
        for (let head = 0; head < kvHeads; head++) {
          const offset = (slot: number) => layer * stride + keyOffset(place, slot, head);
          const k = kv.row(offset(at(sources)), headDim);
          const table = memory.int32(buffer(layerRotates))[layer];
          if (at(deltas) !== 0 && table !== 0) {
            const [rotations, inverseFactor] = tables.slice(2 * (table - 1));
            for (let d = 0; d < rotaryDim; d++) k[d] *= number(inverseFactor);
            new Rotations(memory, buffer(rotations)).rotate(k, at(deltas), rotaryDim);
          }
          const v = kv.row(offset(at(sources)) + blockTokens * headDim, headDim);
          kv.setRow(offset(at(targets)), k);
          kv.setRow(offset(at(targets)) + blockTokens * headDim, v);
        }
      }
    }
  },
  pack_blocks(memory, [moved, pool, layerStride, layerVectors, rowVectors, blockTokens, staging], [count, layers]) {
    const [from, to] = [memory.uint8(buffer(pool)), memory.uint8(buffer(staging))];
    const layerBytes = 16 * number(layerVectors);
    const rowBytes = 16 * number(rowVectors);
    forMovedBlocks(moved, count, (index, block, tokens) => {
      for (let layer = 0; layer < layers; layer++) {
        const source = layer * 16 * number(layerStride) + block * layerBytes;
        const target = (index * layers + layer) * layerBytes;
        to.set(from.subarray(source, source + layerBytes), target);
        if (memory.kvElement === "mx8") {
          const shape = { kvHeads: 1, headDim: rowBytes, blockTokens: number(blockTokens) };
          const packed = to.subarray(target, target + layerBytes);
          zeroMx8From(packed, { ...shape, kvHeads: layerBytes / mx8BlockBytes(shape) }, tokens);
          continue;
        }
        // Rows of K of all tokens, then of V, of each head.
        for (let row = 0; row < layerBytes / rowBytes; row++) {
          if (row % number(blockTokens) >= tokens) to.fill(0, target + row * rowBytes, target + (row + 1) * rowBytes);
        }
      }
    });
  },
  unpack_blocks(memory, [moved, staging, pool, layerStride, layerVectors], [count, layers]) {
    const [from, to] = [memory.uint8(buffer(staging)), memory.uint8(buffer(pool))];
    const layerBytes = 16 * number(layerVectors);
    forMovedBlocks(moved, count, (index, block) => {
      for (let layer = 0; layer < layers; layer++) {
        const source = (index * layers + layer) * layerBytes;
        const target = layer * 16 * number(layerStride) + block * layerBytes;
        to.set(from.subarray(source, source + layerBytes), target);
      }
    });
  },
  shadow_slots: emulatedShadowSlots,
  shadow_blocks: emulatedShadowBlocks,
  score_shadows: emulatedScoreShadows,
  score_shadows_wide: emulatedScoreShadows,
  ...emulatedAttendChoices,
  deviations(memory, values, [grid]) {
    const [qkv, bias, kNorm, offset, epsilon, rotations, positions, slots, rowCount] = values;
    const [queryHeads, kvHeads, headDim, rotaryDim, blockTokens] = values.slice(9, 14).map(number);
    const [data, kv] = [memory.bfloat16(buffer(qkv)), memory.bfloat16(buffer(values[14]))];
    const rounded = new EmulatedMemory(8_192);
    const cell = rounded.bfloat16(rounded.allocate("cell", 2));
    for (let row = 0; row < activeCount(memory, rowCount, grid); row++) {
      const slot = memory.int32(buffer(slots))[row];
      let sum = 0;
      for (let head = 0; head < 2 * kvHeads; head++) {
        const column = (queryHeads + head) * headDim;
        const at = row * (queryHeads + 2 * kvHeads) * headDim + column;
        const x = projectedHead(memory, data, at, bias, column, headDim);
        const isKey = head < kvHeads;
        if (isKey && kNorm !== null)
          normalise(x, memory.bfloat16(buffer(kNorm)).row(0, headDim), number(epsilon), number(offset));
        if (isKey && rotaryDim > 0) {
          new Rotations(memory, buffer(rotations)).rotate(x, memory.int32(buffer(positions))[row], rotaryDim);
        }
        const place = { kvHeads, headDim, blockTokens };
        const stored = keyOffset(place, slot, head % kvHeads) + (isKey ? 0 : blockTokens * headDim);
        for (let d = 0; d < headDim; d++) {
          cell.set(0, x[d]);
          sum += (cell.get(0) - kv.get(stored + d)) ** 2;
        }
      }
      memory.float32(buffer(values[15]))[row] = sum;
    }
  },
};

export function emulate(memory: EmulatedMemory, name: KernelName, values: Values, grid: readonly number[]): void {
  emulations[name](memory, values, grid);
}
