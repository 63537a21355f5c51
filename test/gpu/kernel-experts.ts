/** Kernels of experts on the device against their twins: routes, tiles, products of few and of many rows, widened weights. */
import type { DeviceBuffer, LaunchSize } from "../../worker/backend/cuda/device/device.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { manySharedBytes } from "../../worker/backend/cuda/products/expert-space.ts";
import type { ExpertForm } from "../../worker/backend/cuda/weights/experts.ts";
import { blockScaleStride } from "../../worker/native/cuda/cublaslt.ts";
import { toE4m3 } from "../backend/cuda/emulated-e4m3.ts";
import type { Random } from "../native/random.ts";
import { bfloat16Step, KernelTwin } from "./kernel-twin.ts";

const epsilon = 1e-5;
const squareCount = 41;

export interface ExpertCase {
  readonly form: ExpertForm;
  /** By the kernels for many rows. */
  readonly isMany: boolean;
  readonly rows: number;
  readonly experts: number;
  readonly perToken: number;
  readonly hidden: number;
  readonly ffn: number;
  /** As gpt-oss has them: gates and ups alternate, with biases and the clamped activation. */
  readonly isAlternating: boolean;
  /** Of e4m3: what shares a scale. */
  readonly scaleKind: "rows" | "blocks";
  /** The row lacks its RMSNorm factor. */
  readonly isOpen: boolean;
}

const usual = {
  isMany: false,
  experts: 7,
  perToken: 3,
  isAlternating: false,
  scaleKind: "rows",
  isOpen: false,
} as const;

/** Widths that no step of a loop divides; one row, rows of one tile, and more than a tile has. */
export const expertCases: readonly ExpertCase[] = [
  { ...usual, form: "b16", rows: 1, hidden: 328, ffn: 136, isOpen: true },
  { ...usual, form: "b16", rows: 37, hidden: 328, ffn: 136 },
  { ...usual, form: "b16", rows: 20, hidden: 2_048, ffn: 768, experts: 3, perToken: 1 },
  { ...usual, form: "b16", rows: 6, experts: 200, perToken: 40, hidden: 64, ffn: 16 },
  { ...usual, form: "e4m3", rows: 37, hidden: 336, ffn: 144 },
  { ...usual, form: "e4m3", rows: 1, hidden: 384, ffn: 256, scaleKind: "blocks", isOpen: true },
  { ...usual, form: "e4m3", rows: 9, hidden: 640, ffn: 128, scaleKind: "blocks" },
  { ...usual, form: "mx4", rows: 1, hidden: 352, ffn: 160, isAlternating: true },
  { ...usual, form: "mx4", rows: 37, hidden: 352, ffn: 160, isAlternating: true },
  { ...usual, form: "b16", isMany: true, rows: 300, experts: 5, perToken: 2, hidden: 328, ffn: 136 },
  {
    ...usual,
    form: "b16",
    isMany: true,
    rows: 300,
    experts: 5,
    perToken: 2,
    hidden: 352,
    ffn: 160,
    isAlternating: true,
  },
  { ...usual, form: "b16", isMany: true, rows: 200, experts: 3, perToken: 1, hidden: 1_032, ffn: 264 },
];

/** Weights of so many outputs, and what a kernel takes of them from weights to inShift. */
function putMatrix(twin: KernelTwin, random: Random, { form, scaleKind }: ExpertCase, outputs: number, width: number) {
  // Sums of products with unit rows are units again.
  const weights = random.normals(outputs * width, Number.POSITIVE_INFINITY).map((x) => x / Math.sqrt(width));
  if (form === "b16") return [twin.putBfloat16("weights", weights), null, 0, 0, 0] as const;
  if (form === "mx4") {
    const blocks = Uint8Array.from({ length: (outputs * width) / 2 }, () => random.integer(0, 255));
    const scales = Uint8Array.from({ length: (outputs * width) / 32 }, () => random.integer(119, 124));
    return [twin.put("blocks", blocks), twin.put("scales", scales), 0, 0, 0] as const;
  }
  const bytes = Uint8Array.from(weights, (x) => toE4m3(100 * x));
  const scalesOf = (count: number) => Float32Array.from({ length: count }, () => 0.005 + 0.01 * random.next());
  const values = twin.put("weights", bytes);
  if (scaleKind === "rows") return [values, twin.put("scales", scalesOf(outputs)), 1, 0, 31] as const;
  const stride = blockScaleStride(width);
  return [values, twin.put("scales", scalesOf((outputs / 128) * stride)), stride, 7, 3] as const;
}

