/** Numbers of 8 bits (e4m3) as kernels/cuda/products and cuBLASLt have them, in plain loops. */
import { DeviceBuffer, type MatmulShape } from "../../../worker/backend/cuda/device/device.ts";
import { bfloat16Of } from "../../../worker/backend/cuda/weights/tensor-reader.ts";
import type { MatmulOperands } from "../../../worker/native/cuda/cublaslt.ts";
import { fromE4m3 } from "../../model/quantised-folder.ts";
import type { Values } from "./emulated-heads.ts";
import type { EmulatedMemory } from "./emulated-memory.ts";

const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;
const number = (value: unknown): number => Number(value);

const greatest = 448;
const values = Float64Array.from({ length: 256 }, (_, byte) => fromE4m3(byte));
/** The numbers from 0 to 448, rising; their places are their bytes. */
const rising = values.subarray(0, 127);

/** The nearest number, of two as near the one with an even byte; beyond the greatest it is the greatest. */
export function toE4m3(value: number): number {
  if (Number.isNaN(value)) return 0x7f;
  const sign = value < 0 || Object.is(value, -0) ? 0x80 : 0;
  const size = Math.min(Math.abs(value), greatest);
  let low = 0;
  for (let high = rising.length - 1; low < high; ) {
    const middle = Math.ceil((low + high) / 2);
    if (rising[middle] <= size) low = middle;
    else high = middle - 1;
  }
  const next = Math.min(low + 1, rising.length - 1);
  const [below, above] = [size - rising[low], rising[next] - size];
  return sign | (above < below || (above === below && low % 2 === 1) ? next : low);
}

/** Numbers that share a scale: rounds them, and gives their scale. */
function quantize(numbers: Float32Array, out: Uint8Array, at: number): number {
  const most = numbers.reduce((found, x) => Math.max(found, Math.abs(x)), 0);
  const inverse = most > 0 ? Math.fround(greatest / most) : 1;
  numbers.forEach((x, i) => {
    out[at + i] = toE4m3(Math.fround(x * inverse));
  });
  return most / greatest;
}

export function emulatedQuantizeBlocks(memory: EmulatedMemory, given: Values, [grid, gridY]: readonly number[]): void {
  const [input, rowCount, inWidth, rowStride, out, scales] = given;
  const [width, rows] = [number(inWidth), memory.int32(buffer(rowCount))[0]];
  if (rows > grid || gridY * 1_024 < width) throw new RangeError(`a grid of ${grid}, ${gridY} for ${rows} rows`);
  const to = memory.float32(buffer(scales));
  for (let row = 0; row < rows; row++) {
    for (let block = 0; block < width / 128; block++) {
      const at = row * width + block * 128;
      const numbers = memory.bfloat16(buffer(input)).row(at, 128);
      to[block * number(rowStride) + row] = quantize(numbers, memory.uint8(buffer(out)), at);
    }
  }
}

export function emulatedQuantizeRows(memory: EmulatedMemory, given: Values, [grid]: readonly number[]): void {
  const [input, rowCount, inWidth, out, scales] = given;
  const [width, rows] = [number(inWidth), memory.int32(buffer(rowCount))[0]];
  if (rows > grid) throw new RangeError(`a grid of ${grid} for ${rows} rows`);
  for (let row = 0; row < rows; row++) {
    const numbers = memory.bfloat16(buffer(input)).row(row * width, width);
    memory.float32(buffer(scales))[row] = quantize(numbers, memory.uint8(buffer(out)), row * width);
  }
}

