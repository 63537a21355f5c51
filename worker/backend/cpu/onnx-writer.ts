/**
 * Writes ONNX models (onnx/onnx.proto3, IR version 10) as protobuf bytes; it has only the messages that the dense
 * graphs need. A library would hold each weight in memory three times before it reached the file.
 */

const wire = { varint: 0, bytes: 2, fixed32: 5 } as const;

class ProtoWriter {
  readonly parts: Uint8Array[] = [];
  byteLength = 0;

  #push(part: Uint8Array): void {
    this.parts.push(part);
    this.byteLength += part.byteLength;
  }

  #varint(value: number): void {
    const out: number[] = [];
    let rest = BigInt.asUintN(64, BigInt(value));
    while (rest > 0x7fn) {
      out.push(Number(rest & 0x7fn) | 0x80);
      rest >>= 7n;
    }
    out.push(Number(rest));
    this.#push(Uint8Array.from(out));
  }

  integer(field: number, value: number): this {
    this.#varint((field << 3) | wire.varint);
    this.#varint(value);
    return this;
  }

  float(field: number, value: number): this {
    this.#varint((field << 3) | wire.fixed32);
    this.#push(new Uint8Array(Float32Array.of(value).buffer));
    return this;
  }

  bytes(field: number, value: Uint8Array): this {
    this.#varint((field << 3) | wire.bytes);
    this.#varint(value.byteLength);
    if (value.byteLength > 0) this.#push(value);
    return this;
  }

  string(field: number, value: string): this {
    return this.bytes(field, new TextEncoder().encode(value));
  }

  message(field: number, value: ProtoWriter): this {
    this.#varint((field << 3) | wire.bytes);
    this.#varint(value.byteLength);
    for (const part of value.parts) this.#push(part);
    return this;
  }

  toBytes(): Uint8Array {
    const bytes = new Uint8Array(this.byteLength);
    let at = 0;
    for (const part of this.parts) {
      bytes.set(part, at);
      at += part.byteLength;
    }
    return bytes;
  }
}

/** TensorProto.DataType */
const dataType = { float32: 1, uint8: 2, int64: 7 } as const;
export type OnnxType = keyof typeof dataType;
/** A dimension is a number, or the name of a symbol. */
export type OnnxShape = readonly (number | string)[];
type Attribute = { readonly int: number } | { readonly float: number } | { readonly ints: readonly number[] };

export interface OnnxNode {
  readonly op: string;
  /** "" is ONNX's own domain, "com.microsoft" onnxruntime's contributed operators. */
  readonly domain?: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes?: Readonly<Record<string, Attribute>>;
}

/** Builds one graph; `toBytes` is what `InferenceSession.create` takes. */
export class OnnxGraph {
  readonly #graph = new ProtoWriter();
  #valueCount = 0;

  /** A fresh name for a value inside the graph. */
  name(hint: string): string {
    return `${hint}_${this.#valueCount++}`;
  }

  node(node: OnnxNode): void {
    const proto = new ProtoWriter();
    for (const input of node.inputs) proto.string(1, input);
    for (const output of node.outputs) proto.string(2, output);
    proto.string(3, this.name(node.op)).string(4, node.op);
    for (const [name, value] of Object.entries(node.attributes ?? {})) proto.message(5, attributeProto(name, value));
    proto.string(7, node.domain ?? "");
    this.#graph.message(1, proto);
  }

  initializer(name: string, shape: readonly number[], data: Float32Array | Uint8Array | BigInt64Array): string {
    const type = data instanceof Float32Array ? "float32" : data instanceof Uint8Array ? "uint8" : "int64";
    const proto = new ProtoWriter();
    for (const extent of shape) proto.integer(1, extent);
    proto.integer(2, dataType[type]).string(8, name);
    proto.bytes(9, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    this.#graph.message(5, proto);
    return name;
  }

  input(name: string, type: OnnxType, shape: OnnxShape): string {
    this.#graph.message(11, valueInfo(name, type, shape));
    return name;
  }

  output(name: string, type: OnnxType, shape: OnnxShape): string {
    this.#graph.message(12, valueInfo(name, type, shape));
    return name;
  }

  toBytes(): Uint8Array {
    this.#graph.string(2, "spangate");
    const opset = (domain: string, version: number) => new ProtoWriter().string(1, domain).integer(2, version);
    return new ProtoWriter()
      .integer(1, 10)
      .message(7, this.#graph)
      .message(8, opset("", 21))
      .message(8, opset("com.microsoft", 1))
      .toBytes();
  }
}

function attributeProto(name: string, value: Attribute): ProtoWriter {
  const proto = new ProtoWriter().string(1, name);
  if ("int" in value) return proto.integer(3, value.int).integer(20, 2);
  if ("float" in value) return proto.float(2, value.float).integer(20, 1);
  for (const int of value.ints) proto.integer(8, int);
  return proto.integer(20, 7);
}

function valueInfo(name: string, type: OnnxType, shape: OnnxShape): ProtoWriter {
  const dimensions = new ProtoWriter();
  for (const extent of shape) {
    const dimension = new ProtoWriter();
    if (typeof extent === "number") dimension.integer(1, extent);
    else dimension.string(2, extent);
    dimensions.message(1, dimension);
  }
  const tensor = new ProtoWriter().integer(1, dataType[type]).message(2, dimensions);
  return new ProtoWriter().string(1, name).message(2, new ProtoWriter().message(1, tensor));
}
