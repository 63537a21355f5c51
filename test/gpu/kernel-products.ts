/** Products of one row on the device against their twins, in widths with and without rests of every kind. */
import type { LaunchSize } from "../../worker/backend/cuda/device/device.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { Random } from "../native/random.ts";
import { bfloat16Step, KernelTwin } from "./kernel-twin.ts";

const epsilon = 1e-5;
const normScale = 0.05;
/** A block's products, and its threads. */
const [blockProducts, blockThreads] = [8, 128];

/** Shapes: values of the row, products. The last row of blocks is not full; rows end within a batch of loads. */
export const productShapes = [
  [1_288, 2_052],
  [264, 50],
  [1_024, 520],
  [4_096, 264],
  [3_336, 19],
] as const;

/**
 * A row of normal numbers with outliers of some tens goes through every product, finished and without its factor; the
 * sums of squares that the first product leaves are what the others take.
 */
export async function checkProducts(device: CudaDevice, random: Random, width: number, count: number): Promise<string> {
  const twin = new KernelTwin(device, 64 << 20, 0);
  const grid = (rows: number): LaunchSize => {
    return { grid: [Math.ceil(rows / blockProducts)], blockThreads, overlapsPrevious: true };
  };
  const bfloat16 = (name: string, size: number) => twin.putBfloat16(name, random.normals(size));
  const [row, weights, joining] = [
    bfloat16("row", width),
    bfloat16("weights", 2 * count * width),
    bfloat16("joining", width * width),
  ];
  const residual = twin.put("residual", random.normals(width));
  // Small, so that the activation is asked where it bends.
  const norm = twin.putBfloat16(
    "norm",
    random.normals(width).map((weight) => weight * normScale),
  );
  const open = twin.space("open row", width * 2);
  const squares = twin.space("squares", Math.ceil(width / blockProducts) * 4);
  const [plain, scaled, gated] = ["plain", "scaled", "gated"].map((name) => twin.space(name, count * 2));
  const [floats, scaledFloats] = ["floats", "scaled floats"].map((name) => twin.space(name, count * 4));
  twin.upload();
  const finished = [row, weights, width, count, null, 0, 0];
  twin.launch("matvec", [...finished, plain], grid(count));
  twin.launch("matvec_float", [...finished, floats], grid(count));
  twin.launch("matvec_add", [row, joining, width, width, 0.22, residual, norm, open, squares], grid(width));
  // The device's own row goes on, as its twin's does: both rounded it to bfloat16 from nearly the same numbers.
  const half = [open, weights, width, count, squares, Math.ceil(width / blockProducts), epsilon];
  twin.launch("matvec", [...half, scaled], grid(count));
  twin.launch("matvec_float", [...half, scaledFloats], grid(count));
  twin.launch("matvec_gated", [...half, gated], grid(2 * count));
  // float32 sums of `width` products of values of about 1, outliers of some tens among them: in the order of lanes on
  // the device, from the first to the last in the twin.
  const sum = width * 2 ** -24 * 1_000;
  // One value in fifty of the row, at most, is rounded to the other side: each moves products by a bfloat16 step of
  // what it adds, at random. Gates and ups are some tens at most.
  const moved = 8 * normScale * 2 ** -8 * Math.sqrt(width / 50);
  return twin.compare([
    { buffer: plain, type: "bfloat16", relative: bfloat16Step, absolute: sum },
    { buffer: floats, type: "float32", relative: 1e-5, absolute: sum },
    { buffer: residual, type: "float32", relative: 1e-5, absolute: sum },
    { buffer: open, type: "bfloat16", relative: bfloat16Step, absolute: sum },
    { buffer: squares, type: "float32", relative: 1e-3, absolute: sum },
    { buffer: scaled, type: "bfloat16", relative: bfloat16Step, absolute: moved },
    { buffer: scaledFloats, type: "float32", relative: 1e-3, absolute: moved },
    { buffer: gated, type: "bfloat16", relative: bfloat16Step, absolute: 20 * moved },
  ]);
}
