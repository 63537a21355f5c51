/**
 * Reader of the safetensors format (huggingface/safetensors, "Format"): 8 bytes little-endian header
 * length, a JSON header, then the tensors' bytes. Every length is checked against the file before use: a
 * header that lies must not make us read or allocate what is not there.
 */
import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { z } from "zod";
import { ModelError } from "./model-error.ts";

export const dtypeBytes = {
  F64: 8,
  F32: 4,
  F16: 2,
  BF16: 2,
  I64: 8,
  I32: 4,
  I16: 2,
  I8: 1,
  U8: 1,
  BOOL: 1,
  F8_E4M3: 1,
} as const;
export type Dtype = keyof typeof dtypeBytes;

export interface TensorInfo {
  readonly file: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Byte range in the file. */
  readonly start: number;
  readonly end: number;
}

/** The format's own bound on the header. */
const maxHeaderBytes = 100_000_000;
const size = z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);
const entrySchema = z.object({
  dtype: z.enum(Object.keys(dtypeBytes) as [Dtype, ...Dtype[]]),
  shape: z.array(size).max(8),
  data_offsets: z.tuple([size, size]),
});

/**
 * Reads one file's header.
 * @throws ModelError for a truncated file, a header past the end, overlapping or uncovered bytes, or a
 *   tensor whose bytes are not shape x dtype.
 */
export function readSafetensorsHeader(file: string): Map<string, TensorInfo> {
  const fd = openSync(file, "r");
  try {
    const fileBytes = fstatSync(fd).size;
    if (fileBytes < 8) throw new ModelError(`${file}: ${fileBytes} bytes are too few for a safetensors file`);
    const headerBytes = Number(readExactly(fd, 0, 8, file).readBigUInt64LE(0));
    if (headerBytes > maxHeaderBytes || headerBytes > fileBytes - 8) {
      throw new ModelError(`${file}: header of ${headerBytes} bytes does not fit into the file of ${fileBytes} bytes`);
    }
    const text = readExactly(fd, 8, headerBytes, file).toString("utf8");
    return parseHeader(text, 8 + headerBytes, fileBytes, file);
  } finally {
    closeSync(fd);
  }
}

function parseHeader(text: string, dataStart: number, fileBytes: number, file: string): Map<string, TensorInfo> {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    throw new ModelError(`${file}: header is not JSON`);
  }
  const header = z.record(z.string(), z.unknown()).safeParse(json);
  if (!header.success) throw new ModelError(`${file}: header is not an object`);
  const tensors = new Map<string, TensorInfo>();
  for (const [name, value] of Object.entries(header.data)) {
    if (name === "__metadata__") continue;
    const entry = entrySchema.safeParse(value);
    if (!entry.success) {
      const issue = entry.error.issues[0];
      throw new ModelError(`${file}: tensor "${name}": ${issue?.path.join(".")}: ${issue?.message}`);
    }
    const { dtype, shape, data_offsets: offsets } = entry.data;
    const byteLength = shape.reduce((product, extent) => product * extent, dtypeBytes[dtype]);
    if (offsets[1] - offsets[0] !== byteLength) {
      throw new ModelError(`${file}: tensor "${name}": ${offsets[1] - offsets[0]} bytes for ${dtype} [${shape}]`);
    }
    if (dataStart + offsets[1] > fileBytes) {
      throw new ModelError(`${file}: tensor "${name}" ends past the end of the file (truncated?)`);
    }
    tensors.set(name, { file, dtype, shape, start: dataStart + offsets[0], end: dataStart + offsets[1] });
  }
  checkCoverage([...tensors.values()], dataStart, fileBytes, file);
  return tensors;
}

/**
 * The format forbids holes and overlaps: in the order of their bytes, the tensors must fill the data section exactly.
 */
function checkCoverage(tensors: readonly TensorInfo[], dataStart: number, fileBytes: number, file: string): void {
  let expected = dataStart;
  for (const tensor of tensors.toSorted((a, b) => a.start - b.start || a.end - b.end)) {
    if (tensor.start !== expected) throw new ModelError(`${file}: tensors overlap or leave a hole at byte ${expected}`);
    expected = tensor.end;
  }
  if (expected !== fileBytes) throw new ModelError(`${file}: ${fileBytes - expected} bytes belong to no tensor`);
}

/** Reads the tensor's bytes from the file. */
export function readTensorBytes(tensor: TensorInfo): Uint8Array<ArrayBuffer> {
  const fd = openSync(tensor.file, "r");
  try {
    return readExactly(fd, tensor.start, tensor.end - tensor.start, tensor.file);
  } finally {
    closeSync(fd);
  }
}

function readExactly(fd: number, start: number, byteLength: number, file: string): Buffer<ArrayBuffer> {
  const buffer = Buffer.from(new ArrayBuffer(byteLength));
  let done = 0;
  while (done < byteLength) {
    const count = readSync(fd, buffer, done, Math.min(byteLength - done, 1 << 30), start + done);
    if (count === 0)
      throw new ModelError(`${file}: ends at byte ${start + done}, ${byteLength - done} bytes too early`);
    done += count;
  }
  return buffer;
}
