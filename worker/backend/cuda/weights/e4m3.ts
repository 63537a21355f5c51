/**
 * Matrices that stay in 8 bits on the device (kernels/cuda/products/matvec_e4m3.cu, cuBLASLt), and how their scales lie
 * there. Of what checkpoints have, these are one scale for 128 by 128 weights, one for a row, and one for the matrix,
 * which is given to each of its rows: rows of several matrices are then one matrix, and no number is rounded again.
 */
import { type StoredTensor, staysE4m3, type WeightScales } from "../../../model/stored-form.ts";
import { blockScaleStride, type DeviceBuffer, type MatmulScales, scaleBlock } from "../device/device.ts";

/** Scales on the device, as a product takes them (MatmulScales). */
export interface MatrixScales {
  readonly kind: MatmulScales;
  readonly values: DeviceBuffer;
}

/** Kernels take vectors of so many bytes of a row, and cuBLASLt multiples of it. */
const widthUnit = 16;

/** How a matrix made of the rows of these tensors stays in 8 bits; undefined: it does not. */
export function scalesKind(tensors: readonly StoredTensor[]): MatmulScales | undefined {
  const kinds = new Set(tensors.map(kindOf));
  const [kind] = kinds;
  const rows = tensors.reduce((sum, { shape }) => sum + shape[0], 0);
  return kinds.size === 1 && rows % widthUnit === 0 ? kind : undefined;
}

function kindOf(tensor: StoredTensor): MatmulScales | undefined {
  const [rows, width = 1] = tensor.shape;
  if (!staysE4m3(tensor) || tensor.scales === undefined || width % widthUnit !== 0) return undefined;
  const { rowsPerScale, columnsPerScale, firstRow } = tensor.scales;
  if (columnsPerScale >= width) return "rows";
  if (rowsPerScale !== scaleBlock || columnsPerScale !== scaleBlock) return undefined;
  const isWhole = [rows, width, firstRow].every((count) => count % scaleBlock === 0);
  return isWhole ? "blocks" : undefined;
}

/** The scales of a matrix as they lie on the device. */
export function matrixScales(tensors: readonly StoredTensor[], kind: MatmulScales): Float32Array {
  const parts = tensors.map(({ shape: [rows, width = 1], scales }) => {
    if (scales === undefined) throw new RangeError("a matrix in e4m3 without scales");
    return kind === "rows" ? rowScales(scales, rows) : blockScales(scales, rows, width);
  });
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function rowScales({ values, rowsPerScale, scalesPerRow, firstRow }: WeightScales, rows: number): Float32Array {
  return Float32Array.from(
    { length: rows },
    (_, row) => values[Math.floor((firstRow + row) / rowsPerScale) * scalesPerRow],
  );
}

function blockScales({ values, scalesPerRow, firstRow }: WeightScales, rows: number, width: number): Float32Array {
  const stride = blockScaleStride(width);
  const scales = new Float32Array((rows / scaleBlock) * stride);
  for (let block = 0; block < rows / scaleBlock; block++) {
    const from = (firstRow / scaleBlock + block) * scalesPerRow;
    scales.set(values.subarray(from, from + scalesPerRow), block * stride);
  }
  return scales;
}
