/** Model folders whose linear weights are stored in 8 bits with scales, and the same models with those weights in float32. */
import { Random } from "../native/random.ts";
import { testSeed } from "../support/seed.ts";
import { randomTensors, type TestTensor, writeModelFolder } from "./folder.ts";

const compressed = (type: "float" | "int", weights: Record<string, unknown>) => ({
  quant_method: "compressed-tensors",
  format: "naive-quantized",
  config_groups: { group_0: { targets: ["Linear"], weights: { num_bits: 8, type, symmetric: true, ...weights } } },
  ignore: ["lm_head"],
});

export interface Form {
  /** `quantization_config` */
  readonly config: Record<string, unknown>;
  readonly dtype: "F8_E4M3" | "I8";
  readonly suffix?: "weight_scale_inv";
  /** Rows and columns that share a scale. */
  readonly block: readonly [rows: number, columns: number];
  /** Else scales are any numbers. */
  readonly powersOfTwo?: true;
  /** The scales' shape for this many rows and columns of scales. */
  readonly shape: (rows: number, columns: number) => number[];
}

const all = Number.POSITIVE_INFINITY;

/** The forms that are read, by name. Blocks divide neither the rows nor the columns of the test models. */
export const forms: Readonly<Record<string, Form>> = {
  "fp8 by blocks": {
    config: { quant_method: "fp8", fmt: "e4m3", activation_scheme: "dynamic", weight_block_size: [24, 40] },
    dtype: "F8_E4M3",
    suffix: "weight_scale_inv",
    block: [24, 40],
    shape: (rows, columns) => [rows, columns],
  },
  "fp8, one scale": { config: { quant_method: "fp8" }, dtype: "F8_E4M3", block: [all, all], shape: () => [] },
  fbgemm_fp8: {
    config: { quant_method: "fbgemm_fp8", activation_scale_ub: 1200 },
    dtype: "F8_E4M3",
    block: [1, all],
    shape: (rows) => [rows, 1],
  },
  "compressed-tensors, floats by rows": {
    config: compressed("float", { strategy: "channel" }),
    dtype: "F8_E4M3",
    block: [1, all],
    shape: (rows) => [rows],
  },
  "compressed-tensors, integers by rows": {
    config: compressed("int", { strategy: "channel", group_size: null, actorder: null }),
    dtype: "I8",
    block: [1, all],
    shape: (rows) => [rows, 1],
  },
  "compressed-tensors, one scale": {
    config: compressed("int", { strategy: "tensor" }),
    dtype: "I8",
    block: [all, all],
    shape: () => [1],
  },
  "compressed-tensors, groups of a row": {
    config: compressed("int", { strategy: "group", group_size: 20 }),
    dtype: "I8",
    block: [1, 20],
    shape: (rows, columns) => [rows, columns],
  },
  "compressed-tensors, groups with powers of two": {
    config: compressed("int", { strategy: "group", group_size: 20 }),
    dtype: "I8",
    block: [1, 20],
    powersOfTwo: true,
    shape: (rows, columns) => [rows, columns],
  },
  "fp8 by blocks, powers of two": {
    config: { quant_method: "fp8", weight_block_size: [24, 40], scale_fmt: "ue8m0" },
    dtype: "F8_E4M3",
    suffix: "weight_scale_inv",
    block: [24, 40],
    powersOfTwo: true,
    shape: (rows, columns) => [rows, columns],
  },
  "compressed-tensors, blocks": {
    config: compressed("float", { strategy: "block", block_structure: [24, 40] }),
    dtype: "F8_E4M3",
    block: [24, 40],
    shape: (rows, columns) => [rows, columns],
  },
};

/** e4m3 has float16's layout with one bit of exponent and seven of mantissa less: its bits shifted into a float16's, times 2^8. */
export function fromE4m3(byte: number): number {
  if ((byte & 0x7f) === 0x7f) return Number.NaN;
  const half = Uint16Array.of(((byte & 0x80) << 8) | ((byte & 0x7f) << 7));
  return new Float16Array(half.buffer)[0] * 256;
}

export type Tensors = Map<string, TestTensor>;

/**
 * @param config of the model
 * @param matches which of its stored matrices are in 8 bits
 * @returns the tensors as stored, and each of those matrices in float32, computed element by element
 */
export function quantised(config: Record<string, unknown>, form: Form, matches = /_proj\.weight$/) {
  const random = new Random(testSeed());
  const stored: Tensors = new Map(randomTensors(config));
  const plain: Tensors = new Map(stored);
  for (const [name, { shape }] of plain) {
    if (!matches.test(name)) continue;
    const [rows, columns] = shape as [number, number];
    const [rowsPerScale, columnsPerScale] = [Math.min(form.block[0], rows), Math.min(form.block[1], columns)];
    const scaleShape = [Math.ceil(rows / rowsPerScale), Math.ceil(columns / columnsPerScale)] as const;
    const drawScale = () => (form.powersOfTwo ? 2 ** -random.integer(7, 10) : 0.001 + 0.01 * random.next());
    const scales = Float32Array.from({ length: scaleShape[0] * scaleShape[1] }, drawScale);
    // Of the float's 256 patterns two are no number.
    const draw = () =>
      form.dtype === "I8" ? random.integer(-128, 127) : random.integer(0, 126) + 128 * random.integer(0, 1);
    const numbers = Array.from({ length: rows * columns }, draw);
    const values = numbers.map((number, at) => {
      const [row, column] = [Math.floor(at / columns), at % columns];
      const scale = scales[Math.floor(row / rowsPerScale) * scaleShape[1] + Math.floor(column / columnsPerScale)];
      // Values as small as weights are, so that a model of them gives numbers.
      return Math.fround((form.dtype === "I8" ? number : fromE4m3(number)) * scale);
    });
    plain.set(name, { shape, data: Float32Array.from(values) });
    stored.set(name, {
      shape,
      dtype: form.dtype,
      data: form.dtype === "I8" ? Int8Array.from(numbers) : Uint8Array.from(numbers),
    });
    const scaleName = name.replace(/weight$/, form.suffix ?? "weight_scale");
    stored.set(scaleName, { shape: form.shape(...scaleShape), data: scales });
  }
  return { stored, plain };
}

/** A folder with the tensors as stored. */
export function writeQuantised(config: Record<string, unknown>, form: Form, stored: Tensors): string {
  // Tensors of 4 bytes first: safetensors begin each at a multiple of its element.
  const ordered = [...stored].sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT);
  return writeModelFolder({ ...config, quantization_config: form.config }, new Map(ordered));
}