/** Assignments by expert and their tiles, made by the kernels; the assignments are compared bit for bit. */
function route(twin: KernelTwin, random: Random, of: ExpertCase, input: DeviceBuffer, squares: DeviceBuffer | null) {
  const { rows, experts, perToken, isAlternating, isMany } = of;
  const [gridRows, assignments] = [rows + 3, rows * perToken];
  // Scores that tie, and one that is none.
  const scores = random.normals(gridRows * experts).map((x) => Math.round(4 * x) / 4);
  scores[experts] = Number.NaN;
  const logits = rows === 1 ? twin.space("scores", experts * 4) : twin.put("logits", scores);
  const router = twin.putBfloat16("router", random.normals(experts * of.hidden));
  const arrivals = twin.put("arrivals", Int32Array.of(0));
  const bias = isAlternating ? twin.putBfloat16("router's bias", random.normals(experts)) : null;
  const count = twin.put("count", Int32Array.of(rows));
  const [chosen, factors, order] = ["chosen", "factors", "order"].map((name) => twin.space(name, assignments * 4));
  const size = isMany ? 128 : 16;
  const tileCount = rows === 1 ? perToken : Math.floor(assignments / size) + Math.min(experts, assignments) + 2;
  const tiles = twin.space("tiles", tileCount * 16);
  const sizes = [experts, perToken, isAlternating ? 1 : 0];
  const launch = (): void => {
    if (rows === 1) {
      const product = [input, router, of.hidden, squares, squares === null ? 0 : squareCount, epsilon];
      const values = [...product, bias, ...sizes, logits, arrivals, chosen, factors, tiles, order];
      twin.launch("route_row", values, { grid: [Math.ceil(experts / 4)], blockThreads: 128, overlapsPrevious: true });
      return;
    }
    const values = [logits, bias, count, ...sizes, chosen, factors];
    twin.launch("route_rows", values, { grid: [Math.ceil(gridRows / 4)], blockThreads: 128, overlapsPrevious: true });
    const group = [chosen, count, perToken, experts, size, tileCount, order, tiles];
    twin.launch("group_rows", group, { grid: [experts], blockThreads: 256, overlapsPrevious: true });
  };
  return { launch, logits, factors, order, tiles, tileCount };
}

export async function checkExperts(device: CudaDevice, random: Random, of: ExpertCase): Promise<string> {
  const { form, isMany, rows, experts, perToken, hidden, ffn, isAlternating, isOpen } = of;
  const twin = new KernelTwin(device, 64 << 20, 0);
  const assignments = rows * perToken;
  const [step, offset, activation] = isAlternating ? [2, 1, 2] : [1, ffn, 0];
  const input = twin.putBfloat16("input", random.normals(rows * hidden));
  const between = twin.putBfloat16("input of down", random.normals(assignments * ffn));
  const gateUp = putMatrix(twin, random, of, experts * 2 * ffn, hidden);
  const down = putMatrix(twin, random, of, experts * hidden, ffn);
  const biasOf = (size: number) => (isAlternating ? twin.putBfloat16("bias", random.normals(experts * size)) : null);
  const [gateUpBias, downBias] = [biasOf(2 * ffn), biasOf(hidden)];
  const squares = isOpen ? twin.put("squares", random.normals(squareCount).map(Math.abs)) : null;
  const { launch, logits, factors, order, tiles, tileCount } = route(twin, random, of, input, squares);
  const [gated, out] = [twin.space("gated", assignments * ffn * 2), twin.space("out", assignments * hidden * 2)];
  twin.upload();
  launch();
  const places = [tiles, order] as const;
  const shape = [perToken, hidden, ffn, step, offset, activation];
  const size = (outputs: number): LaunchSize =>
    isMany
      ? { grid: [outputs, tileCount], blockThreads: 256, sharedBytes: manySharedBytes, overlapsPrevious: true }
      : { grid: [outputs, tileCount], blockThreads: 128, overlapsPrevious: true };
  if (isMany) {
    for (const name of ["experts_gated_wgmma", "experts_down_wgmma"] as const)
      device.allowSharedBytes(name, manySharedBytes);
    const first = [input, gateUp[0], gateUpBias, ...places, ...shape, gated];
    twin.launch("experts_gated_wgmma", first, size(Math.ceil(ffn / 128)));
    const second = [between, down[0], downBias, ...places, ffn, hidden, out];
    twin.launch("experts_down_wgmma", second, size(Math.ceil(hidden / 256)));
  } else {
    const norm = [squares, isOpen ? squareCount : 0, epsilon];
    const first = [input, ...gateUp, gateUpBias, ...places, ...shape, ...norm, gated];
    twin.launch(`experts_gated_${form}`, first, size(Math.ceil(ffn / 8)));
    const second = [between, ...down, downBias, ...places, ffn, hidden, out];
    twin.launch(`experts_down_${form}`, second, size(Math.ceil(hidden / 16)));
  }
  // float32 sums of products, of which some are of outliers, in another order; a gate's error counts up times.
  const sum = 2 ** -8;
  return twin.compare([
    // Scores of one row are sums of its own, whose errors are weights' relative ones.
    { buffer: factors, type: "float32", relative: rows === 1 ? sum : 1e-5, absolute: 1e-7 },
    { buffer: logits, type: "float32", relative: 1e-5, absolute: rows === 1 ? sum : 0 },
    { buffer: gated, type: "bfloat16", relative: bfloat16Step, absolute: 2 * sum },
    { buffer: out, type: "bfloat16", relative: bfloat16Step, absolute: sum },
  ]);
}

/** Widened weights, which are the same bits. */
export async function checkWidened(device: CudaDevice, random: Random): Promise<string> {
  const twin = new KernelTwin(device, 16 << 20, 0);
  const [outputs, width] = [256, 384];
  const wide: DeviceBuffer[] = [];
  const launches: (() => void)[] = [];
  for (const [form, scaleKind] of [
    ["e4m3", "rows"],
    ["e4m3", "blocks"],
    ["mx4", "rows"],
  ] as const) {
    const matrix = putMatrix(twin, random, { ...expertCases[0], form, scaleKind }, outputs, width);
    const out = twin.space(`widened ${form}`, outputs * width * 2);
    wide.push(out);
    const [values, scales, ...places] = matrix;
    const given = form === "mx4" ? [values, scales] : [values, scales, ...places];
    const size = { grid: [7], blockThreads: 256, overlapsPrevious: true } as const;
    launches.push(() => twin.launch(`widen_${form}`, [...given, width, outputs, out], size));
  }
  twin.upload();
  for (const launch of launches) launch();
  return twin.compare(wide.map((buffer) => ({ buffer, type: "bfloat16", relative: 0, absolute: 0 })));
}
