/**
 * The types that weights have in files, widened to float32. 8-bit weights have scales beside them (quantization.ts);
 * a weight is the product of its number and its scale, rounded to float32 once.
 */
import { ModelError } from "./model-error.ts";
import { mxfp4BlockBytes, type Quantization } from "./quantization.ts";
import { type Dtype, readTensorBytes, type TensorInfo } from "./safetensors.ts";
import type { PairedRows, Stack } from "./tensor-layout.ts";

/** The scales of a stored matrix: one for each `rowsPerScale` rows and `columnsPerScale` columns. */
export interface WeightScales {
  /** [rows / rowsPerScale, scalesPerRow], each dimension rounded up */
  readonly values: Float32Array;
  readonly rowsPerScale: number;
  readonly columnsPerScale: number;
  readonly scalesPerRow: number;
  /** The row of the stored matrix at which the tensor begins. */
  readonly firstRow: number;
}

/** A logical tensor's bytes in its file, or those among which its rows are; rows may be stored in another order. */
export interface StoredTensor extends TensorInfo {
  readonly pairedRows?: PairedRows | undefined;
  /** Set where 1 is added to each number. */
  readonly addsOne?: boolean | undefined;
  /** Set for 8-bit weights. */
  readonly scales?: WeightScales;
  /** Set for blocks of MXFP4: their scales. */
  readonly mxfp4Scales?: TensorInfo;
  /** Set where the bytes are those of an expert, among whose rows the tensor's are. */
  readonly stack?: Stack | undefined;
}

/** Floats without scales. */
const floatTypes: ReadonlySet<Dtype> = new Set(["F32", "F16", "BF16"]);

/** @throws ModelError when the tensor's numbers mean no weights */
export function assertWeights({ file, dtype, scales, mxfp4Scales }: StoredTensor): void {
  if (mxfp4Scales ? dtype === "U8" && mxfp4Scales.dtype === "U8" : floatTypes.has(dtype) || scales) return;
  throw new ModelError(
    `${file}: a weight has type ${dtype}; supported: F32, BF16, F16, and 8 bits as "quantization_config" says`,
  );
}

/**
 * Reads and checks a matrix's scales.
 * @param weight the matrix, whole
 * @param stored its scales' tensor
 * @param name of the scales, in errors
 * @throws ModelError for another shape than the quantisation asks for, a type that is no float, a scale that is not finite
 */
export function readScales(
  weight: TensorInfo,
  stored: TensorInfo,
  quantization: Quantization,
  name: string,
): WeightScales {
  const [rows, columns = 1] = weight.shape;
  const rowsPerScale = Math.min(quantization.rowsPerScale, rows);
  const columnsPerScale = Math.min(quantization.columnsPerScale, columns);
  const scalesPerRow = Math.ceil(columns / columnsPerScale);
  const expected = [Math.ceil(rows / rowsPerScale), scalesPerRow];
  // One scale for each row is written as [rows, 1] and as [rows], one for the tensor also as [].
  const significant = (shape: readonly number[]) => shape.filter((extent) => extent !== 1).join();
  if (significant(stored.shape) !== significant(expected)) {
    throw new ModelError(`${stored.file}: tensor "${name}" is [${stored.shape}], expected [${expected}]`);
  }
  if (!floatTypes.has(stored.dtype)) {
    throw new ModelError(`${stored.file}: tensor "${name}" has type ${stored.dtype}; scales are F32, BF16 or F16`);
  }
  const values = widen(stored.dtype, readTensorBytes(stored));
  const bad = values.findIndex((value) => !Number.isFinite(value));
  if (bad >= 0) throw new ModelError(`${stored.file}: tensor "${name}": scale ${bad} is ${values[bad]}`);
  return { values, rowsPerScale, columnsPerScale, scalesPerRow, firstRow: 0 };
}

