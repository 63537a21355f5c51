/** Tensor maps: what the driver is told of a matrix, and what no map can hold. */
import { expect, test } from "bun:test";
import { CudaError } from "../../../worker/native/cuda/driver.ts";
import { DeviceBuffer } from "../../../worker/native/cuda/memory.ts";
import { encodeTensorMap, tensorMapBytes } from "../../../worker/native/cuda/tensor-map.ts";
import { fake, openFake } from "./fake.ts";

const { context } = openFake();
const matrix = (byteLength: number, pointer = 4_096) => new DeviceBuffer("KV", pointer, byteLength);

test("a map holds address, extents, bytes of a row, the box and the swizzle of 128 bytes", () => {
  for (const [width, boxRows] of [
    [128, 16],
    [64, 8],
    [64, 128],
  ] as const) {
    const map = encodeTensorMap(context, matrix(1_000 * 2 * width + 10), width, boxRows);
    expect(map.byteLength).toBe(tensorMapBytes);
    const words = [...new BigUint64Array(map.slice().buffer, 0, 7)].map(Number);
    expect(words).toEqual([4_096, width, 1_000, 2 * width, 64, boxRows, 3]);
  }
});

test("sizes that fit no map are refused by name", () => {
  expect(() => encodeTensorMap(context, matrix(2_048), 96, 16)).toThrow(
    "width 96 of a tensor map is no multiple of 64",
  );
  expect(() => encodeTensorMap(context, matrix(2_048), 0, 16)).toThrow("width of a tensor map");
  expect(() => encodeTensorMap(context, matrix(2_048), 64, 257)).toThrow("rows of a tensor map's box");
  expect(() => encodeTensorMap(context, matrix(2_048), 64, 0)).toThrow("rows of a tensor map's box");
  expect(() => encodeTensorMap(context, matrix(100), 64, 16)).toThrow("rows of a tensor map");
});

test("what the driver refuses is its error", () => {
  expect(() => encodeTensorMap(context, matrix(2_048, 4_104), 64, 16)).toThrow(CudaError);
  fake.fail("cuTensorMapEncodeTiled", 2);
  expect(() => encodeTensorMap(context, matrix(2_048), 64, 16)).toThrow("out of memory");
});
