/** Attention over a plan in float64: what its kernels must answer, and how far rounding may carry them. */
import {
  type AttentionPlan,
  planItem,
  planItemWords,
  planRow,
  planRowWords,
  planSlice,
  planSliceWords,
} from "../../worker/attention/plan-format.ts";
import type { Heads } from "./attention-device.ts";

export interface OracleInputs extends Heads {
  /** As the device reads it: rounded to bfloat16, as float. */
  readonly qkv: Float32Array;
  readonly pool: Float32Array;
  /** (cos, sin) rows, and the row of position 0. */
  readonly rotations: Float32Array;
  readonly rotationsZero: number;
  readonly positions: Int32Array;
  readonly blockIds: Int32Array;
}

export interface OracleOutput {
  /** [rows][queryHeads][headDim] */
  readonly out: Float64Array;
  readonly tolerance: Float64Array;
}

/** Tokens of one slice that one row sees. */
interface Sight {
  readonly block: number;
  readonly firstToken: number;
  readonly count: number;
  readonly offset: number;
}

/** Rounding to bfloat16: half a unit of the last of 8 bits, evenly spread. */
const roundingDeviation = 2 ** -9 / Math.sqrt(3);
/** Standard deviations of the sum of many roundings. */
const deviations = 6;

/** Every (row, slice) of both lists of items, in any order: softmax does not care. */
function sightsOf(plan: AttentionPlan, rowCount: number): Sight[][] {
  const sights = Array.from({ length: rowCount }, (): Sight[] => []);
  for (const items of [plan.smallItems, plan.largeItems]) {
    for (let item = 0; item < items.length; item += planItemWords) {
      const firstRow = items[item + planItem.firstRow];
      const firstSlice = items[item + planItem.firstSlice];
      for (let s = 0; s < items[item + planItem.sliceCount]; s++) {
        const at = (firstSlice + s) * planSliceWords;
        const word = (field: keyof typeof planSlice) => plan.slices[at + planSlice[field]];
        for (let i = 0; i < word("rowCount"); i++) {
          const count = Math.min(word("tokenCount"), word("firstVisible") + i);
          if (count <= 0) continue;
          const row = plan.rows[(firstRow + word("firstRow") + i) * planRowWords + planRow.row];
          const offset = plan.offsets[word("firstOffset") + i];
          sights[row].push({ block: word("block"), firstToken: word("firstToken"), count, offset });
        }
      }
    }
  }
  return sights;
}

export function attentionOracle(inputs: OracleInputs, plan: AttentionPlan): OracleOutput {
  const { positions, queryHeads, headDim } = inputs;
  const out = new Float64Array(positions.length * queryHeads * headDim);
  const tolerance = new Float64Array(out.length);
  sightsOf(plan, positions.length).forEach((sights, row) => {
    for (let head = 0; head < queryHeads; head++) {
      const at = (row * queryHeads + head) * headDim;
      attend(inputs, row, head, sights, out.subarray(at, at + headDim), tolerance.subarray(at, at + headDim));
    }
  });
  return { out, tolerance };
}

/** q of one head rotated by so many positions. */
function rotatedQuery(inputs: OracleInputs, row: number, head: number, rotation: number): Float64Array {
  const { headDim, rotaryDim, queryHeads, kvHeads, rotations, rotationsZero } = inputs;
  const start = (row * (queryHeads + 2 * kvHeads) + head) * headDim;
  const q = Float64Array.from(inputs.qkv.subarray(start, start + headDim));
  const half = rotaryDim / 2;
  for (let i = 0; i < half; i++) {
    const at = 2 * ((rotationsZero + rotation) * half + i);
    const [x, y] = [q[i], q[i + half]];
    q[i] = x * rotations[at] - y * rotations[at + 1];
    q[i + half] = y * rotations[at] + x * rotations[at + 1];
  }
  return q;
}

function attend(
  inputs: OracleInputs,
  row: number,
  head: number,
  sights: readonly Sight[],
  out: Float64Array,
  tolerance: Float64Array,
): void {
  const { headDim, blockTokens, kvHeads, queryHeads, rotaryDim, pool, blockIds } = inputs;
  const kvHead = Math.floor(head / (queryHeads / kvHeads));
  const [scores, errors, values]: number[][] = [[], [], []];
  for (const { block, firstToken, count, offset } of sights) {
    const q = rotatedQuery(inputs, row, head, inputs.positions[row] - offset);
    for (let t = 0; t < count; t++) {
      const place = firstToken + t;
      const id = blockIds[block + Math.floor(place / blockTokens)];
      const key = ((id * kvHeads + kvHead) * 2 * blockTokens + (place % blockTokens)) * headDim;
      let [score, squares] = [0, 0];
      for (let d = 0; d < headDim; d++) {
        const product = q[d] * pool[key + d];
        score += product;
        squares += product * product;
      }
      scores.push(score / Math.sqrt(headDim));
      // The rotated q is rounded; one that is not rotated is not.
      errors.push(rotaryDim === 0 ? 0 : (roundingDeviation * Math.sqrt(squares)) / Math.sqrt(headDim));
      values.push(key + blockTokens * headDim);
    }
  }
  if (scores.length === 0) return;
  const top = scores.reduce((a, b) => Math.max(a, b));
  const weights = scores.map((score) => Math.exp(score - top));
  const sum = weights.reduce((a, b) => a + b);
  for (let t = 0; t < weights.length; t++) {
    for (let d = 0; d < headDim; d++) out[d] += (weights[t] / sum) * pool[values[t] + d];
  }
  const [moved, rounded] = [new Float64Array(headDim), new Float64Array(headDim)];
  for (let t = 0; t < weights.length; t++) {
    const weight = weights[t] / sum;
    // A score far below the top that is moved by `error` may weigh e^(6 error) times as much.
    const shift = Math.expm1(deviations * errors[t]) / deviations;
    for (let d = 0; d < headDim; d++) {
      const value = pool[values[t] + d];
      moved[d] += weight * shift * Math.abs(value - out[d]);
      rounded[d] += (weight * value) ** 2;
    }
  }
  for (let d = 0; d < headDim; d++) {
    const deviation = moved[d] + roundingDeviation * Math.sqrt(rounded[d]);
    tolerance[d] = deviations * deviation + 2 ** -8 * Math.abs(out[d]) + 1e-5;
  }
}