/** Every value of an 8-bit float with 4 bits of exponent and 3 of mantissa, which has no infinity (Micikevicius et al. 2022, table 1). */
const e4m3Values = Float32Array.from({ length: 256 }, (_, byte) => {
  const sign = byte & 0x80 ? -1 : 1;
  const exponent = (byte >> 3) & 0xf;
  const mantissa = byte & 0x7;
  if (exponent === 0xf && mantissa === 0x7) return Number.NaN;
  return sign * (exponent === 0 ? mantissa * 2 ** -9 : (8 + mantissa) * 2 ** (exponent - 10));
});

/** Numbers as they are stored, without their scales. @throws RangeError for a type that no weight has */
export function widen(dtype: Dtype, bytes: Uint8Array<ArrayBuffer>): Float32Array {
  if (dtype === "F32") return new Float32Array(bytes.buffer);
  if (dtype === "F16") return Float32Array.from(new Float16Array(bytes.buffer));
  if (dtype === "I8") return Float32Array.from(new Int8Array(bytes.buffer));
  if (dtype === "F8_E4M3") {
    const values = new Float32Array(bytes.length);
    for (let i = 0; i < values.length; i++) values[i] = e4m3Values[bytes[i]];
    return values;
  }
  if (dtype !== "BF16") throw new RangeError(`a weight of type ${dtype}`);
  const halves = new Uint16Array(bytes.buffer);
  const words = new Uint32Array(halves.length);
  // bfloat16 is the upper half of a float32.
  for (let i = 0; i < halves.length; i++) words[i] = halves[i] << 16;
  return new Float32Array(words.buffer);
}

/**
 * Multiplies stored numbers by their scales, in place.
 * @param values elements `first`, `first` + 1, … of the tensor, in stored order
 */
export function applyScales(values: Float32Array, tensor: StoredTensor, first = 0): void {
  if (tensor.scales === undefined) return;
  const { values: scales, rowsPerScale, columnsPerScale, scalesPerRow, firstRow } = tensor.scales;
  const width = rowElements(tensor.shape);
  for (let at = 0; at < values.length; ) {
    const column = (first + at) % width;
    const row = firstRow + (first + at - column) / width;
    const block = Math.floor(column / columnsPerScale);
    const scale = scales[Math.floor(row / rowsPerScale) * scalesPerRow + block];
    const end = Math.min(values.length, at + Math.min((block + 1) * columnsPerScale, width) - column);
    for (; at < end; at++) values[at] *= scale;
  }
}

/**
 * Whether each weight is a bfloat16 number as it stands: 8-bit numbers have at most 8 significant bits, as many as
 * bfloat16, and a power of two changes none of them.
 */
export function holdsBfloat16({ dtype, scales, mxfp4Scales }: StoredTensor): boolean {
  if (mxfp4Scales) return true;
  return scales === undefined ? dtype === "BF16" : scales.values.every(isPlainPowerOfTwo);
}

/** A power of two, or zero, by which no 8-bit number leaves bfloat16's normal range: from 2^-100 to 2^100. */
function isPlainPowerOfTwo(scale: number): boolean {
  return scale === 0 || (scale >= 2 ** -100 && scale <= 2 ** 100 && Number.isInteger(Math.log2(scale)));
}

/** A float with 2 bits of exponent and 1 of mantissa, by its 4 bits (OCP Microscaling Formats 1.0, table 5). */
const e2m1Values = Float32Array.of(0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6);
/** A scale's byte s stands for 2^(s - bias), 0 too. */
const e8m0Bias = 127;
/** Greater scales are refused: their weights might leave bfloat16, and no model has them. 255 is no number. */
const greatestMxfp4Scale = e8m0Bias + 100;

/** Weights in MXFP4. */
export interface Mxfp4 {
  /** 16 bytes each, the weight with the lower index in the lower 4 bits */
  readonly blocks: Uint8Array;
  /** A byte s for each block, which stands for 2^(s - 127). */
  readonly scales: Uint8Array;
}

/** @throws ModelError for a scale that is no number, or beyond 2^100 */
export function assertMxfp4Scales(scales: Uint8Array, file: string): void {
  const bad = scales.findIndex((scale) => scale > greatestMxfp4Scale);
  if (bad >= 0) throw new ModelError(`${file}: scale ${bad} of a tensor in mxfp4 is ${scales[bad]}, above 2^100`);
}

