import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseModelConfig } from "../../worker/model/config.ts";
import { readSafetensorsHeader, readTensorBytes } from "../../worker/model/safetensors.ts";
import { widen } from "../../worker/model/stored-form.ts";
import { Weights } from "../../worker/model/weights.ts";
import { randomTensors, safetensorsBytes, temporaryFolder, tinyConfig, writeModelFolder } from "./folder.ts";

function file(bytes: Uint8Array): string {
  const path = join(temporaryFolder(), "x.safetensors");
  writeFileSync(path, bytes);
  return path;
}

/** A file whose header is this JSON and whose data section has `dataBytes` bytes. */
function fileWithHeader(header: unknown, dataBytes: number, headerLength?: number): string {
  const text = new TextEncoder().encode(typeof header === "string" ? header : JSON.stringify(header));
  const length = new Uint8Array(BigUint64Array.of(BigInt(headerLength ?? text.length)).buffer);
  return file(Buffer.concat([length, text, new Uint8Array(dataBytes)]));
}

const entry = (start: number, end: number, shape = [(end - start) / 4]) => ({
  dtype: "F32",
  shape,
  data_offsets: [start, end],
});

describe("readSafetensorsHeader", () => {
  test("reads tensors back as written", () => {
    const data = Float32Array.of(1, -2, 3.5, 4, 5, 6);
    const tensors = readSafetensorsHeader(file(safetensorsBytes(new Map([["a", { shape: [2, 3], data }]]))));
    const tensor = tensors.get("a");
    expect(tensor?.shape).toEqual([2, 3]);
    if (tensor) expect(new Float32Array(readTensorBytes(tensor).buffer)).toEqual(data);
  });

  const lies: [string, () => string, RegExp][] = [
    ["an empty file", () => file(new Uint8Array(0)), /too few/],
    ["a header past the end", () => fileWithHeader({}, 0, 1_000), /does not fit/],
    ["a header of 2^63 bytes", () => file(new Uint8Array(BigUint64Array.of(2n ** 63n, 0n).buffer)), /does not fit/],
    ["a header that is no JSON", () => fileWithHeader("{nope", 0), /not JSON/],
    ["a header that is a list", () => fileWithHeader([], 0), /not an object/],
    ["a tensor past the end", () => fileWithHeader({ a: entry(0, 64) }, 32), /truncated/],
    ["bytes that do not fit the shape", () => fileWithHeader({ a: entry(0, 64, [3]) }, 64), /64 bytes for F32 \[3\]/],
    ["overlapping tensors", () => fileWithHeader({ a: entry(0, 64), b: entry(32, 96) }, 96), /overlap/],
    ["a hole", () => fileWithHeader({ a: entry(0, 32), b: entry(64, 96) }, 96), /hole/],
    ["bytes of no tensor", () => fileWithHeader({ a: entry(0, 32) }, 40), /belong to no tensor/],
    ["a negative offset", () => fileWithHeader({ a: entry(-32, 0, [8]) }, 0), /data_offsets/],
    ["an unknown type", () => fileWithHeader({ a: { ...entry(0, 4), dtype: "F5" } }, 4), /dtype/],
    ["a shape that overflows", () => fileWithHeader({ a: entry(0, 4, [2 ** 40, 2 ** 40]) }, 4), /bytes for F32/],
  ];
  test.each(lies)("refuses %s", (_, make, message) => {
    expect(() => readSafetensorsHeader(make())).toThrow(message);
  });
});

describe("Weights", () => {
  const config = parseModelConfig(tinyConfig, "config.json");
  const spoiled = (change: (tensors: ReturnType<typeof randomTensors>) => void) => {
    const tensors = randomTensors(tinyConfig);
    change(tensors);
    return writeModelFolder(tinyConfig, tensors);
  };

  test("names a gap, a leftover and a wrong shape", () => {
    const gap = spoiled((tensors) => tensors.delete("model.norm.weight"));
    expect(() => new Weights(gap, config)).toThrow(/"model.norm.weight" is missing/);
    const leftover = spoiled((tensors) => tensors.set("model.extra", { shape: [1], data: new Float32Array(1) }));
    expect(() => new Weights(leftover, config)).toThrow(/"model.extra" does not belong/);
    const shape = spoiled((tensors) => tensors.set("model.norm.weight", { shape: [63], data: new Float32Array(63) }));
    expect(() => new Weights(shape, config)).toThrow(/is \[63\], expected \[64\]/);
  });

  test("reads shards by their index, and refuses an index that lies", () => {
    const tensors = [...randomTensors(tinyConfig)];
    const folder = temporaryFolder();
    const halves = [new Map(tensors.slice(0, 9)), new Map(tensors.slice(9))];
    const names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    for (const [i, name] of names.entries()) writeFileSync(join(folder, name), safetensorsBytes(halves[i]));
    const weightMap = Object.fromEntries(names.flatMap((name, i) => [...halves[i].keys()].map((key) => [key, name])));
    const index = (map: unknown) =>
      writeFileSync(join(folder, "model.safetensors.index.json"), JSON.stringify({ weight_map: map }));
    index(weightMap);
    const [name, { data }] = tensors[12];
    expect(new Weights(folder, config).float32(name)).toEqual(data);
    index({ ...weightMap, [name]: names[0] });
    expect(() => new Weights(folder, config)).toThrow(/not as indexed/);
    index({ ...weightMap, ghost: names[0] });
    expect(() => new Weights(folder, config)).toThrow(/"ghost" is in no shard/);
    index({ ...weightMap, [name]: "../../etc/passwd" });
    expect(() => new Weights(folder, config)).toThrow(/not a file of this folder/);
  });

  test("widens bfloat16 and float16 exactly", () => {
    const make = (dtype: string, halves: Uint16Array) => {
      const header = new TextEncoder().encode(JSON.stringify({ a: { dtype, shape: [3], data_offsets: [0, 6] } }));
      return Buffer.concat([
        new Uint8Array(BigUint64Array.of(BigInt(header.length)).buffer),
        header,
        new Uint8Array(halves.buffer),
      ]);
    };
    const read = (bytes: Uint8Array) => {
      const tensors = readSafetensorsHeader(file(bytes));
      const { dtype, ...tensor } = tensors.get("a") ?? fail();
      return [...widen(dtype, readTensorBytes({ dtype, ...tensor }))];
    };
    expect(read(make("BF16", Uint16Array.of(0x3f80, 0xc020, 0x7f80)))).toEqual([1, -2.5, Infinity]);
    expect(read(make("F16", Uint16Array.of(0x3c00, 0xc100, 0x0001)))).toEqual([1, -2.5, 2 ** -24]);
  });
});

function fail(): never {
  throw new Error("tensor missing");
}
