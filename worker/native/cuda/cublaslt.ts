/**
 * Matrix products by cuBLASLt: bfloat16 inputs, float32 sums. cuBLASLt is column-major. Read that way, `weights` is
 * [inWidth x outWidth] and is transposed, `input` is [inWidth x rows], and their product [outWidth x rows] is our
 * row-major output.
 */
import type { Pointer } from "bun:ffi";
import { openHandle } from "../library.ts";
import type { CudaContext } from "./context.ts";
import { CublasLtLibrary, type CublasLtOptions } from "./cublaslt-library.ts";
import { elementBytes, MatmulPlan, type MatmulShape, matmulScaleCounts } from "./matmul-plan.ts";
import type { DeviceBuffer } from "./memory.ts";
import type { CudaStream } from "./stream.ts";

export type { CublasLtOptions } from "./cublaslt-library.ts";
export type { MatmulScales, MatmulShape } from "./matmul-plan.ts";
export { blockScaleStride, matmulScaleCounts, scaleBlock } from "./matmul-plan.ts";

/** The operands of a product (MatmulShape has the sizes). Addresses are multiples of 16 bytes. */
export interface MatmulOperands {
  readonly input: DeviceBuffer;
  readonly weights: DeviceBuffer;
  readonly output: DeviceBuffer;
  /** Float32, where the shape has scales. */
  readonly scales?: MatmulScaleBuffers;
}

export interface MatmulScaleBuffers {
  readonly weights: DeviceBuffer;
  readonly input: DeviceBuffer;
}

/** cublasLtGetVersion: 10,000 times the major version, 100 times the minor one, and the patch. */
const firstWithScales = 120_901;

/** How many plans are kept; each number of rows needs a plan for each width. */
const maxPlans = 4096;

export class CublasLt {
  readonly #library: CublasLtLibrary;
  readonly #handle: Pointer;
  readonly #workspace: DeviceBuffer;
  /** Plans by shape and alignment, the least recently used first. */
  readonly #plans = new Map<string, MatmulPlan>();
  readonly #one = new Float32Array([1]);
  readonly #zero = new Float32Array([0]);

  /**
   * @param workspace scratch memory; 32 MiB is enough for every algorithm on Hopper. Products that share it must run in
   * one stream
   * @throws CudaUnavailable when the library is not there
   */
  constructor(context: CudaContext, workspace: DeviceBuffer, options: CublasLtOptions = {}) {
    const library = new CublasLtLibrary(context.driver.version, options);
    this.#library = library;
    this.#workspace = workspace;
    this.#handle = openHandle((out) => library.check("cublasLtCreate", library.symbols.cublasLtCreate(out)));
  }

  /**
   * Puts one product into the stream. The first product of a shape looks for its algorithm, which takes about 0.1 ms.
   */
  matmul(stream: CudaStream, shape: MatmulShape, operands: MatmulOperands): void {
    this.#run(stream, this.#planOf(shape, operands), operands);
  }

  /** Has it products with scales (MatmulScales)? They came with 12.9, whose first release computes some of them wrong. */
  get hasScales(): boolean {
    return Number(this.#library.symbols.cublasLtGetVersion()) >= firstWithScales;
  }

  close(): void {
    for (const plan of this.#plans.values()) plan.close();
    this.#plans.clear();
    this.#library.check("cublasLtDestroy", this.#library.symbols.cublasLtDestroy(this.#handle));
  }

  #planOf(shape: MatmulShape, operands: MatmulOperands): MatmulPlan {
    const alignment = alignmentOf(operands);
    const { rows, outWidth, inWidth, outputType, scales } = shape;
    const key = `${rows} ${outWidth} ${inWidth} ${outputType} ${scales} ${alignment}`;
    const known = this.#plans.get(key);
    if (known !== undefined) {
      this.#plans.delete(key);
      this.#plans.set(key, known);
      return known;
    }
    const { byteLength } = this.#workspace;
    const plan = new MatmulPlan(this.#library, this.#handle, shape, alignment, byteLength, pointersOf(operands));
    this.#plans.set(key, plan);
    const [[oldestKey, oldest] = []] = this.#plans;
    if (this.#plans.size > maxPlans && oldestKey !== undefined) {
      this.#plans.delete(oldestKey);
      oldest?.close();
    }
    return plan;
  }

  #run(stream: CudaStream, plan: MatmulPlan, operands: MatmulOperands): void {
    const { shape } = plan;
    assertOperands(shape, operands);
    if (shape.scales !== undefined) plan.setScales(pointersOf(operands));
    const output = operands.output.pointer;
    const status = this.#library.symbols.cublasLtMatmul(
      this.#handle,
      plan.description,
      this.#one,
      operands.weights.pointer,
      plan.weightsLayout,
      operands.input.pointer,
      plan.inputLayout,
      this.#zero,
      output,
      plan.outputLayout,
      output,
      plan.outputLayout,
      plan.algorithm,
      this.#workspace.pointer,
      this.#workspace.byteLength,
      stream.handle,
    );
    if (status !== 0) this.#library.check(`cublasLtMatmul (${JSON.stringify(shape)})`, status);
  }
}

/** The largest alignment, of those that make a difference to cuBLASLt, that all addresses have. */
function alignmentOf({ input, weights, output }: MatmulOperands): number {
  const buffers = [input, weights, output];
  for (const buffer of buffers) {
    if (buffer.pointer % 16 !== 0) throw new RangeError(`"${buffer.name}" does not start on a multiple of 16 bytes`);
  }
  return buffers.every((buffer) => buffer.pointer % 256 === 0) ? 256 : 16;
}

const pointersOf = ({ scales }: MatmulOperands): number[] =>
  scales === undefined ? [] : [scales.weights.pointer, scales.input.pointer];

function assertOperands(shape: MatmulShape, { input, weights, output, scales }: MatmulOperands): void {
  const { rows, outWidth, inWidth } = shape;
  const bytes = shape.scales === undefined ? 2 : 1;
  assertBytes(input, rows * inWidth * bytes);
  assertBytes(weights, outWidth * inWidth * bytes);
  if (shape.scales !== undefined) {
    if (scales === undefined) throw new RangeError("a product of e4m3 without scales");
    const counts = matmulScaleCounts(shape, shape.scales);
    assertBytes(scales.weights, 4 * counts.weights);
    assertBytes(scales.input, 4 * counts.input);
  }
  assertBytes(output, rows * outWidth * elementBytes[shape.outputType]);
}

function assertBytes(buffer: DeviceBuffer, bytes: number): void {
  if (buffer.byteLength < bytes) {
    throw new RangeError(`"${buffer.name}" of ${buffer.byteLength} bytes is too short for a product: ${bytes}`);
  }
}