/** A product of numbers and scales, as `MatmulScales` has them. */
export function emulatedBytesMatmul(memory: EmulatedMemory, shape: MatmulShape, operands: MatmulOperands): void {
  const { rows, inWidth, outWidth, scales: kind } = shape;
  const { input, weights, output, scales } = operands;
  if (scales === undefined) throw new RangeError("a product of e4m3 without scales");
  const [x, w, to] = [memory.uint8(input), memory.uint8(weights), memory.bfloat16(output)];
  const [inputScales, weightScales] = [memory.float32(scales.input), memory.float32(scales.weights)];
  const stride = 4 * Math.ceil(inWidth / 512);
  const block = kind === "blocks" ? 128 : inWidth;
  for (let row = 0; row < rows; row++) {
    for (let o = 0; o < outWidth; o++) {
      let sum = 0;
      for (let at = 0; at < inWidth; at += block) {
        let part = 0;
        for (let i = at; i < at + block; i++) part += values[x[row * inWidth + i]] * values[w[o * inWidth + i]];
        const places =
          kind === "blocks" ? [(at / 128) * rows + row, Math.floor(o / 128) * stride + at / 128] : [row, o];
        sum += part * inputScales[places[0]] * weightScales[places[1]];
      }
      to.set(row * outWidth + o, sum);
    }
  }
}

const roundBfloat16 = (x: number): number => new Float32Array(Uint32Array.of(bfloat16Of(wordOf(x)) << 16).buffer)[0];
const wordOf = (x: number): number => new Uint32Array(Float32Array.of(x).buffer)[0];

/** A row that was rounded to bfloat16 first; rowStride 0: with one scale, else with one for 128 numbers. */
export function putBytes(
  memory: EmulatedMemory,
  values: Float32Array,
  row: number,
  {
    bytes,
    scales,
    rowStride,
  }: { readonly bytes: DeviceBuffer; readonly scales: DeviceBuffer; readonly rowStride: number },
): void {
  const rounded = values.map(roundBfloat16);
  const [out, to] = [memory.uint8(bytes), memory.float32(scales)];
  if (rowStride === 0) {
    to[row] = quantize(rounded, out, row * values.length);
    return;
  }
  for (let block = 0; block < values.length / 128; block++) {
    const numbers = rounded.subarray(block * 128, (block + 1) * 128);
    to[block * rowStride + row] = quantize(numbers, out, row * values.length + block * 128);
  }
}

/** few_rows_wgmma.cu: what `emulatedBytesMatmul` gives, for a grid that has all outputs. */
export const emulatedFewRows =
  (tile: number, peers: number) =>
  (memory: EmulatedMemory, values: Values, [grid]: readonly number[]): void => {
    const [weightMap, inputMap, weightScales, inputScales, ...rest] = values;
    const [stride, rows, inWidth, outWidth] = rest.slice(0, 4).map(number);
    const output = buffer(rest[5]);
    if (rows > tile || grid * 64 < peers * outWidth || inWidth < peers * 128)
      throw new RangeError(`a grid of ${grid} for ${outWidth} outputs of ${rows} rows`);
    const onMap = (map: unknown): DeviceBuffer => {
      const [pointer, byteLength] = memory.int32(buffer(map));
      return new DeviceBuffer("matrix", pointer, byteLength);
    };
    const scales = stride > 0 ? "blocks" : "rows";
    emulatedBytesMatmul(
      memory,
      { rows, inWidth, outWidth, outputType: "bfloat16", scales },
      {
        ...{ input: onMap(inputMap), weights: onMap(weightMap), output },
        scales: { weights: buffer(weightScales), input: buffer(inputScales) },
      },
    );
  };

/** Weights of matvec_e4m3.cu, widened. @param given from the weights to the number of inputs */
export function widenedWeights(memory: EmulatedMemory, given: Values, outputs: number): Float32Array {
  const [weights, scales, stride, rowShift, inShift, inWidth] = given;
  const width = number(inWidth);
  const [bytes, scaleValues] = [memory.uint8(buffer(weights)), memory.float32(buffer(scales))];
  return Float32Array.from({ length: outputs * width }, (_, at) => {
    const [o, i] = [Math.floor(at / width), at % width];
    const place = (o >> number(rowShift)) * number(stride) + ((i >> 4) >> number(inShift));
    return values[bytes[at]] * scaleValues[place];
  });
}
