import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import { FileReader } from "../../../worker/backend/cuda/weights/tensor-reader.ts";
import type { TensorUpload } from "../../../worker/backend/cuda/weights/weights.ts";
import type { Dtype } from "../../../worker/model/safetensors.ts";
import { temporaryFolder } from "../../model/folder.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const counts = { BF16: 203, F32: 57, F16: 33 } as const;
/** Exact in all three types. */
const exactValue = (index: number): number => ((index * 37) % 101) / 4 - 12;
let folder: string;
beforeAll(() => {
  folder = temporaryFolder();
  for (const [dtype, count] of Object.entries(counts)) {
    const values = Float32Array.from({ length: count }, (_, index) => exactValue(index));
    const words = new Uint32Array(values.buffer);
    const bytes = {
      BF16: new Uint8Array(Uint16Array.from(words, (word) => word >>> 16).buffer),
      F32: new Uint8Array(values.buffer),
      F16: new Uint8Array(Float16Array.from(values).buffer),
    }[dtype];
    // As in a shard, the tensor does not stand at the start.
    writeFileSync(join(folder, dtype), Buffer.concat([Buffer.alloc(24, 7), bytes ?? Buffer.alloc(0)]));
  }
});
afterAll(() => rmSync(folder, { recursive: true }));

function uploadOf(target: DeviceBuffer, dtype: keyof typeof counts, scale = 1): TensorUpload {
  const shape = [counts[dtype]];
  const bytes = counts[dtype] * (dtype === "F32" ? 4 : 2);
  return { tensor: { file: join(folder, dtype), dtype, shape, start: 24, end: 24 + bytes }, target, scale };
}

describe("weights from files", () => {
  // More chunks than lanes, and lanes with chunks of several tensors.
  const reader = new FileReader({ partElements: 8, laneCount: 3 });

  test("arrive whole, in every type, scaled where asked for", async () => {
    const device = new EmulatedDevice(16, 1 << 16);
    const wanted = [["BF16", 1] as const, ["F32", 1] as const, ["F16", 1] as const, ["F32", 0.5] as const];
    const uploads = wanted.map(([dtype, scale]) => uploadOf(device.allocate(dtype, counts[dtype] * 2), dtype, scale));
    await reader.upload(device, uploads);
    for (const [index, [dtype, scale]] of wanted.entries()) {
      const target = uploads[index]?.target;
      if (target === undefined) throw new Error("every tensor has a place");
      const found = device.memory.bfloat16(target).row(0, counts[dtype]);
      expect([...found]).toEqual(Array.from(found, (_, at) => Math.fround(exactValue(at) * scale)));
    }
  });

  test("have the rows of a head put in order, in chunks of whole heads", async () => {
    const device = new EmulatedDevice(16, 1 << 16);
    // A head of 6 rows of 2 is more than a chunk; of a bias, whose rows are of 1, two heads of 4 are one.
    const wanted = [
      { dtype: "BF16", shape: [24, 2], pairedRows: { headDim: 6, rotaryDim: 4 }, order: [0, 2, 1, 3, 4, 5], scale: 1 },
      { dtype: "F16", shape: [24], pairedRows: { headDim: 4, rotaryDim: 4 }, order: [0, 2, 1, 3], scale: 0.5 },
    ] as const;
    const uploads = wanted.map(({ dtype, shape, pairedRows, scale }) => {
      const count = shape.reduce<number>((product, extent) => product * extent, 1);
      const upload = uploadOf(device.allocate(dtype, count * 2), dtype, scale);
      const end = 24 + count * 2;
      return { ...upload, tensor: { ...upload.tensor, shape, end, pairedRows } };
    });
    await reader.upload(device, uploads);
    for (const [index, { shape, order, scale }] of wanted.entries()) {
      const [rows, width = 1] = shape;
      const expected = Array.from({ length: rows * width }, (_, at) => {
        const row = Math.floor(at / width);
        const from = row - (row % order.length) + order[row % order.length];
        return Math.fround(exactValue(from * width + (at % width)) * scale);
      });
      expect([...device.memory.bfloat16(uploads[index].target).row(0, rows * width)]).toEqual(expected);
    }
  });

  test("are refused when the file ends early, or a type is no float", async () => {
    const device = new EmulatedDevice(16, 1 << 16);
    const short = uploadOf(device.allocate("weights", 240 * 2), "BF16");
    await expect(reader.upload(device, [short])).rejects.toThrow(/BF16: ends \d+ bytes too early/);
    const typed = uploadOf(device.allocate("weights", counts.F32 * 2), "F32");
    const whole = { ...typed, tensor: { ...typed.tensor, dtype: "I32" as Dtype } };
    await expect(reader.upload(device, [whole])).rejects.toThrow("a weight has type I32");
  });
});
