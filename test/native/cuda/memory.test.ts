/** Arenas, pinned memory and copies: bounds before the call, the right bytes after it. */
import { beforeEach, describe, expect, test } from "bun:test";
import { CudaError } from "../../../worker/native/cuda/driver.ts";
import { copyToDevice, copyToHost, DeviceArena, fillDevice, PinnedBuffer } from "../../../worker/native/cuda/memory.ts";
import { fc } from "../../support/fast-check.ts";
import { fake, openFake } from "./fake.ts";

let { context, stream } = openFake();
beforeEach(() => {
  ({ context, stream } = openFake());
});

describe("an arena", () => {
  test("gives out disjoint buffers within it, each on a multiple of 256 bytes", () => {
    const before = fake.liveBytes();
    fc.assert(
      fc.property(fc.array(fc.nat(5000), { minLength: 1, maxLength: 30 }), (sizes) => {
        const arena = new DeviceArena(context, "weights", 20_000);
        const base = arena.allocate("base", 0).pointer;
        let end = base;
        for (const size of sizes) {
          const left = arena.leftBytes;
          if (size > left) {
            expect(() => arena.allocate("too long", size)).toThrow(RangeError);
            expect(arena.leftBytes).toBe(left);
            continue;
          }
          const buffer = arena.allocate("some", size);
          if (size > 0) expect(buffer.pointer % 256).toBe(0);
          expect(buffer.pointer).toBeGreaterThanOrEqual(end);
          expect(buffer.byteLength).toBe(size);
          end = buffer.pointer + size;
          expect(end).toBeLessThanOrEqual(base + 20_000);
        }
        arena.close();
      }),
    );
    expect(fake.liveBytes()).toBe(before);
  });

  test("says which buffer does not fit, and what is left", () => {
    const arena = new DeviceArena(context, "weights", 1000);
    arena.allocate("embedding", 700);
    expect(() => arena.allocate("layer 3 qkv", 300)).toThrow(
      'arena "weights" has 232 of 1000 bytes left, "layer 3 qkv" needs 300',
    );
    expect(arena.allocate("rest", 232).byteLength).toBe(232);
    expect(arena.leftBytes).toBe(0);
    for (const bytes of [-1, 0.5, Number.NaN, undefined as never]) {
      expect(() => arena.allocate("odd", bytes)).toThrow('bytes of "odd" must be an integer');
    }
    arena.close();
    expect(() => arena.allocate("late", 1)).toThrow('arena "weights" is closed');
    arena.close();
    expect(fake.notes("cuMemFree_v2")).toHaveLength(1);
  });

  test("that the device has no memory for is an error with its name and size", () => {
    fake.fail("cuMemAlloc_v2", 2);
    const open = () => new DeviceArena(context, "KV pool", 123_456);
    expect(open).toThrow(CudaError);
    expect(open).toThrow('cuMemAlloc_v2 (123456 bytes for arena "KV pool"): CUDA_ERROR_OUT_OF_MEMORY (2)');
    expect(() => new DeviceArena(context, "none", 0)).toThrow(RangeError);
  });
});

describe("pinned memory", () => {
  test("is zero, as long as it was asked for, and freed once", () => {
    const before = fake.liveBytes();
    const pinned = new PinnedBuffer(context, "step", 1024);
    expect([...pinned.bytes]).toEqual(Array(1024).fill(0));
    expect(fake.liveBytes()).toBe(before + 1024);
    pinned.close();
    pinned.close();
    expect(fake.liveBytes()).toBe(before);
    expect(() => new PinnedBuffer(context, "none", 0)).toThrow('bytes of pinned buffer "none"');
  });
});

describe("copies", () => {
  const open = (bytes: number) => new DeviceArena(context, "arena", 65_536).allocate("buffer", bytes);
  const read = (buffer: ReturnType<typeof open>) => {
    const bytes = new Uint8Array(buffer.byteLength);
    copyToHost(stream, bytes, buffer);
    return [...bytes];
  };

  test("move exactly the bytes that were named", () => {
    const buffer = open(16);
    fillDevice(stream, buffer, 9);
    copyToDevice(stream, buffer, Uint16Array.of(0x0201, 0x0403), 4);
    fillDevice(stream, buffer.slice(10, 2), 0);
    expect(read(buffer)).toEqual([9, 9, 9, 9, 1, 2, 3, 4, 9, 9, 0, 0, 9, 9, 9, 9]);
    expect(read(buffer.slice(6))).toEqual([3, 4, 9, 9, 0, 0, 9, 9, 9, 9]);
    const part = new Uint8Array(2);
    copyToHost(stream, part, buffer, 5);
    expect([...part]).toEqual([2, 3]);
    const other = open(20);
    fillDevice(stream, other, 7);
    const view = new Uint8Array([1, 2, 3, 4, 5, 6]).subarray(2, 4);
    copyToDevice(stream, other, view);
    expect(read(other).slice(0, 4)).toEqual([3, 4, 7, 7]);
  });

  test("are refused before the call when they do not fit", () => {
    const buffer = open(16);
    const words = new Int32Array(4);
    fake.reset();
    expect(() => copyToDevice(stream, buffer, words, 4)).toThrow(
      '16 bytes at 4 do not lie within "buffer" of 16 bytes',
    );
    expect(() => copyToDevice(stream, buffer, words, -4)).toThrow(RangeError);
    expect(() => copyToDevice(stream, buffer, words, Number.NaN)).toThrow(RangeError);
    expect(() => copyToDevice(stream, buffer, words.subarray(1), 0.5)).toThrow(RangeError);
    expect(() => copyToHost(stream, new Int32Array(5), buffer)).toThrow(RangeError);
    expect(() => copyToHost(stream, words, buffer, 1)).toThrow(RangeError);
    expect(() => fillDevice(stream, buffer, 256)).toThrow(RangeError);
    expect(() => buffer.slice(8, 9)).toThrow(RangeError);
    expect(() => buffer.slice(17)).toThrow(RangeError);
    expect(() => buffer.slice(-1, 2)).toThrow(RangeError);
    expect(fake.notes().filter((line) => !line.startsWith("cuMemAlloc"))).toEqual([]);
  });

  test("of nothing need no call", () => {
    const buffer = open(4);
    fake.reset();
    copyToDevice(stream, buffer, new Uint8Array(0), 4);
    copyToHost(stream, new Uint8Array(0), buffer);
    fillDevice(stream, buffer.slice(4));
    expect(fake.notes()).toEqual([]);
  });

  test("that the driver refuses name the buffer", () => {
    const buffer = open(4);
    const words = new Int32Array(1);
    for (const call of ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async"]) {
      fake.fail(call, 1);
    }
    expect(() => copyToDevice(stream, buffer, words)).toThrow('cuMemcpyHtoDAsync_v2 (to "buffer")');
    expect(() => copyToHost(stream, words, buffer)).toThrow('cuMemcpyDtoHAsync_v2 (from "buffer")');
    expect(() => fillDevice(stream, buffer)).toThrow(CudaError);
  });
});