/**
 * A logical tensor's blocks, from its first row on: where it is every other row of its expert's, so are these.
 * @returns undefined where it is not stored so. @throws ModelError for a scale that is none
 */
export function readMxfp4(tensor: StoredTensor): Mxfp4 | undefined {
  const { mxfp4Scales, stack, file } = tensor;
  if (mxfp4Scales === undefined || stack === undefined) return undefined;
  const scales = readTensorBytes(mxfp4Scales);
  assertMxfp4Scales(scales, file);
  const firstBlock = (stack.firstRow * scales.length) / stack.rows;
  return {
    blocks: readTensorBytes(tensor).subarray(firstBlock * mxfp4BlockBytes),
    scales: scales.subarray(firstBlock),
  };
}

/** Inputs that share a scale where a matrix stays in e4m3: a multiple of it. */
const e4m3ScaleInputs = 32;

/** As large as kernels take them; products of larger ones with numbers would soon be infinite. */
const greatestE4m3Scale = 2 ** 100;

/** Can a matrix stay in e4m3? Its rows stand in their own order, and its scales are for whole groups of inputs. */
export function staysE4m3({ dtype, scales, shape, pairedRows, addsOne, stack }: StoredTensor): boolean {
  if (dtype !== "F8_E4M3" || scales === undefined) return false;
  if (pairedRows !== undefined || addsOne || stack !== undefined) return false;
  if (scales.values.some((scale) => Math.abs(scale) > greatestE4m3Scale)) return false;
  return scales.columnsPerScale >= rowElements(shape) || scales.columnsPerScale % e4m3ScaleInputs === 0;
}

/** A matrix's numbers as they are stored, and the scales of each of its rows. */
export function readE4m3(tensor: StoredTensor): {
  readonly numbers: Uint8Array;
  readonly scales: Float32Array;
  readonly scaleInputs: number;
} {
  if (tensor.scales === undefined) throw new RangeError(`${tensor.file}: a matrix in e4m3 without scales`);
  const { values, rowsPerScale, columnsPerScale, scalesPerRow, firstRow } = tensor.scales;
  const [rows] = tensor.shape;
  const scales = new Float32Array(rows * scalesPerRow);
  for (let row = 0; row < rows; row++) {
    const from = Math.floor((firstRow + row) / rowsPerScale) * scalesPerRow;
    scales.set(values.subarray(from, from + scalesPerRow), row * scalesPerRow);
  }
  // Where a row has one scale, it is said to be for as many inputs as the row has, rounded up to what kernels take.
  const scaleInputs =
    scalesPerRow === 1 ? Math.ceil(rowElements(tensor.shape) / e4m3ScaleInputs) * e4m3ScaleInputs : columnsPerScale;
  return { numbers: readTensorBytes(tensor), scales, scaleInputs };
}

/** Weights of MXFP4 in float32, exactly. */
export function widenMxfp4({ blocks, scales }: Mxfp4): Float32Array {
  const values = new Float32Array(2 * blocks.length);
  for (const [block, byte] of scales.entries()) {
    const scale = 2 ** (byte - e8m0Bias);
    for (let i = block * mxfp4BlockBytes; i < (block + 1) * mxfp4BlockBytes; i++) {
      values[2 * i] = e2m1Values[blocks[i] & 15] * scale;
      values[2 * i + 1] = e2m1Values[blocks[i] >> 4] * scale;
    }
  }
  return values;
}

/** A logical tensor in float32, in stored order. */
export function readStored(tensor: StoredTensor): Float32Array {
  const bytes = readTensorBytes(tensor);
  if (tensor.mxfp4Scales) {
    const scales = readTensorBytes(tensor.mxfp4Scales);
    assertMxfp4Scales(scales, tensor.file);
    return widenMxfp4({ blocks: bytes, scales });
  }
  const values = widen(tensor.dtype, bytes);
  applyScales(values, tensor);
  return values;
}

/** Numbers of a row. */
export function rowElements(shape: readonly number[]): number {
  return shape.slice(1).reduce((product, extent) => product * extent, 1);
}
