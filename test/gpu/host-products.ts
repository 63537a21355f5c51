/** Matrix products on the device against products in float64, and the times of the shapes that a model has. */
import type { CudaContext } from "../../worker/native/cuda/context.ts";
import type { CublasLt, MatmulShape } from "../../worker/native/cuda/cublaslt.ts";
import { CudaEvent } from "../../worker/native/cuda/event.ts";
import { copyToDevice, copyToHost, DeviceArena, fillDevice } from "../../worker/native/cuda/memory.ts";
import type { CudaStream } from "../../worker/native/cuda/stream.ts";
import { millisecondsBetween } from "./driver-calls.ts";
import { assertThat, errorOf, type Report } from "./report.ts";

/** Nearest bfloat16, ties to even. */
function toBfloat16(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return Uint16Array.from(bits, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16);
}

function fromBfloat16(values: Uint16Array): Float32Array {
  return new Float32Array(Uint32Array.from(values, (half) => half << 16).buffer);
}

/** Reproducible, about normal, with an outlier every 97 elements. */
function randomValues(length: number, seed: number): Uint16Array {
  let state = seed;
  const next = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32 - 0.5;
  };
  const normal = () => next() + next() + next();
  return toBfloat16(Float32Array.from({ length }, (_, i) => normal() * (i % 97 === 0 ? 8 : 1)));
}

const shapes: readonly MatmulShape[] = [
  { rows: 1, outWidth: 256, inWidth: 512, outputType: "bfloat16" },
  { rows: 7, outWidth: 272, inWidth: 512, outputType: "float32" },
  { rows: 64, outWidth: 384, inWidth: 320, outputType: "bfloat16" },
  { rows: 33, outWidth: 264, inWidth: 1024, outputType: "float32" },
  { rows: 300, outWidth: 200, inWidth: 136, outputType: "bfloat16" },
];

/** @returns what was compared; @throws Error at the first element that rounding does not explain */
export function checkProducts(stream: CudaStream, arena: DeviceArena, lt: CublasLt): string {
  let worst = 0;
  for (const shape of shapes) worst = Math.max(worst, checkProduct(stream, arena, lt, shape));
  const short = arena.allocate("short", 64);
  const shape: MatmulShape = { rows: 8, outWidth: 8, inWidth: 8, outputType: "float32" };
  errorOf(RangeError, () => lt.matmul(stream, shape, { input: short, weights: short, output: short }));
  return `${shapes.length} shapes by cuBLASLt, greatest error ${worst.toFixed(3)} of what rounding explains`;
}

function checkProduct(stream: CudaStream, arena: DeviceArena, lt: CublasLt, shape: MatmulShape): number {
  const { rows, outWidth, inWidth, outputType } = shape;
  const isFloat = outputType === "float32";
  const upload = (name: string, values: Uint16Array) => {
    const buffer = arena.allocate(name, values.byteLength);
    copyToDevice(stream, buffer, values);
    return buffer;
  };
  const [input, weights] = [randomValues(rows * inWidth, 1), randomValues(outWidth * inWidth, 2)];
  const out = isFloat ? new Float32Array(rows * outWidth) : new Uint16Array(rows * outWidth);
  const output = arena.allocate("output", out.byteLength);
  fillDevice(stream, output, 0xff);
  lt.matmul(stream, shape, { input: upload("input", input), weights: upload("weights", weights), output });
  copyToHost(stream, out, output);
  stream.synchronize();
  const actual = out instanceof Float32Array ? out : fromBfloat16(out);
  const [x, w] = [fromBfloat16(input), fromBfloat16(weights)];
  let worst = 0;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < outWidth; column++) {
      let [sum, absolute] = [0, 0];
      for (let k = 0; k < inWidth; k++) {
        const product = x[row * inWidth + k] * w[column * inWidth + k];
        sum += product;
        absolute += Math.abs(product);
      }
      // float32 sums of inWidth products, then one rounding to the output's type.
      const bound = absolute * inWidth * 2 ** -24 + (isFloat ? 0 : Math.abs(sum) * 2 ** -8);
      worst = Math.max(worst, Math.abs(actual[row * outWidth + column] - sum) / bound);
    }
  }
  assertThat(worst <= 1, `error of ${worst} times what rounding explains: ${JSON.stringify(shape)}`);
  return worst;
}

/** Times of an 8B model's widths; weights rotate so that the L2 cache has no part. */
export function timeProducts(stream: CudaStream, context: CudaContext, lt: CublasLt, report: Report): string {
  const arena = new DeviceArena(context, "tuning", 2 ** 30);
  const [outWidth, inWidth, copies, maxRows] = [4096, 12_288, 8, 4096];
  const allWeights = arena.allocate("weights", copies * outWidth * inWidth * 2);
  const input = arena.allocate("input", maxRows * inWidth * 2);
  const output = arena.allocate("output", maxRows * outWidth * 2);
  fillDevice(stream, allWeights, 0x3c);
  fillDevice(stream, input, 0x3c);
  const operandSets = Array.from({ length: copies }, (_, i) => {
    const weights = allWeights.slice(i * outWidth * inWidth * 2, outWidth * inWidth * 2);
    return { input, weights, output };
  });
  const words: string[] = [];
  const [start, end] = [new CudaEvent(context, { timing: true }), new CudaEvent(context, { timing: true })];
  const rounds = 3;
  for (const rows of [2, 16, 64, maxRows]) {
    const shape: MatmulShape = { rows, outWidth, inWidth, outputType: "bfloat16" };
    const runAll = () => {
      for (const operands of operandSets) lt.matmul(stream, shape, operands);
    };
    runAll();
    stream.record(start);
    for (let round = 0; round < rounds; round++) runAll();
    stream.record(end);
    const milliseconds = millisecondsBetween(start, end) / (rounds * copies);
    words.push(report.figure(`matmul${rows}RowsUs`, milliseconds * 1000));
  }
  start.close();
  end.close();
  arena.close();
  return words.join(", ");
}
