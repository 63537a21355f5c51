/** The kernel that rounds K and V to mx8, against its twin in plain loops. */
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { Random } from "../native/random.ts";
import { decodeMx8Row, mx8BlockBytes, mx8Place } from "../support/gpu-mx8.ts";
import { putRotations } from "./kernel-attention.ts";
import { KernelTwin } from "./kernel-twin.ts";
import { assertThat } from "./report.ts";

const [queryHeads, kvHeads, blockTokens, blockCount, epsilon] = [6, 2, 32, 4, 1e-5];
const [rowCount, gridRows] = [61, 64];

/** Normal numbers, of which some rows hold what is hard to round: zeros, tiny and huge ones, powers of two, NaN. */
function hardNumbers(random: Random, rows: number, rowLength: number): Float32Array {
  const values = random.normals(rows * rowLength);
  for (let row = 0; row < rows; row++) {
    const own = values.subarray(row * rowLength, (row + 1) * rowLength);
    const kind = row % 8;
    for (let i = 0; i < rowLength; i++) {
      if (kind === 1) own[i] = 0;
      if (kind === 2) own[i] *= 2 ** random.integer(-140, -100);
      if (kind === 3) own[i] *= 2 ** random.integer(-20, 20);
      if (kind === 4) own[i] = (i % 2 === 0 ? 1 : -1) * 2 ** random.integer(-4, 4);
    }
    if (row === 5) own[random.integer(0, rowLength - 1)] = Number.NaN;
    if (row === 13) own[random.integer(0, rowLength - 1)] = Number.POSITIVE_INFINITY;
  }
  return values;
}

/**
 * V is stored as it was projected, so its bytes must be the twin's, as K's where nothing rotates it. Rotated K goes
 * through other float32 arithmetic: a value may fall to the neighbouring number, or a greatest one to the next scale.
 */
export async function checkStores(
  device: CudaDevice,
  random: Random,
  headDim: number,
  rotaryDim: number,
): Promise<string> {
  const twin = new KernelTwin(device, 16 << 20, headDim, "mx8");
  const heads = queryHeads + 2 * kvHeads;
  const shape = { kvHeads, headDim, blockTokens };
  const slots = random.shuffle(Array.from({ length: blockCount * blockTokens }, (_, i) => i)).slice(0, gridRows);
  const qkv = twin.putBfloat16("qkv", hardNumbers(random, gridRows, heads * headDim));
  const kNorm = rotaryDim === 0 ? null : twin.putBfloat16("norm", random.normals(headDim));
  const rotations = putRotations(twin, Math.max(4, rotaryDim));
  const positions = twin.put(
    "positions",
    Int32Array.from({ length: gridRows }, () => random.integer(0, 2000)),
  );
  const slotList = twin.put("slots", Int32Array.from(slots));
  const count = twin.put("count", Int32Array.of(rowCount));
  const pool = twin.put("pool", new Uint8Array(blockCount * mx8BlockBytes(shape)));
  twin.upload();
  const sizes = [queryHeads, kvHeads, headDim, rotaryDim, blockTokens];
  const values = [qkv, null, null, kNorm, 0, epsilon, rotations, positions, slotList, count, ...sizes, pool];
  twin.launch("qkv_finish", values, { grid: [gridRows, Math.ceil(heads / 8)], blockThreads: 256 });
  const stored = await twin.read(pool);
  const wanted = twin.memory.uint8(pool);
  let [other, worst] = [0, 0];
  for (const slot of slots.slice(0, rowCount)) {
    for (let head = 0; head < kvHeads; head++) {
      for (const isKey of [true, false]) {
        const [got, twins] = [stored, wanted].map((bytes) => decodeMx8Row(bytes, shape, slot, head, isKey));
        const { scales } = mx8Place(shape, slot, head, isKey);
        for (let d = 0; d < headDim; d++) {
          if (Object.is(got[d], twins[d]) || (Number.isNaN(got[d]) && Number.isNaN(twins[d]))) continue;
          const step = 2 ** (Math.max(stored[scales + (d >> 5)], wanted[scales + (d >> 5)]) - 133);
          worst = Math.max(worst, Math.abs(got[d] - twins[d]) / step);
          other += 1;
          const words = `slot ${slot}, head ${head}, ${isKey ? "K" : "V"}[${d}] is ${got[d]}, ${twins[d]} in the twin`;
          assertThat(isKey && rotaryDim > 0 && worst <= 1, words);
        }
      }
    }
  }
  const unwritten = new Set(Array.from({ length: blockCount * blockTokens }, (_, slot) => slot));
  for (const slot of slots.slice(0, rowCount)) unwritten.delete(slot);
  for (const slot of unwritten) {
    const isEmpty = decodeMx8Row(stored, shape, slot, 0, true).every((value) => value === 0);
    assertThat(isEmpty, `slot ${slot} was written`);
  }
  const all = rowCount * 2 * kvHeads * headDim;
  assertThat(other < all / 20, `${other} of ${all} values are not the twin's`);
  return `${other} of ${all} values are a step away, by ${worst.toFixed(2)} at most`;
}
